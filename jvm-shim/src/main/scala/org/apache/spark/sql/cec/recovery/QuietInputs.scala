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
import org.apache.spark.sql.execution.streaming.runtime.{
  IncrementalExecution, MicroBatchExecution, StreamExecution, StreamingQueryWrapper, WatermarkTracker}
import org.apache.spark.sql.internal.SQLConf
import org.apache.spark.sql.streaming.OutputMode

/**
 * Moves the watermarks of inputs from which no older rows will come (`cec.sources.quiet`, or a read by buckets), and
 * passes that on to the readers of the output. Spark moves a watermark by rows alone, so an input without rows holds all
 * windows open.
 *
 * An input says so while Spark plans a batch (`InputBoundary`). A source that does not answer says nothing. Only sources
 * are asked that are known to answer for now: Kafka and the output of another query, both with this setting, and reads by
 * buckets.
 *
 * A read by buckets knows where the batch that Spark plans will end. If all inputs are read so, and all operators
 * are known to allow it, the watermark moves to that end at once. So a window comes in the batch of its last bucket.
 *
 * The watermark goes into Spark's offset log with the next batch, as one that comes from rows. So a replay has the same.
 * All methods run in the stream's thread.
 *
 * @param plan the query with its original sources
 * @param mode the query's output mode
 * @param stepMs by how much to move a watermark at least, because each step may cost a batch without rows; None if the
 *   user does not vouch for the clock. Then only reads by buckets are asked, whose plans have steps of their own
 * @param channel notes a boundary with the output; None if the output has no log
 */
