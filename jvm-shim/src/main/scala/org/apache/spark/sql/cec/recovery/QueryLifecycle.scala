package org.apache.spark.sql.cec.recovery

import java.util.concurrent.atomic.AtomicBoolean

import scala.util.control.NonFatal

import com.fasterxml.jackson.databind.JsonNode

import org.apache.spark.internal.Logging
import org.apache.spark.sql.SparkSession
import org.apache.spark.sql.cec.RunContext
import org.apache.spark.sql.cec.agent.{Agent, Json}
import org.apache.spark.sql.cec.exchange.StoreLocations
import org.apache.spark.sql.execution.streaming.runtime.{MicroBatchExecution, StreamExecution}

/**
 * One run of a query whose stores may be ahead of its log, from its first source to its last.
 *
 * @param committed the last batch that was committed before the run
 * @param replay what is to be replayed before its first batch
 * @param margin keeps what a recovery needs within what the sources have; None where they cannot be asked
 * @param flushes whether a run that ends leaves nothing dirty
 * @param asksForCheckpoints whether the agent says when the stores write, by a pipeline's protocol
 */
private[recovery] final class QueryLifecycle(
    session: SparkSession,
    run: RunContext,
    conf: Map[String, String],
    committed: Long,
    replay: Option[Replay],
    acknowledgements: Acknowledgements,
    margin: Option[RetentionGuard],
    flushes: Boolean,
    asksForCheckpoints: Boolean)
    extends Logging {
  private val begun, ended = new AtomicBoolean(false)
  private var lookedNs = System.nanoTime()

  /** In the stream's thread, before a source is made: before the query's first batch. */
  def beforeSources(): Unit = if (begun.compareAndSet(false, true)) {
    session.sparkContext.setLocalProperty(MicroBatchExecution.BATCH_ID_KEY, null) // this thread may have inherited another query's
    replay.foreach(_.begin())
  }

  /**
   * In the stream's thread, as the next batch is planned: a checkpoint that is due is taken, of what the last one has left. Once before a
   * source is asked for new input, and once after, since what there is may force one.
   */
  def checkpointIfDue(): Unit = if (asksForCheckpoints) checkpoint(lastBatch, stopping = false)

  private def checkpoint(batch: Long, stopping: Boolean): Unit = {
    def asked = Json.obj().put("checkpoint", run.checkpoint).put("batch", batch)
    if (Agent.call("checkpoint_due", asked.put("stopping", stopping), conf).get("due").asBoolean) {
      val failed = StoreLocations.flush(run.checkpoint, run.generation, batch + 1, Agent.timeoutMs(conf))
      val taken = asked.put("home", run.home)
      taken.set[JsonNode]("failed", Json.strings(failed))
      Agent.call("checkpoint_taken", taken, conf)
    }
  }

  /** In the stream's thread, before the next batch is planned. */
  def betweenBatches(): Unit = {
    checkpointIfDue()
    val now = System.nanoTime()
    if (now - lookedNs > QueryLifecycle.LookEveryNs) {
      lookedNs = now
      try requests() catch { case NonFatal(failure) => logWarning("Spark CEC: a request to flush is not answered", failure) }
      try margin.foreach(_.keep(lastBatch + 1)) catch {
        case NonFatal(failure) => logWarning("Spark CEC: what the sources still have is not compared with what a recovery needs", failure)
      }
    }
  }

  /** Does what `cec flush` asks for. Between two batches no store is ahead of what Spark has committed. */
  private def requests(): Unit = {
    val asked = Agent.call("flush_requested", Json.obj().put("checkpoint", run.checkpoint), conf).get("request")
    Json.text(asked).foreach { request =>
      val version = lastBatch + 1
      val failed = Flush.ask(run, version, conf)
      val answer = Json.obj().put("checkpoint", run.checkpoint).put("request", request).put("version", version)
      answer.set[JsonNode]("failed", Json.strings(failed))
      Agent.call("flush_done", answer, conf)
    }
  }

  /** The batch that this thread has run last: Spark's own, which it sets for its tasks. */
  private def lastBatch: Long =
    Option(session.sparkContext.getLocalProperty(MicroBatchExecution.BATCH_ID_KEY)).map(_.toLong).getOrElse(committed)

  /**
   * Spark says that the batches of a source up to some offset will not be asked for again, when the next one is planned: that batch is
   * the one that this thread has run last.
   */
  def hold(acknowledge: () => Unit): Unit = {
    announceTime()
    acknowledgements.hold(lastBatch, acknowledge)
  }

  /** Tells the tasks of the batch that is being built how long the one before it took: what a replay would take is judged by that. */
  private def announceTime(): Unit =
    for {
      id <- Option(session.sparkContext.getLocalProperty(StreamExecution.QUERY_ID_KEY))
      query <- Option(session.streams.get(id))
      progress <- Option(query.lastProgress)
      ms <- Option(progress.durationMs.get("triggerExecution"))
    } session.sparkContext.setLocalProperty(RunContext.TimedBatch, Json.arr().add(progress.batchId).add(ms.longValue).toString)

  /**
   * The query has ended, however it did, and its sources are about to be stopped. A clean stop is a checkpoint: all stores write what is
   * dirty, so that the next start has nothing to replay.
   */
  def beforeStop(): Unit = if (ended.compareAndSet(false, true)) {
    margin.foreach(_.stop())
    try {
      val version = new SparkLogs(session, run.checkpoint).lastCommitted + 1
      try if (asksForCheckpoints) checkpoint(version - 1, stopping = true)
      finally if (flushes) Flush.end(run, version, conf)
        .foreach(failure => logWarning(s"Spark CEC: not written at the end of the query, so the next start replays it: $failure"))
      else StoreLocations.end(run.checkpoint, run.generation, version, flush = false, Agent.timeoutMs(conf))
      if (flushes) acknowledgements.give(version - 1)
    } catch {
      case NonFatal(failure) => logWarning("Spark CEC: the query ends with windows that are not in the log; the next start replays them", failure)
    }
  }
}

private object QueryLifecycle {
  /** A request may wait so long. */
  private val LookEveryNs = 1000000000L
}
