package org.apache.spark.sql.cec.recovery

import java.util

import org.apache.spark.sql.catalyst.plans.logical.LogicalPlan
import org.apache.spark.sql.catalyst.streaming.StreamingRelationV2
import org.apache.spark.sql.cec.source.BoundedChannel
import org.apache.spark.sql.connector.catalog.{SupportsRead, Table}
import org.apache.spark.sql.connector.read.{Scan, ScanBuilder}
import org.apache.spark.sql.connector.read.streaming._
import org.apache.spark.sql.execution.datasources.DataSource
import org.apache.spark.sql.execution.streaming.{Offset => OffsetV1, Source}
import org.apache.spark.sql.execution.streaming.runtime.StreamingRelation
import org.apache.spark.sql.util.CaseInsensitiveStringMap

/**
 * Wraps the sources of a plan, V1 and V2. The wrappers tell the run when a source is made, is asked for new input, is
 * acknowledged, and stops.
 */
private[recovery] object WrappedSources {
  def wrap(plan: LogicalPlan, run: SourceEvents): LogicalPlan = {
    // A relation that occurs twice is one source to Spark, which compares by equality. So keep one wrapper for it.
    val wrappers = new util.HashMap[LogicalPlan, LogicalPlan]()
    Plans.transform(plan) {
      case relation @ (_: StreamingRelationV2 | _: StreamingRelation) => wrappers.computeIfAbsent(relation, wrapRelation(_, run))
    }
  }

  private def wrapRelation(relation: LogicalPlan, run: SourceEvents): LogicalPlan = relation match {
    case v2: StreamingRelationV2 =>
      val table = v2.table match {
        case readable: SupportsRead => wrapTable(readable, run, run.quietInput(relation))
        case other => other
      }
      v2.copy(table = table, v1Relation = v2.v1Relation.map(wrapRelation(_, run))) // Spark may take the V1 relation
    case v1: StreamingRelation => v1.copy(dataSource = new WrappedDataSource(v1.dataSource, source => {
      run.beforeSources()
      WrappedSource(source, run)
    }))
    case other => other
  }

  private def wrapTable(table: SupportsRead, run: SourceEvents, quiet: Option[QuietInput]): Table = new TableDelegate(table) with SupportsRead {
    override def newScanBuilder(options: CaseInsensitiveStringMap): ScanBuilder = {
      val builder = table.newScanBuilder(options)
      () => new WrappedScan(builder.build(), run, quiet)
    }
  }
}

private final class WrappedScan(inner: Scan, run: SourceEvents, quiet: Option[QuietInput]) extends ScanDelegate(inner) {
  override def toMicroBatchStream(checkpointLocation: String): MicroBatchStream = {
    run.beforeSources()
    WrappedMicroBatches(inner.toMicroBatchStream(checkpointLocation), run, quiet)
  }
}

/** The events that both kinds of stream send to the run. */
private sealed trait LifecycleStream extends SparkDataStream {
  protected def run: SourceEvents
  protected def inner: SparkDataStream

  /** The input, if its quiet matters. */
  protected def quiet: Option[QuietInput] = None

  protected final def planBatch[A](end: => A): A = {
    run.betweenBatches()
    val found = end
    run.checkpointIfDue()
    found
  }

  protected final def stopStream(): Unit = try run.beforeStop() finally inner.stop()
}

/**
 * Traits that tell Spark how to plan a stream's batches. A wrapper has the traits of its stream. Real-time mode is
 * missing, because it has no batches to replay.
 */
private sealed trait Admitting extends SupportsAdmissionControl with LifecycleStream {
  private def admitting = inner.asInstanceOf[SupportsAdmissionControl]
  override def getDefaultReadLimit: ReadLimit = admitting.getDefaultReadLimit

  override def latestOffset(start: Offset, limit: ReadLimit): Offset = planBatch {
    val askedMs = System.currentTimeMillis()
    val found = admitting.latestOffset(start, limit)
    quiet.foreach(_.answer(if (hasFixedEnd) InputBoundary(None) else boundaryOf(start, found, askedMs)))
    found
  }

  private def boundaryOf(start: Offset, found: Offset, askedMs: Long): InputBoundary = inner match {
    case channel: BoundedChannel => channel.boundary
    case _ => InputBoundary(Option.when(isQuiet(start, found))(askedMs))
  }

  /** Whether the end was fixed before the source was asked, so that there may be rows behind it. */
  protected def hasFixedEnd: Boolean = false