private[recovery] final class QuietInputs(
    session: SparkSession, plan: LogicalPlan, mode: OutputMode, stepMs: Option[Long], channel: Option[InputBoundary => Unit]) extends Logging {
  private def nodes: Seq[EventTimeWatermark] = plan.collect { case watermark: EventTimeWatermark => watermark }

  /**
   * The sources below each watermark, by the id of its node, and the column of each that has the time, if that is known.
   * Only those whose sources can all be asked, and whose rows come straight of rows of a source: a stateful operator
   * below may hold older ones back. The two sides of a self-join or self-union have one id.
   */
  private val watermarks: Map[UUID, Set[(LogicalPlan, Option[String])]] = nodes.groupBy(_.nodeId)
    .filter { case (_, sides) => sides.forall(side => QuietInputs.isRowByRow(side.child)) }
    .map { case (id, sides) => id -> sides.flatMap(QuietInputs.findTimes).toSet }
    .filter { case (_, sources) => sources.nonEmpty && sources.forall { case (source, _) => canBeAsked(source) } }

  private val passedOn =
    channel.map(new PassedOn(plan, mode, stepMs.getOrElse(QuietInputs.StepMs), canBeAsked, _)).filterNot(_.isEmpty)

  /** Operators other than windows drop a row at the watermark itself. */
  private val rowMs = if (TimeColumns.areAllWindows(plan)) 0L else 1L
  private val closesInTime = nodes.nonEmpty && nodes.forall(node => watermarks.contains(node.nodeId)) &&
    watermarks.values.flatten.forall { case (source, column) => column.isDefined && QuietInputs.bucketTimeOf(source) == column } &&
    QuietInputs.findSources(plan).subsetOf(watermarks.values.flatten.map(_._1).toSet) && QuietInputs.mayCloseInTime(plan, session)
  private val known = mutable.Map.empty[LogicalPlan, InputBoundary]
  private val movedToMs = mutable.Map.empty[UUID, Long]
  private var isWorking = true

  private def canBeAsked(source: LogicalPlan): Boolean =
    if (stepMs.isDefined) QuietInputs.canBeAsked(source) else QuietInputs.isReadByBuckets(source)

  /** Whether no answer of a source matters. */
  def isEmpty: Boolean = watermarks.isEmpty && passedOn.isEmpty

  /** The input of a source; None if its answers do not matter. */
  def of(source: LogicalPlan): Option[QuietInput] =
    Option.when(passedOn.exists(_.sources(source)) || watermarks.values.exists(_.exists(_._1 == source)))(new QuietInput(note(source, _)))

  private def note(source: LogicalPlan, boundary: InputBoundary): Unit = {
    known += source -> boundary
    passedOn.foreach(_.passOn(known, findLast.map { case (_, last) => last.offsetSeqMetadata.batchWatermarkMs }))
    if (isWorking && !boundary.isEmpty) try if (closesInTime) moveToPlan() else move() catch {
      case NonFatal(failure) =>
        isWorking = false
        logWarning("Spark CEC: quiet inputs hold the watermark back until a restart, because this release of Spark has another tracker", failure)
    }
  }

  private def move(): Unit = {
    val due = for {
      (node, sources) <- watermarks
      times = sources.toSeq.map { case (source, column) => known.get(source).flatMap(_.of(column)) }
      if times.forall(_.isDefined)
      until = times.flatten.min - rowMs
      if movedToMs.get(node).forall(until - _ >= stepOf(sources.map(_._1)))
    } yield node -> until
    if (due.nonEmpty) findLast.filter { case (_, last) => mayMove(due.keySet, last) }.foreach { case (execution, last) =>
      last.executedPlan.foreach {
        case watermark: EventTimeWatermarkExec => due.get(watermark.nodeId).foreach(watermark.eventTimeStats.add(_)) // as a row of that time
        case _ =>
      }
      forgetPlanned(last)
      QuietInputs.trackerOf(execution).updateWatermark(last.executedPlan)
      movedToMs ++= due
    }
  }

  /**
   * Moves the watermark to the end of the batch that Spark plans. Spark takes a row for late by the watermark of the batch
   * before, and closes windows by that of this batch. An input that has not been asked yet counts up to its batch before.
   */
  private def moveToPlan(): Unit = {
    val ends = for (node <- nodes; (source, column) <- watermarks(node.nodeId).toSeq) yield
      known.get(source).flatMap(_.planned.get(column.get)).map(_ - EventTimeWatermark.getDelayMs(node.delay) - rowMs)
    if (ends.forall(_.isDefined)) for (execution <- findExecution; tracker <- Option(QuietInputs.trackerOf(execution))) {
      val untilMs = ends.flatten.min
      if (untilMs > tracker.currentWatermark) {
        Option(execution.lastExecution).foreach(forgetPlanned)
        tracker.setWatermark(untilMs)
      }
    }
  }

  /** If Spark has planned the next batch before and found nothing to do, it refuses another watermark for that batch. */
  private def forgetPlanned(last: IncrementalExecution): Unit = last.watermarkPropagator.purge(last.currentBatchId + 1)

  /** By how much the watermark over these sources moves at least. */
  private def stepOf(sources: Set[LogicalPlan]): Long = if (sources.forall(QuietInputs.isReadByBuckets)) 1L else stepMs.getOrElse(1L)

  /**
   * Whether these watermarks may move without the others. If the highest one counts (`multipleWatermarkPolicy=max`), rows
   * of an input that lags would be late.
   */
  private def mayMove(due: Set[UUID], last: IncrementalExecution): Boolean = {
    val policy = last.offsetSeqMetadata.conf.get(SQLConf.STREAMING_MULTIPLE_WATERMARK_POLICY.key)
    policy.exists(_.equalsIgnoreCase("min")) || nodes.map(_.nodeId).toSet.subsetOf(due)
  }

  /** The execution of this query, and that of its last batch; None before its first batch. */
  private def findLast: Option[(MicroBatchExecution, IncrementalExecution)] =
    for (execution <- findExecution; last <- Option(execution.lastExecution)) yield (execution, last)

  private def findExecution: Option[MicroBatchExecution] = for {
    id <- Option(session.sparkContext.getLocalProperty(StreamExecution.QUERY_ID_KEY))
    wrapper <- Option(session.streams.get(id)).collect { case wrapper: StreamingQueryWrapper => wrapper }
    execution <- Option(wrapper.streamingQuery).collect { case execution: MicroBatchExecution => execution }
  } yield execution
}

private[recovery] object QuietInputs {
  def findSources(plan: LogicalPlan): Set[LogicalPlan] = plan.collectLeaves().filter(_.isStreaming).toSet

  /** How often readers of the output learn of a boundary at most, if no setting says so. */
  private val StepMs = 1000L

  /** The column of whose time a source is read by buckets of stable rows; None if it is read otherwise. */
  private def bucketTimeOf(source: LogicalPlan): Option[String] = source match {
    case v2: StreamingRelationV2 => Some(v2.table).collect { case table: CecTable if !table.isTentative => table.bucketTime }.flatten
    case _ => None
  }

  def isReadByBuckets(source: LogicalPlan): Boolean = source match {
    case v2: StreamingRelationV2 => Some(v2.table).collect { case table: CecTable => table.isReadByBuckets }.contains(true)
    case _ => false
  }

  def canBeAsked(source: LogicalPlan): Boolean = source match {
    case v2: StreamingRelationV2 => KafkaTopics.areReadBy(v2) || v2.table.isInstanceOf[CecTable]
    case _ => false
  }

  /** Whether each row of this plan comes of one row of a source, as far as is known. */
  def isRowByRow(plan: LogicalPlan): Boolean =
    !plan.exists(node => StatefulOperators.kind(node).isDefined || !DeterministicNodes.isStateless(node))

  /**
   * Whether windows may be closed in the batch that has their last rows. That is known of operators that take in all rows of
   * a batch before they look at the watermark. A function over a state sees the watermark while it has rows. Of joins only
   * outer ones would gain by it, and Spark's rule for the rows that a join need not keep has changed between releases. A deduplication within the watermark would forget its rows earlier.
   *
   * Spark must tell the watermark for late rows from that for closing, too, as it does unless an old setting forbids it.
   */
  private def mayCloseInTime(plan: LogicalPlan, session: SparkSession): Boolean =
    plan.collect { case node => StatefulOperators.kind(node) }.flatten.forall(ClosedByBatch) &&
      session.sessionState.conf.getConf(SQLConf.STATEFUL_OPERATOR_ALLOW_MULTIPLE)

  private val ClosedByBatch = Set("aggregation", "deduplication", "distinct")

  private def findTimes(watermark: EventTimeWatermark): Set[(LogicalPlan, Option[String])] = {
    val time = TimeColumns.sourceColumn(watermark.child, watermark.eventTime)
    findSources(watermark).map(source => (source, time.collect { case (`source`, column) => column }))
  }

  /** Spark hides the tracker from others than its own subclasses. */
  private def trackerOf(execution: MicroBatchExecution): WatermarkTracker =
    classOf[MicroBatchExecution].getMethod("watermarkTracker").invoke(execution).asInstanceOf[WatermarkTracker]
}

