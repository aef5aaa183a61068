package org.apache.spark.sql.cec.recovery

import java.io.FileNotFoundException
import java.net.{SocketException, SocketTimeoutException, UnknownHostException}
import java.nio.file.NoSuchFileException
import java.util.UUID
import java.util.concurrent.TimeoutException

import scala.jdk.CollectionConverters._
import scala.util.control.NonFatal

import org.apache.spark.SparkContext
import org.apache.spark.internal.Logging
import org.apache.spark.sql.cec.RunContext
import org.apache.spark.sql.cec.agent.{Agent, BatchInputRequest, CecException, ReplayingRequest, ReplaySettingsRequest}
import org.apache.spark.sql.cec.metrics.QuerySource
import org.apache.spark.sql.cec.ui.CecTab
import org.apache.spark.sql.catalyst.plans.logical.LogicalPlan
import org.apache.spark.sql.catalyst.streaming.{StreamingRelationV2, WriteToStream}
import org.apache.spark.sql.classic.SparkSession
import org.apache.spark.sql.execution.streaming.runtime.{MicroBatchExecution, QueryExecutionThread, StreamExecution, StreamingRelation}
import org.apache.spark.sql.util.CaseInsensitiveStringMap
import org.apache.spark.util.SystemClock

/**
 * The replay of batches `first` to `last`, before the query's own first batch.
 *
 * @param write the query with its original sources
 */
