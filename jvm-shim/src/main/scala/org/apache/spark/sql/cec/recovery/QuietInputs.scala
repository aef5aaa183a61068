package org.apache.spark.sql.cec.recovery

import java.util.UUID

import scala.collection.mutable
import scala.util.control.NonFatal

import org.apache.spark.internal.Logging
import org.apache.spark.sql.SparkSession
import org.apache.spark.sql.catalyst.plans.logical.{EventTimeWatermark, LogicalPlan}
import org.apache.spark.sql.catalyst.streaming.StreamingRelationV2
import org.apache.spark.sql.cec.source.CecTable
import org.apache.spark.sql.execution.streaming.operators.stateful.EventTimeWatermarkExec
import org.apache.spark.sql.execution.streaming.runtime.{MicroBatchExecution, StreamExecution, StreamingQueryWrapper, WatermarkTracker}

/**
 * Moves the watermarks of inputs that have no more rows with the wall clock (`cec.sources.quiet`). Spark moves a
 * watermark by rows alone, so an input without rows holds all windows open.
 *
 * An input is quiet when its source answered, while Spark planned a batch, that it has nothing beyond what was read.
 * Then each row that existed when the source was asked has been read. The user vouches that a later row is at most as
 * old as the watermark's delay. A source that does not answer is never quiet. Only sources are asked that are known to
 * answer for now: Kafka, and the output of a query whose own inputs are known to be quiet.
 *
 * A query without state passes the time on with its output (`channel`), because each of its rows comes of a row of its
 * input. A query with state does not: its rows may come of older input.
 *
 * The watermark goes into Spark's offset log with the next batch, as one that comes from rows. So a replay has the same.
 * All methods run in the stream's thread.
 *
 * @param plan the query with its original sources
 * @param stepMs by how much to move a watermark at least, because each step may cost a batch without rows
 * @param channel notes with the output up to when all input is in it; None if nobody reads the output, or if it has state
 */
private[recovery] final class QuietInputs(session: SparkSession, plan: LogicalPlan, stepMs: Long, channel: Option[Long => Unit]) extends Logging {
  /**
   * The sources below each watermark, by the id of its node; only those whose sources can all be asked. The two sides of
   * a self-join or self-union have one id.
   */
  private val watermarks: Map[UUID, Set[LogicalPlan]] = plan.collect { case watermark: EventTimeWatermark => watermark }
    .groupMapReduce(_.nodeId)(QuietInputs.findSources(_))(_ ++ _)
    .filter { case (_, sources) => sources.nonEmpty && sources.forall(QuietInputs.canBeAsked) }

  /** All sources, if the query passes the time on and all of them can be asked. */
  private val passedOn: Set[LogicalPlan] =
    Option(QuietInputs.findSources(plan)).filter(sources => channel.isDefined && sources.nonEmpty && sources.forall(QuietInputs.canBeAsked))
      .getOrElse(Set.empty)

  /** When each quiet source was asked. */
  private val quietSinceMs = mutable.Map.empty[LogicalPlan, Long]
  private val movedToMs = mutable.Map.empty[UUID, Long]
  private var passedOnMs = Long.MinValue
  private var isWorking = true

  /** Whether no answer of a source matters. */
  def isEmpty: Boolean = watermarks.isEmpty && passedOn.isEmpty

  /** The input of a source; None if its answers do not matter. */
  def of(source: LogicalPlan): Option[QuietInput] =
    Option.when(passedOn(source) || watermarks.values.exists(_(source)))(new QuietInput(note(source, _)))

  /** Notes that a source was quiet when it was asked at this time; None: it was not. */
  private def note(source: LogicalPlan, askedMs: Option[Long]): Unit = {
    askedMs.fold(quietSinceMs -= source)(at => quietSinceMs += source -> at)
    if (askedMs.isDefined) {
      passOn()
      if (isWorking) try move() catch {
        case NonFatal(failure) =>
          isWorking = false
          logWarning("Spark CEC: quiet inputs hold the watermark back until a restart, because this release of Spark has another tracker", failure)
      }
    }
  }

  /** The channel's reader has then all rows that come of input up to this time. */
  private def passOn(): Unit = if (passedOn.nonEmpty && passedOn.forall(quietSinceMs.contains)) {
    val until = passedOn.map(quietSinceMs).min
    if (passedOnMs == Long.MinValue || until - passedOnMs >= stepMs) {
      passedOnMs = until
      try channel.foreach(_(until)) catch {
        case NonFatal(failure) => logWarning("Spark CEC: readers of the output wait for rows, because it was not noted that all input is in it", failure)
      }
    }
  }

  private def move(): Unit = {
    val due = for {
      (node, sources) <- watermarks
      if sources.forall(quietSinceMs.contains)
      until = sources.map(quietSinceMs).min
      if movedToMs.get(node).forall(until - _ >= stepMs)
    } yield node -> until
    if (due.nonEmpty) findExecution.foreach { execution =>
      val last = execution.lastExecution
      last.executedPlan.foreach {
        case watermark: EventTimeWatermarkExec => due.get(watermark.nodeId).foreach(watermark.eventTimeStats.add(_)) // as a row of that time
        case _ =>
      }
      // If Spark has planned the next batch before and found nothing to do, it refuses another watermark for that batch.
      last.watermarkPropagator.purge(last.currentBatchId + 1)
      QuietInputs.trackerOf(execution).updateWatermark(last.executedPlan)
      movedToMs ++= due
    }
  }

  /** The execution of this query; None before its first batch. */
  private def findExecution: Option[MicroBatchExecution] = for {
    id <- Option(session.sparkContext.getLocalProperty(StreamExecution.QUERY_ID_KEY))
    wrapper <- Option(session.streams.get(id)).collect { case wrapper: StreamingQueryWrapper => wrapper }
    execution <- Option(wrapper.streamingQuery).collect { case execution: MicroBatchExecution => execution }
    if execution.lastExecution != null
  } yield execution
}

private object QuietInputs {
  private def findSources(watermark: LogicalPlan): Set[LogicalPlan] = watermark.collectLeaves().filter(_.isStreaming).toSet

  private def canBeAsked(source: LogicalPlan): Boolean = source match {
    case v2: StreamingRelationV2 => KafkaTopics.areReadBy(v2) || v2.table.isInstanceOf[CecTable]
    case _ => false
  }

  /** Spark hides the tracker from others than its own subclasses. */
  private def trackerOf(execution: MicroBatchExecution): WatermarkTracker =
    classOf[MicroBatchExecution].getMethod("watermarkTracker").invoke(execution).asInstanceOf[WatermarkTracker]
}

/** One source whose quiet matters. */
private[recovery] final class QuietInput(note: Option[Long] => Unit) {
  /** Notes up to when, by the wall clock, a source that was asked for new input has been read; None: it has more. */
  def answer(quietMs: Option[Long]): Unit = note(quietMs)
}
