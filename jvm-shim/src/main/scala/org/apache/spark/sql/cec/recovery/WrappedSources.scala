package org.apache.spark.sql.cec.recovery

import java.util
import java.util.Optional

import org.apache.spark.sql.catalyst.plans.logical.LogicalPlan
import org.apache.spark.sql.catalyst.streaming.StreamingRelationV2
import org.apache.spark.sql.connector.catalog.{Column, SupportsRead, Table, TableCapability}
import org.apache.spark.sql.connector.expressions.Transform
import org.apache.spark.sql.connector.metric.{CustomMetric, CustomTaskMetric}
import org.apache.spark.sql.connector.read._
import org.apache.spark.sql.connector.read.streaming._
import org.apache.spark.sql.execution.datasources.DataSource
import org.apache.spark.sql.execution.streaming.{Offset => OffsetV1, Source}
import org.apache.spark.sql.execution.streaming.runtime.{AvailableNowDataStreamWrapper, StreamingRelation}
import org.apache.spark.sql.types.StructType
import org.apache.spark.sql.util.CaseInsensitiveStringMap

/** What a query's sources are asked for at three moments; all else goes through to the source itself. */
private[recovery] trait SourceHooks {
  /** In the stream's thread, before a source is made: before the query's first batch. */
  def beforeSources(): Unit

  /** In the stream's thread, before the next batch is planned. */
  def betweenBatches(): Unit

  /** Spark says that the batches of a source up to some offset will not be asked for again. */
  def hold(acknowledge: () => Unit): Unit

  /** The query has ended, however it did, and its sources are about to be stopped. */
  def beforeStop(): Unit
}

/** Wraps the sources of a plan, V1 and V2. */
private[recovery] object WrappedSources {
  def wrap(plan: LogicalPlan, hooks: SourceHooks): LogicalPlan = {
    // A relation that occurs twice is one source to Spark, which tells by equality: keep one wrapper for it.
    val wrappers = new util.HashMap[LogicalPlan, LogicalPlan]()
    Plans.transform(plan) {
      case relation @ (_: StreamingRelationV2 | _: StreamingRelation) => wrappers.computeIfAbsent(relation, wrapped(_, hooks))
    }
  }

  private def wrapped(relation: LogicalPlan, hooks: SourceHooks): LogicalPlan = relation match {
    case v2: StreamingRelationV2 =>
      val table = v2.table match {
        case readable: SupportsRead => new WrappedTable(readable, hooks)
        case other => other
      }
      v2.copy(table = table, v1Relation = v2.v1Relation.map(wrapped(_, hooks))) // Spark may be told to take the V1 one
    case v1: StreamingRelation => v1.copy(dataSource = new WrappedDataSource(v1.dataSource, hooks))
    case other => other
  }
}

private final class WrappedTable(inner: Table with SupportsRead, hooks: SourceHooks) extends Table with SupportsRead {
  override def name: String = inner.name
  override def schema: StructType = inner.schema
  override def columns: Array[Column] = inner.columns
  override def partitioning: Array[Transform] = inner.partitioning
  override def properties: util.Map[String, String] = inner.properties
  override def capabilities: util.Set[TableCapability] = inner.capabilities
  override def newScanBuilder(options: CaseInsensitiveStringMap): ScanBuilder = {
    val builder = inner.newScanBuilder(options)
    () => new WrappedScan(builder.build(), hooks)
  }
}

private final class WrappedScan(inner: Scan, hooks: SourceHooks) extends Scan {
  override def readSchema: StructType = inner.readSchema
  override def description: String = inner.description
  override def supportedCustomMetrics: Array[CustomMetric] = inner.supportedCustomMetrics
  override def reportDriverMetrics: Array[CustomTaskMetric] = inner.reportDriverMetrics
  override def columnarSupportMode: Scan.ColumnarSupportMode = inner.columnarSupportMode
  override def toMicroBatchStream(checkpointLocation: String): MicroBatchStream = {
    hooks.beforeSources()
    new WrappedStream(inner.toMicroBatchStream(checkpointLocation), hooks)
  }
}

/**
 * What V1 and V2 wrappers have in common: all that Spark's engine asks of a stream by its traits. Each has a stand-in that
 * does what the engine does with a stream that lacks the trait.
 */
private trait WrappedAdmission extends SupportsTriggerAvailableNow with ReportsSourceMetrics {
  protected def inner: SparkDataStream
  protected def hooks: SourceHooks

