package org.apache.spark.sql.cec.recovery

import java.util.concurrent.atomic.AtomicBoolean

import scala.util.control.NonFatal

import org.apache.spark.internal.Logging
import org.apache.spark.sql.SparkSession
import org.apache.spark.sql.catalyst.plans.logical.LogicalPlan
import org.apache.spark.sql.cec.RunContext
import org.apache.spark.sql.cec.agent.{Agent, BetweenBatchesRequest, CheckpointDueRequest, CheckpointTakenRequest, Json}
import org.apache.spark.sql.cec.exchange.StoreLocations
import org.apache.spark.sql.cec.ui.CecTab
import org.apache.spark.sql.execution.streaming.runtime.StreamExecution

/**
 * The events of one run, from its first source to its last, if the query's stores may be ahead of the log.
 *
 * @param committed the last batch that was committed before the run
 * @param replay the batches to replay before the first batch
 * @param end of the batches, whose write may still be under way when the next batch is planned
 * @param quiet the inputs whose watermarks follow the clock; None if none does
 * @param margin guards the input that a recovery needs; None if no source can be asked
 * @param flushes whether a run writes its dirty windows at its end
 * @param asksForCheckpoints whether the agent decides when the stores write, by a pipeline's protocol
 */
private[recovery] final class QueryLifecycle(
    session: SparkSession,
    run: RunContext,
    conf: Map[String, String],
    committed: Long,
    replay: Option[Replay],
    end: BatchEnd,
    quiet: Option[QuietInputs],
    acknowledgements: Acknowledgements,
    margin: Option[ThinMarginGuard],
    flushes: Boolean,
    asksForCheckpoints: Boolean)
    extends SourceEvents with Logging {
  private val begun, ended = new AtomicBoolean(false)
  private var lastLookNs = System.nanoTime()

  override def quietInput(source: LogicalPlan): Option[QuietInput] = quiet.flatMap(_.of(source))

  /** Begins the replay. */
  override def beforeSources(): Unit = if (begun.compareAndSet(false, true)) {
    SourceEvents.forgetBatch(session)
    replay.foreach(_.begin())
  }

  /**
   * Takes a checkpoint of the last batch if it is due. Runs before a source is asked for new input, and again after,
   * because new input may force a checkpoint.
   */
  override def checkpointIfDue(): Unit = if (asksForCheckpoints) takeCheckpoint(lastBatch, stopping = false)

  private def takeCheckpoint(batch: Long, stopping: Boolean): Unit = {
    if (Agent.call(CheckpointDueRequest(run.checkpoint, batch, stopping), conf).due) {
      val failed = StoreLocations.flush(run.checkpoint, run.generation, batch + 1, Agent.timeoutMs(conf))
      Agent.call(CheckpointTakenRequest(run.checkpoint, run.home, batch, failed), conf)
    }
  }

  /** Does what the agent orders. */
  override def betweenBatches(): Unit = {
    end.awaitWrite()
    checkpointIfDue()
    val now = System.nanoTime()
    if (now - lastLookNs > QueryLifecycle.LookEveryNs) {
      lastLookNs = now
      try followOrders() catch {
        case NonFatal(failure) => logWarning("Spark CEC: requests to flush and the sources are looked at again after the next batch", failure)
      }
    }
  }

  /**
   * Asks the agent why the stores must write now, and makes them. Between two batches no store is ahead of Spark's
   * commits.
   */
  private def followOrders(): Unit = {
    val version = lastBatch + 1
    val answer = margin.flatMap(_.takeAnswer())
    val orders = Agent.call(BetweenBatchesRequest(run.checkpoint, run.home, version, answer), conf)
    orders.request.foreach(request => Flush.ask(run, version, Some(request), conf))
    // Without an answer of the sources the agent has compared nothing.
    if (answer.isDefined) CecTab.queries(session.sparkContext).foreach(_.warn(run.checkpoint, orders.thin))
    orders.thin.foreach(why => margin.foreach(_.follow(why, version, orders.deletes)))
  }

  private def lastBatch: Long = SourceEvents.lastBatch(session).getOrElse(committed)

  /**
   * Holds back an acknowledgement. Spark acknowledges a source when it plans the next batch, so this is for the last
   * batch that ran.
   */
  override def hold(acknowledge: () => Unit): Unit = {
    end.awaitWrite() // Spark may plan a batch without asking for new input: with availableNow and a source that it wraps
    announceTime()
    acknowledgements.hold(lastBatch, acknowledge)
  }

  /** Tells the next batch's tasks how long the last batch took. The agent estimates replays from that. */
  private def announceTime(): Unit =
    for {
      id <- Option(session.sparkContext.getLocalProperty(StreamExecution.QUERY_ID_KEY))
      query <- Option(session.streams.get(id))
      progress <- Option(query.lastProgress)
      ms <- Option(progress.durationMs.get("triggerExecution"))
    } session.sparkContext.setLocalProperty(RunContext.TimedBatchProperty, Json.arr().add(progress.batchId).add(ms.longValue).toString)

  /**
   * A clean stop is a checkpoint: all stores write their dirty windows, so the next start replays nothing.
   */
  override def beforeStop(): Unit = if (ended.compareAndSet(false, true)) {
    margin.foreach(_.stop())
    try end.awaitWrite() catch {
      case NonFatal(failure) => logWarning("Spark CEC: the last batch is not in the log; the next start makes it again by a replay", failure)
    }
    try {
      val version = new SparkLogs(session, run.checkpoint).lastCommitted + 1
      try if (asksForCheckpoints) takeCheckpoint(version - 1, stopping = true)
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
  /** The shortest time between two looks. */
  private val LookEveryNs = 1000000000L
}