private[recovery] final class Replay(
    session: SparkSession, write: WriteToStream, run: RunContext, conf: Map[String, String], first: Long, last: Long)
    extends Logging {
  private val count = last - first + 1
  private val accept = run.accept

  /** The failure of the attempt before. */
  private var earlier: Option[FailedBatch] = None

  /** False after a note failed, so that the log tells the failure once. */
  private var areNotesWorking = true

  /**
   * Replays in the thread of the query, and changes the query's stores. If a store is lost or moves to another
   * executor, the replay begins again. Half a replay exists only in a store's memory.
   */
  def begin(): Unit = Iterator.from(1).exists(attempt => runAttempt(isLast = attempt == Replay.Attempts))

  /** Makes one attempt; returns false if the replay must begin again. */
  private def runAttempt(isLast: Boolean): Boolean = {
    val startedNs = System.nanoTime()
    def seconds = (System.nanoTime() - startedNs) / 1000000000L
    logWarning(s"Spark CEC: $name replays ${nameBatches(first, last)} before it goes on; its sink will not see ${if (count == 1) "it" else "them"} again")
    var (toldAt, warmAt, newest) = (0L, 0L, first - 1)
    noteProgress(newest)
    val reporter = new SilentReporter(session, new SystemClock, write)
    val runs = readSpans.map(span => span -> makeExecution(span, reporter, { batch =>
      newest = batch
      val done = batch - first + 1
      noteProgress(batch)
      if (done == 1) warmAt = seconds
      if (done < count && seconds >= toldAt + Replay.TellEveryS) {
        toldAt = seconds
        // The first batch also compiles and waits for the stores, so the estimate leaves it out.
        val left = if (done == 1) "" else s", about ${(seconds - warmAt) * (count - done) / (done - 1)} s left"
        logWarning(s"Spark CEC: $name has replayed $done of $count batches$left")
      }
    }))
    def failing = runs.collectFirst { case (span, run) if newest < span.last => (span, run) }.getOrElse(runs.last)
    try {
      runs.foreach(_._2.run())
      logWarning(s"Spark CEC: $name has replayed ${nameBatches(first, last)} in $seconds s, and goes on with batch ${last + 1}")
      true
    } catch {
      case failure: Throwable if StreamExecution.isInterruptionException(failure, session.sparkContext) =>
        logWarning(s"Spark CEC: $name was stopped in its replay, after ${newest - first + 1} of $count batches: the next start begins it again")
        throw failure
      case NonFatal(failure) if !isLast && Replay.hasLostAStore(failure) =>
        logWarning(s"Spark CEC: $name has lost a state store in its replay of batch ${newest + 1}, and begins the replay again", failure)
        false
      case NonFatal(failure) if !isLast && accept && Replay.mayPass(failure) && !accepts(newest + 1, failure) =>
        logWarning(s"Spark CEC: $name could not replay batch ${newest + 1}, and tries it again in ${Replay.PauseMs / 1000} s, because " +
          "onDivergence=accept is for failures that stay", failure)
        earlier = Some(FailedBatch.of(newest + 1, failure))
        Thread.sleep(Replay.PauseMs)
        false
      case NonFatal(failure) if !accepts(newest + 1, failure) =>
        val seen = if (newest < first) "" else s"; ${nameBatches(first, newest)} had ${reporter.rows} rows in this replay"
        val (span, execution) = failing
        throw Replay.explainFailure(
          newest + 1, last, from => describeInput(from, newest + 1, execution.sourceNames) + seen + span.words, from => describeMissing(execution, from, newest + 1), first,
          failure)
      case NonFatal(failure) =>
        logWarning(s"Spark CEC: $name could not finish its replay; its state is taken as the replay left it, because " +
          "spark.sql.streaming.stateStore.cec.onDivergence=accept", failure)
        noteProgress(last)
        // Spark's property has the batch at which the replay ended. The query's last batch is a later one.
        session.sparkContext.setLocalProperty(MicroBatchExecution.BATCH_ID_KEY, last.toString)
        true
    }
  }

  private def accepts(batch: Long, failure: Throwable): Boolean = accept && Replay.stays(FailedBatch.of(batch, failure), failure, earlier)

  private def makeExecution(span: ReplaySpan, reporter: SilentReporter, afterBatch: Long => Unit): ReplayExecution = {
    val own = span.settings.restoredIn(session)
    new ReplayExecution(
      own, silenceSink(span.settings.restoredIn(write.inputQuery, own)), span.first, span.last, whole = run.fellBack && !accept, runId, queryThread, reporter,
      afterBatch)
  }

  /** Groups the batches by the settings that they ran with the first time. */
  private def readSpans: Seq[ReplaySpan] = {
    Agent.call(ReplaySettingsRequest(run.checkpoint, first, last), conf).spans.map { span =>
      val restored = span.settings.map(RestoredSettings(SessionSettings.of(session.sessionState.conf), _)).getOrElse(RestoredSettings.none)
      if (restored.differ) logWarning(s"Spark CEC: $name replays ${nameBatches(span.first, span.last)} with the settings that " +
        s"its session had then: ${restored.words}")
      ReplaySpan(span.first, span.last, restored)
    }
  }

  /**
   * Notes the progress of the replay in the checkpoint, for `cec inspect`, and in Spark's metrics. A failure does not
   * stop the replay.
   */
  private def noteProgress(done: Long): Unit = {
    QuerySource.replaying(run.checkpoint, last - done)
    CecTab.queries(session.sparkContext).foreach(_.replay(run.checkpoint, first, last, done))
    try Agent.call(ReplayingRequest(run.checkpoint, run.generation, first, last, done), conf) catch {
      case NonFatal(failure) if !Replay.isFenced(failure) =>
        if (areNotesWorking) logWarning(s"Spark CEC: how far the replay of $name is cannot be noted in the checkpoint", failure)
        areNotesWorking = false
    }
  }

  /** Describes the input of batches. A failure here must not hide why a batch failed. */
  private def describeInput(first: Long, last: Long, sources: Seq[String]): String =
    try Agent.call(BatchInputRequest(run.checkpoint, first, last, sources), conf).words catch {
      case NonFatal(failure) =>
        logInfo(s"Spark CEC: it cannot be said what ${nameBatches(first, last)} read", failure)
        s"it reads ${sources.mkString(", ")}"
    }

  /** Describes the input of replayed batches that can no longer be read. A source may skip it silently. */
  private def describeMissing(execution: ReplayExecution, first: Long, failed: Long): String =
    try (first to Math.min(failed, last)).iterator.flatMap(execution.gone).nextOption().map(_ + "; ").getOrElse("")
    catch { case NonFatal(_) => "" }

  private def nameBatches(first: Long, last: Long): String = if (first == last) s"batch $last" else s"batches $first to $last"

  private def name: String = Option(write.name).map(query => s"query '$query'").getOrElse("the query")

  private def queryThread: QueryExecutionThread = Thread.currentThread match {
    case stream: QueryExecutionThread => stream
    case other => throw new IllegalStateException(s"a replay runs in the thread of its query, not in $other")
  }

  /** The run id, which is the job group of Spark's query. */
  private def runId: UUID = UUID.fromString(session.sparkContext.getLocalProperty(SparkContext.SPARK_JOB_GROUP_ID))

  private def silenceSink(query: LogicalPlan): WriteToStream = write.copy(
    sink = SilentSink, deleteCheckpointOnStop = false, catalogAndIdent = None, catalogTable = None,
    inputQuery = Replay.onDataLoss(query, fail = !accept))
}