/**
 * What an input says of the rows that will come from it.
 *
 * @param quietMs the wall clock, in ms since 1970, up to which all rows have been read. The user vouches that a later row
 *   is at most as old as the watermark's delay. None if there may be more
 * @param columns by column, the time below which no row will come, in ms since 1970; whatever the clock says
 * @param planned by column, that time once the batch has run that Spark plans now; empty if nobody knows it
 */
private[cec] final case class InputBoundary(quietMs: Option[Long], columns: Map[String, Long] = Map.empty, planned: Map[String, Long] = Map.empty) {
  def isEmpty: Boolean = quietMs.isEmpty && columns.isEmpty

  /** The time of a row that would move a watermark over this column no further than the boundary allows. */
  def of(column: Option[String]): Option[Long] = (quietMs ++ column.flatMap(columns.get)).maxOption
}

/** One source whose boundary matters. */
private[recovery] final class QuietInput(note: InputBoundary => Unit) {
  /** Notes the answer of a source that was asked for new input. */
  def answer(boundary: InputBoundary): Unit = note(boundary)
}

/**
 * Passes boundaries on with the output of a query. All input up to a time is then in the batches that are there.
 *
 * A query that works row by row passes the wall clock on, because each of its rows comes of a row of its input, and the
 * boundaries of columns that it leaves as they are. An aggregation over windows, in append mode, passes its watermark on:
 * a window to come ends after it. Other queries pass nothing on.
 */
private final class PassedOn(
    plan: LogicalPlan, mode: OutputMode, stepMs: Long, canBeAsked: LogicalPlan => Boolean, write: InputBoundary => Unit) extends Logging {
  private val isRowByRow = QuietInputs.isRowByRow(plan)
  private val ends = TimeColumns.endsOfWindows(plan, mode)
  private val unchanged =
    if (isRowByRow) plan.output.flatMap(column => TimeColumns.sourceColumn(plan, column).map(column.name -> _)) else Nil
  private var written = InputBoundary(None)

  val sources: Set[LogicalPlan] =
    Option(QuietInputs.findSources(plan)).filter(found => found.nonEmpty && found.forall(canBeAsked)).getOrElse(Set.empty)

  def isEmpty: Boolean = sources.isEmpty || !(isRowByRow || ends.nonEmpty)

  /** @param watermarkMs of the last batch; None before the first one */
  def passOn(known: collection.Map[LogicalPlan, InputBoundary], watermarkMs: Option[Long]): Unit = {
    val quiet = sources.toSeq.map(known.get(_).flatMap(_.quietMs))
    val quietMs = Option.when(isRowByRow && quiet.forall(_.isDefined))(quiet.flatten.min)
    val kept = for {
      (name, (source, column)) <- unchanged
      ms <- known.get(source).flatMap(_.columns.get(column))
    } yield name -> ms
    val closed = for (ms <- watermarkMs.toSeq if ms > 0; name <- ends) yield name -> ms
    val boundary = InputBoundary(quietMs, (kept ++ closed).toMap)
    if (isDue(boundary)) {
      written = boundary
      try write(boundary) catch {
        case NonFatal(failure) =>
          logWarning("Spark CEC: readers of the output wait for rows, because it was not noted up to when it is complete", failure)
      }
    }
  }

  private def isDue(boundary: InputBoundary): Boolean = {
    val times = boundary.quietMs.map(ms => ms -> written.quietMs) ++
      boundary.columns.map { case (name, ms) => ms -> written.columns.get(name) }
    times.exists { case (ms, before) => before.forall(ms - _ >= stepMs) }
  }
}