  /** Whether the source has no rows behind `start`, however many of them a batch may have. */
  private def isQuiet(start: Offset, found: Offset): Boolean =
    start != null && found != null && found.json == start.json && Option(admitting.reportLatestOffset).exists(_.json == start.json)
  override def reportLatestOffset: Offset = admitting.reportLatestOffset
}

private sealed trait AvailableNow extends Admitting with SupportsTriggerAvailableNow {
  private var isPrepared = false
  override protected def hasFixedEnd: Boolean = isPrepared

  override def prepareForTriggerAvailableNow(): Unit = {
    isPrepared = true
    inner.asInstanceOf[SupportsTriggerAvailableNow].prepareForTriggerAvailableNow()
  }
}

private sealed trait Seeing extends AcceptsLatestSeenOffset with LifecycleStream {
  override def setLatestSeenOffset(offset: Offset): Unit = inner.asInstanceOf[AcceptsLatestSeenOffset].setLatestSeenOffset(offset)
}

private sealed class WrappedMicroBatches(
    protected val inner: MicroBatchStream, protected val run: SourceEvents, override protected val quiet: Option[QuietInput])
    extends MicroBatchDelegate(inner) with LifecycleStream {
  override def latestOffset: Offset = planBatch(inner.latestOffset)
  override def commit(end: Offset): Unit = run.hold(() => inner.commit(end))
  override def stop(): Unit = stopStream()
}

private object WrappedMicroBatches {
  def apply(stream: MicroBatchStream, run: SourceEvents, quiet: Option[QuietInput]): MicroBatchStream =
     (stream, stream.isInstanceOf[AcceptsLatestSeenOffset]) match {
    case (_: SupportsTriggerAvailableNow, false) => new WrappedMicroBatches(stream, run, quiet) with AvailableNow
    case (_: SupportsTriggerAvailableNow, true) => new WrappedMicroBatches(stream, run, quiet) with AvailableNow with Seeing
    case (_: SupportsAdmissionControl, false) => new WrappedMicroBatches(stream, run, quiet) with Admitting
    case (_: SupportsAdmissionControl, true) => new WrappedMicroBatches(stream, run, quiet) with Admitting with Seeing
    case (_, false) => new WrappedMicroBatches(stream, run, quiet)
    case (_, true) => new WrappedMicroBatches(stream, run, quiet) with Seeing
  }
}

private sealed class WrappedSource(protected val inner: Source, protected val run: SourceEvents) extends SourceDelegate(inner) with LifecycleStream {
  override def getOffset: Option[OffsetV1] = planBatch(inner.getOffset)
  override def commit(end: OffsetV1): Unit = run.hold(() => inner.commit(end))
  override def commit(end: Offset): Unit = run.hold(() => inner.commit(end))
  override def stop(): Unit = stopStream()
}

private object WrappedSource {
  def apply(source: Source, run: SourceEvents): Source = (source, source.isInstanceOf[AcceptsLatestSeenOffset]) match {
    case (_: SupportsTriggerAvailableNow, false) => new WrappedSource(source, run) with AvailableNow
    case (_: SupportsTriggerAvailableNow, true) => new WrappedSource(source, run) with AvailableNow with Seeing
    case (_: SupportsAdmissionControl, false) => new WrappedSource(source, run) with Admitting
    case (_: SupportsAdmissionControl, true) => new WrappedSource(source, run) with Admitting with Seeing
    case (_, false) => new WrappedSource(source, run)
    case (_, true) => new WrappedSource(source, run) with Seeing
  }
}

/**
 * A data source that makes its sources through `makeSource`. The class overrides equality, because a tree transform
 * drops a new case class with equal fields.
 */
private[recovery] final class WrappedDataSource(inner: DataSource, makeSource: (=> Source) => Source)
    extends DataSource(
      inner.sparkSession, inner.className, inner.paths, inner.userSpecifiedSchema, inner.partitionColumns, inner.bucketSpec,
      inner.options, inner.catalogTable, inner.userSpecifiedStreamingSourceName) {
  override def canEqual(that: Any): Boolean = that.isInstanceOf[WrappedDataSource]
  override def equals(that: Any): Boolean = that match {
    case other: AnyRef => this eq other
    case _ => false
  }
  override def hashCode: Int = System.identityHashCode(this)
  override def createSource(metadataPath: String): Source = makeSource(inner.createSource(metadataPath))
}