  /** Spark's stand-in for a source that does not support `Trigger.AvailableNow` itself; made when it is asked for. */
  private var standIn: Option[AvailableNowDataStreamWrapper] = None

  /** What a source without admission control answered last: to the engine its latest offset is what it has just given. */
  private var answered: Offset = _

  /** What a source without admission control answers. */
  protected def unlimited(): Offset

  override def prepareForTriggerAvailableNow(): Unit = inner match {
    case source: SupportsTriggerAvailableNow => source.prepareForTriggerAvailableNow()
    case source =>
      standIn = Some(new AvailableNowDataStreamWrapper(source))
      standIn.foreach(_.prepareForTriggerAvailableNow())
  }

  override def getDefaultReadLimit: ReadLimit = (standIn, inner) match {
    case (Some(wrapper), _) => wrapper.getDefaultReadLimit
    case (None, source: SupportsAdmissionControl) => source.getDefaultReadLimit
    case _ => ReadLimit.allAvailable
  }

  override def latestOffset(start: Offset, limit: ReadLimit): Offset = {
    hooks.betweenBatches()
    (standIn, inner) match {
      case (Some(wrapper), _) => wrapper.latestOffset(start, limit)
      case (None, source: SupportsAdmissionControl) => source.latestOffset(start, limit)
      case _ =>
        answered = unlimited()
        answered
    }
  }

  override def reportLatestOffset: Offset = (standIn, inner) match {
    case (Some(wrapper), _) => wrapper.reportLatestOffset()
    case (None, source: SupportsAdmissionControl) => source.reportLatestOffset
    case _ => answered
  }

  override def metrics(latestConsumed: Optional[Offset]): util.Map[String, String] = inner match {
    case source: ReportsSourceMetrics => source.metrics(latestConsumed)
    case _ => util.Collections.emptyMap()
  }
}

private final class WrappedStream(protected val inner: MicroBatchStream, protected val hooks: SourceHooks)
    extends MicroBatchStream with WrappedAdmission with AcceptsLatestSeenOffset {
  override protected def unlimited(): Offset = inner.latestOffset()
  override def initialOffset(): Offset = inner.initialOffset()
  override def deserializeOffset(json: String): Offset = inner.deserializeOffset(json)
  override def commit(end: Offset): Unit = hooks.hold(() => inner.commit(end))
  override def stop(): Unit = try hooks.beforeStop() finally inner.stop()
  override def setLatestSeenOffset(offset: Offset): Unit = inner match {
    case source: AcceptsLatestSeenOffset => source.setLatestSeenOffset(offset)
    case _ =>
  }
  override def latestOffset(): Offset = inner.latestOffset()
  override def planInputPartitions(start: Offset, end: Offset): Array[InputPartition] = inner.planInputPartitions(start, end)
  override def createReaderFactory(): PartitionReaderFactory = inner.createReaderFactory()
  override def toString: String = inner.toString
}

/** A data source is a case class: one with equal fields would be taken for unchanged when a plan is transformed. */
private final class WrappedDataSource(inner: DataSource, hooks: SourceHooks)
    extends DataSource(
      inner.sparkSession, inner.className, inner.paths, inner.userSpecifiedSchema, inner.partitionColumns, inner.bucketSpec,
      inner.options, inner.catalogTable, inner.userSpecifiedStreamingSourceName) {
  override def canEqual(that: Any): Boolean = that.isInstanceOf[WrappedDataSource]
  override def equals(that: Any): Boolean = that match {
    case other: AnyRef => this eq other
    case _ => false
  }
  override def hashCode: Int = System.identityHashCode(this)
  override def createSource(metadataPath: String): Source = {
    hooks.beforeSources()
    new WrappedSource(inner.createSource(metadataPath), hooks)
  }
}

private final class WrappedSource(protected val inner: Source, protected val hooks: SourceHooks) extends Source with WrappedAdmission {
  override protected def unlimited(): Offset = inner.getOffset.orNull
  override def schema: StructType = inner.schema
  override def getOffset: Option[OffsetV1] = inner.getOffset
  override def getBatch(start: Option[OffsetV1], end: OffsetV1) = inner.getBatch(start, end)
  override def initialOffset(): Offset = inner.initialOffset()
  override def deserializeOffset(json: String): Offset = inner.deserializeOffset(json)
  override def commit(end: OffsetV1): Unit = hooks.hold(() => inner.commit(end))
  override def commit(end: Offset): Unit = hooks.hold(() => inner.commit(end))
  override def stop(): Unit = try hooks.beforeStop() finally inner.stop()
  override def toString: String = inner.toString
}
