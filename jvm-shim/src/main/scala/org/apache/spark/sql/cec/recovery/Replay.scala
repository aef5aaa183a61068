package org.apache.spark.sql.cec.recovery

import java.util.UUID

import scala.jdk.CollectionConverters._
import scala.util.control.NonFatal

import com.fasterxml.jackson.databind.JsonNode

import org.apache.spark.SparkContext
import org.apache.spark.internal.Logging
import org.apache.spark.sql.cec.RunContext
import org.apache.spark.sql.cec.agent.{Agent, CecException, Json}
import org.apache.spark.sql.cec.metrics.QuerySource
import org.apache.spark.sql.catalyst.plans.logical.LogicalPlan
import org.apache.spark.sql.catalyst.streaming.{StreamingRelationV2, WriteToStream}
import org.apache.spark.sql.classic.SparkSession
import org.apache.spark.sql.execution.streaming.runtime.{QueryExecutionThread, StreamExecution, StreamingRelation}
import org.apache.spark.sql.util.CaseInsensitiveStringMap
import org.apache.spark.util.SystemClock

/**
 * The replay of a query's batches `first` to `last`, before its own first batch.
 *
 * @param write the query, its sources as they are
 */
private[recovery] final class Replay(
    session: SparkSession, write: WriteToStream, run: RunContext, conf: Map[String, String], first: Long, last: Long)
    extends Logging {
  private val count = last - first + 1
  private val accept = run.accept

  /** Until a note has failed, which is told once. */
  private var isNoted = true

  /**
   * Runs it in the thread of the query, whose stores it brings forward. If it loses one of them, with an executor or to another
   * one, it begins once more: half a replay is nowhere but in a store's memory.
   */
  def begin(): Unit = Iterator.from(1).exists(attempt => isOver(isLast = attempt == Replay.Attempts))

  /** Runs it once; false if it must begin again. */
  private def isOver(isLast: Boolean): Boolean = {
    val startedNs = System.nanoTime()
    def seconds = (System.nanoTime() - startedNs) / 1000000000L
    logWarning(s"Spark CEC: $name replays ${batches(first, last)} before it goes on; its sink will not see ${if (count == 1) "it" else "them"} again")
    var (toldAt, warmAt, newest) = (0L, 0L, first - 1)
    note(newest)
    val reporter = new SilentReporter(session, new SystemClock, write)
    val runs = spans.map(span => span -> execution(span, reporter, { batch =>
      newest = batch
      val done = batch - first + 1
      note(batch)
      if (done == 1) warmAt = seconds
      if (done < count && seconds >= toldAt + Replay.TellEveryS) {
        toldAt = seconds
        // The first one also compiles, and waits for the stores: it tells nothing of the others.
        val left = if (done == 1) "" else s", about ${(seconds - warmAt) * (count - done) / (done - 1)} s left"
        logWarning(s"Spark CEC: $name has replayed $done of $count batches$left")
      }
    }))
    def failing = runs.collectFirst { case (span, run) if newest < span.last => (span, run) }.getOrElse(runs.last)
    try {
      runs.foreach(_._2.run())
      logWarning(s"Spark CEC: $name has replayed ${batches(first, last)} in $seconds s, and goes on with batch ${last + 1}")
      true
    } catch {
      case failure: Throwable if StreamExecution.isInterruptionException(failure, session.sparkContext) =>
        logWarning(s"Spark CEC: $name was stopped in its replay, after ${newest - first + 1} of $count batches: the next start begins it again")
        throw failure
      case NonFatal(failure) if !isLast && Replay.hasLostAStore(failure) =>
        logWarning(s"Spark CEC: $name has lost a state store in its replay of batch ${newest + 1}, and begins the replay again", failure)
        false
      case NonFatal(failure) if !accept =>
        val seen = if (newest < first) "" else s"; ${batches(first, newest)} had ${reporter.rows} rows in this replay"
        val (span, execution) = failing
        throw Replay.failed(
          newest + 1, last, from => input(from, newest + 1, execution.sourceNames) + seen + span.words, from => gone(execution, from, newest + 1), first,
          failure)
      case NonFatal(failure) =>
        logWarning(s"Spark CEC: $name could not finish its replay; its state is taken as the replay left it, because " +
          "spark.sql.streaming.stateStore.cec.onDivergence=accept", failure)
        note(last)
        true
    }
  }

  private def execution(span: ReplaySpan, reporter: SilentReporter, afterBatch: Long => Unit): ReplayExecution = {
    val own = span.settings.restoredIn(session)
    new ReplayExecution(
      own, silent(span.settings.restoredIn(write.inputQuery, own)), span.first, span.last, whole = run.fellBack && !accept, runId, thread, reporter,
      afterBatch)
  }

  /** The batches, with the settings that each of them ran with the first time. */
  private def spans: Seq[ReplaySpan] = {
    val request = Json.obj().put("checkpoint", run.checkpoint).put("first", first).put("last", last)
    Agent.call("replay_settings", request, conf).get("spans").elements.asScala.toSeq.map { span =>
      val recorded = Option(span.get("settings")).filterNot(_.isNull).map(_.properties.asScala.map(each => each.getKey -> each.getValue.asText).toMap)
      val restored = recorded.map(RestoredSettings(SessionSettings.of(session.sessionState.conf), _)).getOrElse(RestoredSettings.none)
      if (restored.differ) logWarning(s"Spark CEC: $name replays ${batches(span.get("first").asLong, span.get("last").asLong)} with the settings that " +
        s"its session had then: ${restored.words}")
      ReplaySpan(span.get("first").asLong, span.get("last").asLong, restored)
    }
  }

  /** Says how far the replay is: in the checkpoint, for `cec inspect`, and in Spark's metrics. The replay does without, if need be. */
  private def note(done: Long): Unit = {
    QuerySource.replaying(run.checkpoint, last - done)
    val progress = Json.obj().put("checkpoint", run.checkpoint).put("generation", run.generation)
    try Agent.call("replaying", progress.put("first", first).put("last", last).put("done", done), conf) catch {
      case NonFatal(failure) if !Replay.isFenced(failure) =>
        if (isNoted) logWarning(s"Spark CEC: how far the replay of $name is cannot be noted in the checkpoint", failure)
        isNoted = false
    }
  }

  /** What batches read, in words; what cannot be said must not hide why one has failed. */
  private def input(first: Long, last: Long, sources: Seq[String]): String =
    try {
      val request = Json.obj().put("checkpoint", run.checkpoint).put("first", first).put("last", last)
      request.set[JsonNode]("sources", Json.strings(sources))
      Agent.call("batch_input", request, conf).get("words").asText
    } catch {
      case NonFatal(failure) =>
        logInfo(s"Spark CEC: it cannot be said what ${batches(first, last)} read", failure)
        s"it reads ${sources.mkString(", ")}"
    }

  /** What cannot be read any more of the batches that were replayed: a source may pass over it without a word. */
  private def gone(execution: ReplayExecution, first: Long, failed: Long): String =
    try (first to Math.min(failed, last)).iterator.flatMap(execution.gone).nextOption().map(_ + "; ").getOrElse("")
    catch { case NonFatal(_) => "" }

  private def batches(first: Long, last: Long): String = if (first == last) s"batch $last" else s"batches $first to $last"

  private def name: String = Option(write.name).map(query => s"query '$query'").getOrElse("the query")

  private def thread: QueryExecutionThread = Thread.currentThread match {
    case stream: QueryExecutionThread => stream
    case other => throw new IllegalStateException(s"a replay runs in the thread of its query, not in $other")
  }

  /** Spark's own group for the jobs of a query: its run id. */
  private def runId: UUID = UUID.fromString(session.sparkContext.getLocalProperty(SparkContext.SPARK_JOB_GROUP_ID))

  private def silent(query: LogicalPlan): WriteToStream = write.copy(
    sink = SilentSink, deleteCheckpointOnStop = false, catalogAndIdent = None, catalogTable = None,
    inputQuery = Replay.onDataLoss(query, fail = !accept))
}

