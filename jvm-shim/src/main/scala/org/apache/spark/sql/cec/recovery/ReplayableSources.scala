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
import org.apache.spark.sql.execution.streaming.runtime.{AvailableNowDataStreamWrapper, SerializedOffset, StreamingRelation}
import org.apache.spark.sql.types.StructType
import org.apache.spark.sql.util.CaseInsensitiveStringMap

/** Wraps the sources of a plan, V1 and V2, so that they follow a [[SourceControl]]. */
private[recovery] object ReplayableSources {
  /** `control` is given the position of a source in Spark's offset log. */
  def wrap(plan: LogicalPlan, control: Int => SourceControl): LogicalPlan = {
    // A relation that occurs twice is one source to Spark, which tells by equality: keep one wrapper for it.
    val wrappers = new util.LinkedHashMap[LogicalPlan, LogicalPlan]()
    var position = -1
    plan.foreach {
      case relation @ (_: StreamingRelationV2 | _: StreamingRelation) =>
        position += 1
        if (!wrappers.containsKey(relation)) wrappers.put(relation, wrapped(relation, control(position)))
      case _ =>
    }
    plan.transform { case relation if wrappers.containsKey(relation) => wrappers.get(relation) }
  }

  private def wrapped(relation: LogicalPlan, control: SourceControl): LogicalPlan = relation match {
    case v2: StreamingRelationV2 => v2.table match {
      case table: Table with SupportsRead => v2.copy(table = new ReplayableTable(table, control))
      case _ => v2
    }
    case v1: StreamingRelation => v1.copy(dataSource = new ReplayableDataSource(v1.dataSource, control))
    case other => other
  }
}

private final class ReplayableTable(inner: Table with SupportsRead, control: SourceControl) extends Table with SupportsRead {
  override def name: String = inner.name
  override def schema: StructType = inner.schema
  override def columns: Array[Column] = inner.columns
  override def partitioning: Array[Transform] = inner.partitioning
  override def properties: util.Map[String, String] = inner.properties
  override def capabilities: util.Set[TableCapability] = inner.capabilities
  override def newScanBuilder(options: CaseInsensitiveStringMap): ScanBuilder = {
    val builder = inner.newScanBuilder(options)
    () => new ReplayableScan(builder.build(), control)
  }
}

private final class ReplayableScan(inner: Scan, control: SourceControl) extends Scan {
  override def readSchema: StructType = inner.readSchema
  override def description: String = inner.description
  override def supportedCustomMetrics: Array[CustomMetric] = inner.supportedCustomMetrics
  override def reportDriverMetrics: Array[CustomTaskMetric] = inner.reportDriverMetrics
  override def columnarSupportMode: Scan.ColumnarSupportMode = inner.columnarSupportMode
  override def toMicroBatchStream(checkpointLocation: String): MicroBatchStream =
    new ReplayableStream(inner.toMicroBatchStream(checkpointLocation), control)
}

/** What V1 and V2 wrappers have in common: admission control, with Spark's own stand-in where a source has none. */
private trait ReplayableAdmission extends SupportsTriggerAvailableNow with ReportsSourceMetrics {
  protected def inner: SparkDataStream
  protected def control: SourceControl

  /** Spark's stand-in for a source that does not support `Trigger.AvailableNow` itself; made when it is asked for. */
  private var standIn: Option[AvailableNowDataStreamWrapper] = None

  /** What the source answers when there is nothing recorded. */
  protected def unlimited(): Offset

  protected def recordedOffset(json: String): Offset

  override def prepareForTriggerAvailableNow(): Unit = inner match {
    case source: SupportsTriggerAvailableNow => source.prepareForTriggerAvailableNow()
    case source =>
      standIn = Some(new AvailableNowDataStreamWrapper(source))
      standIn.foreach(_.prepareForTriggerAvailableNow())
  }

  override def getDefaultReadLimit: ReadLimit = inner match {
    case source: SupportsAdmissionControl => source.getDefaultReadLimit
    case _ => ReadLimit.allAvailable
  }

  override def reportLatestOffset: Offset = inner match {
    case source: SupportsAdmissionControl => source.reportLatestOffset
    case _ => null
  }

  override def latestOffset(start: Offset, limit: ReadLimit): Offset =
    control.recorded(start, recordedOffset).getOrElse((standIn, inner) match {
      case (Some(wrapper), _) => wrapper.latestOffset(start, limit)
      case (None, source: SupportsAdmissionControl) => source.latestOffset(start, limit)
      case _ => unlimited()
    })

  override def metrics(latestConsumed: Optional[Offset]): util.Map[String, String] = inner match {
    case source: ReportsSourceMetrics => source.metrics(latestConsumed)
    case _ => util.Collections.emptyMap()
  }
}

private final class ReplayableStream(protected val inner: MicroBatchStream, protected val control: SourceControl)
    extends MicroBatchStream with ReplayableAdmission {
  override protected def unlimited(): Offset = inner.latestOffset()
  override protected def recordedOffset(json: String): Offset = inner.deserializeOffset(json)
  override def initialOffset(): Offset = inner.initialOffset()
  override def deserializeOffset(json: String): Offset = inner.deserializeOffset(json)
  override def commit(end: Offset): Unit = control.commit(() => inner.commit(end))
  override def stop(): Unit = inner.stop()
  override def latestOffset(): Offset = inner.latestOffset()
  override def planInputPartitions(start: Offset, end: Offset): Array[InputPartition] = inner.planInputPartitions(start, end)
  override def createReaderFactory(): PartitionReaderFactory = inner.createReaderFactory()
  override def toString: String = inner.toString
}

/** A data source is a case class: one with equal fields would be taken for unchanged when a plan is transformed. */
private final class ReplayableDataSource(inner: DataSource, control: SourceControl)
    extends DataSource(
      inner.sparkSession, inner.className, inner.paths, inner.userSpecifiedSchema, inner.partitionColumns, inner.bucketSpec,
      inner.options, inner.catalogTable, inner.userSpecifiedStreamingSourceName) {
  override def canEqual(that: Any): Boolean = that.isInstanceOf[ReplayableDataSource]
  override def equals(that: Any): Boolean = that match {
    case other: AnyRef => this eq other
    case _ => false
  }
  override def hashCode: Int = System.identityHashCode(this)
  override def createSource(metadataPath: String): Source = new ReplayableSource(inner.createSource(metadataPath), control)
}

private final class ReplayableSource(protected val inner: Source, protected val control: SourceControl)
    extends Source with ReplayableAdmission {
  override protected def unlimited(): Offset = inner.getOffset.orNull
  override protected def recordedOffset(json: String): Offset = SerializedOffset(json)
  override def schema: StructType = inner.schema
  override def getOffset: Option[OffsetV1] = inner.getOffset
  override def getBatch(start: Option[OffsetV1], end: OffsetV1) = inner.getBatch(start, end)
  override def initialOffset(): Offset = inner.initialOffset()
  override def deserializeOffset(json: String): Offset = inner.deserializeOffset(json)
  override def commit(end: OffsetV1): Unit = control.commit(() => inner.commit(end))
  override def commit(end: Offset): Unit = control.commit(() => inner.commit(end))
  override def stop(): Unit = inner.stop()
  override def toString: String = inner.toString
}