/** Batches that ran with the same session settings. */
private final case class ReplaySpan(first: Long, last: Long, settings: RestoredSettings) {
  def words: String = if (settings.differ) s"; settings of the session that were restored: ${settings.words}" else ""
}

/** A batch that could not be replayed, and the class of its failure's first cause. */
private[recovery] final case class FailedBatch(batch: Long, cause: Class[_])

private[recovery] object FailedBatch {
  def of(batch: Long, failure: Throwable): FailedBatch = FailedBatch(batch, Replay.causesOf(failure).last.getClass)
}

private[recovery] object Replay {
  private val TellEveryS = 5L
  private val Attempts = 5
  private val PauseMs = 30000L
  private val FailOnDataLoss = "failOnDataLoss"

  /**
   * The error that stops a replay, with the way out. A divergence has the way out in its own message.
   *
   * @param describeInput describes the input from a batch up to the failed one
   * @param describeMissing describes the part of that input that is gone, or is empty
   * @param first the first batch of the replay: a store may differ later than its input did
   */
  private[recovery] def explainFailure(batch: Long, last: Long, describeInput: Long => String, describeMissing: Long => String, first: Long, failure: Throwable): Throwable = {
    val causes = causesOf(failure)
    causes.collectFirst {
      case divergence: CecException if divergence.isA("Divergence") =>
        new CecException(divergence.kind, s"${describeMissing(first)}${divergence.getMessage} (${describeInput(first)})", failure)
    }.getOrElse {
      def isA(kind: String): Boolean = causes.exists { case ours: CecException => ours.isA(kind) case _ => false }
      val wayOut =
        if (isA("DamagedLog")) "The log is damaged: stop the query and run cec repair, which finds the version to begin from and says what that costs"
        else if (!isOfInputOrQuery(failure)) "If that is mended, start the query again"
        else "If that passes, start the query again. If the input is gone, spark.sql.streaming.stateStore.cec.onDivergence=accept takes the " +
          "state as the replay left it, and reports which windows may differ"
      new CecException("ReplayFailed",
        s"the replay of batch $batch, which the recovery of batch $last needs, failed (the sink and Spark's logs were not touched; " +
          s"${describeMissing(batch)}${describeInput(batch)}): ${causes.map(_.getMessage).filter(_ != null).distinct.take(3).mkString("; ")}. $wayOut", failure)
    }
  }

  private[recovery] def causesOf(failure: Throwable): Seq[Throwable] = Iterator.iterate(failure)(_.getCause).takeWhile(_ != null).take(20).toSeq

  /**
   * Whether a replay failed for its input, or for its query. `onDivergence=accept` is for these alone: after any other
   * failure the same replay may succeed at the next start, and the state as it was left would be wrong for nothing.
   */
  private[recovery] def isOfInputOrQuery(failure: Throwable): Boolean = causesOf(failure).forall {
    case ours: CecException => ours.isA("ReplayFailed") || OfInput.exists(ours.isA)
    case _: VirtualMachineError | _: SocketException | _: SocketTimeoutException | _: UnknownHostException | _: TimeoutException => false
    case other => !derivesFrom(other.getClass, Retriable) && Option(other.getMessage).forall(words => !OfMachine.exists(words.contains))
  }

  /**
   * Whether nothing says that the input is gone or that the query's expression fails: then a worker may have ended, or
   * a server may not answer. Such a failure must come twice, at the same batch, before it counts as the input's.
   */
  private[recovery] def mayPass(failure: Throwable): Boolean = isOfInputOrQuery(failure) && !causesOf(failure).exists {
    case ours: CecException => OfInput.exists(ours.isA)
    case _: FileNotFoundException | _: NoSuchFileException | _: ArithmeticException => true
    case other => derivesFrom(other.getClass, OutOfRange)
  }

  /** Whether a failure is of the input or the query, and will come at each start. `earlier` is that of the attempt before. */
  private[recovery] def stays(failed: FailedBatch, failure: Throwable, earlier: Option[FailedBatch]): Boolean =
    isOfInputOrQuery(failure) && (!mayPass(failure) || earlier.contains(failed))

  /** Kafka's word for records that are gone. */
  private val OutOfRange = "org.apache.kafka.clients.consumer.OffsetOutOfRangeException"

  /** What Kafka's client may try again. By its name, because the connector is no dependency of ours. */
  private val Retriable = "org.apache.kafka.common.errors.RetriableException"

  private[recovery] def derivesFrom(kind: Class[_], name: String): Boolean =
    Iterator.iterate[Class[_]](kind)(_.getSuperclass).takeWhile(_ != null).exists(_.getName == name)

  /** Kinds of errors of ours that say of a replay's input or state that it is not as it was. */
  private val OfInput = Seq("Divergence", "InputGone", "NotKept", "OutputBegunAnew", "OutputTakenBack", "ColumnChanged")

  /** What the messages of Spark and of the JVM have if an executor, its memory, its disk or a server is lost. */
  private val OfMachine =
    Seq("ExecutorLostFailure", "OutOfMemoryError", "No space left on device", "Disk quota exceeded", "Connection refused", "TimeoutException")

  private def isFenced(failure: Throwable): Boolean = failure match {
    case ours: CecException => ours.isA("Fenced")
    case _ => false
  }

  private def hasLostAStore(failure: Throwable): Boolean = causesOf(failure).exists {
    case ours: CecException => ours.isA("RestartNeeded")
    case _ => false
  }

  /**
   * Overrides the query's own `failOnDataLoss`. A replay without the input would make other state, so it must fail. If
   * the user accepts that, it reads the input that is left.
   */
  def onDataLoss(plan: LogicalPlan, fail: Boolean): LogicalPlan = Plans.transform(plan) {
    case v2: StreamingRelationV2 if hasOption(v2.sourceName, v2.extraOptions.containsKey(FailOnDataLoss)) =>
      val options = new java.util.HashMap[String, String](v2.extraOptions.asCaseSensitiveMap)
      options.keySet.removeIf(_.equalsIgnoreCase(FailOnDataLoss))
      options.put(FailOnDataLoss, fail.toString)
      v2.copy(extraOptions = new CaseInsensitiveStringMap(options), v1Relation = v2.v1Relation.map(onDataLoss(_, fail)))
    case v1: StreamingRelation if hasOption(v1.sourceName, v1.dataSource.options.keys.exists(_.equalsIgnoreCase(FailOnDataLoss))) =>
      val options = v1.dataSource.options.filterNot(_._1.equalsIgnoreCase(FailOnDataLoss)) + (FailOnDataLoss -> fail.toString)
      v1.copy(dataSource = v1.dataSource.copy(options = options))
  }

  private def hasOption(source: String, isSet: Boolean): Boolean = isSet || source.takeWhile(_ != '[').equalsIgnoreCase("kafka")
}