/** Batches that ran with the same settings of their session. */
private final case class ReplaySpan(first: Long, last: Long, settings: RestoredSettings) {
  def words: String = if (settings.differ) s"; settings of the session that were restored: ${settings.words}" else ""
}

private[recovery] object Replay {
  private val TellEveryS = 5L
  private val Attempts = 5
  private val FailOnDataLoss = "failOnDataLoss"

  /**
   * What stops a replay, with the way out; a divergence says that itself, and what its store got of the batch.
   *
   * @param input what is read from a batch on up to the one that failed, in words
   * @param gone what of that cannot be read any more; nothing if nothing is known to be
   * @param first the first batch of the replay: a store may be found to differ later than its input did
   */
  private def failed(batch: Long, last: Long, input: Long => String, gone: Long => String, first: Long, failure: Throwable): Throwable = {
    val causes = causesOf(failure)
    causes.collectFirst {
      case divergence: CecException if divergence.kind == "Divergence" =>
        new CecException(divergence.kind, s"${gone(first)}${divergence.getMessage} (${input(first)})", failure)
    }.getOrElse {
      val damaged = causes.exists { case ours: CecException => ours.kind == "DamagedLog" case _ => false }
      val wayOut =
        if (damaged) "The log is damaged: stop the query and run cec repair, which finds the version to begin from and says what that costs"
        else "If that passes, start the query again. If the input is gone, spark.sql.streaming.stateStore.cec.onDivergence=accept takes the " +
          "state as the replay left it, and reports which windows may differ"
      new CecException("ReplayFailed",
        s"the replay of batch $batch, which the recovery of batch $last needs, failed (the sink and Spark's logs were not touched; " +
          s"${gone(batch)}${input(batch)}): ${causes.map(_.getMessage).filter(_ != null).distinct.take(3).mkString("; ")}. $wayOut", failure)
    }
  }

  private def causesOf(failure: Throwable): Seq[Throwable] = Iterator.iterate(failure)(_.getCause).takeWhile(_ != null).take(20).toSeq

  private def isFenced(failure: Throwable): Boolean = failure match {
    case ours: CecException => ours.kind == "Fenced"
    case _ => false
  }

  private def hasLostAStore(failure: Throwable): Boolean = causesOf(failure).exists {
    case ours: CecException => ours.kind == "RestartNeeded"
    case _ => false
  }

  /**
   * Whatever the query says of input that is gone: a replay without it would make other state of it, and must fail, unless
   * that is accepted, and then as much is wanted as is left.
   */
  def onDataLoss(plan: LogicalPlan, fail: Boolean): LogicalPlan = Plans.transform(plan) {
    case v2: StreamingRelationV2 if knows(v2.sourceName, v2.extraOptions.containsKey(FailOnDataLoss)) =>
      val options = new java.util.HashMap[String, String](v2.extraOptions.asCaseSensitiveMap)
      options.keySet.removeIf(_.equalsIgnoreCase(FailOnDataLoss))
      options.put(FailOnDataLoss, fail.toString)
      v2.copy(extraOptions = new CaseInsensitiveStringMap(options), v1Relation = v2.v1Relation.map(onDataLoss(_, fail)))
    case v1: StreamingRelation if knows(v1.sourceName, v1.dataSource.options.keys.exists(_.equalsIgnoreCase(FailOnDataLoss))) =>
      val options = v1.dataSource.options.filterNot(_._1.equalsIgnoreCase(FailOnDataLoss)) + (FailOnDataLoss -> fail.toString)
      v1.copy(dataSource = v1.dataSource.copy(options = options))
  }

  private def knows(source: String, isSet: Boolean): Boolean = isSet || source.takeWhile(_ != '[').equalsIgnoreCase("kafka")
}
