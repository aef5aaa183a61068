package org.apache.spark.sql.cec.recovery

import java.util
import java.util.Optional

import scala.annotation.nowarn

import org.apache.spark.sql.DataFrame
import org.apache.spark.sql.connector.catalog.{Column, Table, TableCapability}
import org.apache.spark.sql.connector.catalog.constraints.Constraint
import org.apache.spark.sql.connector.distributions.Distribution
import org.apache.spark.sql.connector.expressions.{SortOrder, Transform}
import org.apache.spark.sql.connector.metric.{CustomMetric, CustomTaskMetric}
import org.apache.spark.sql.connector.read.{Batch, InputPartition, PartitionReaderFactory, Scan}
import org.apache.spark.sql.connector.read.streaming._
import org.apache.spark.sql.connector.write._
import org.apache.spark.sql.connector.write.streaming.{StreamingDataWriterFactory, StreamingWrite}
import org.apache.spark.sql.execution.streaming.{Offset => OffsetV1, Source}
import org.apache.spark.sql.types.StructType

/**
 * Classes that pass each call of an interface to an object inside. Subclasses change some of the calls.
 *
 * The delegates are classes because a JDK proxy wraps undeclared exceptions in UndeclaredThrowableException. Scala
 * connectors declare none, and Spark detects a clean stop by the exception's class. A test finds methods that are
 * missing here, because the default of the interface would answer them.
 */

private[recovery] abstract class TableDelegate(inner: Table) extends Table {
  override def name: String = inner.name
  override def id: String = inner.id
  @nowarn("cat=deprecation")
  override def schema: StructType = inner.schema
  override def columns: Array[Column] = inner.columns
  override def partitioning: Array[Transform] = inner.partitioning
  override def properties: util.Map[String, String] = inner.properties
  override def capabilities: util.Set[TableCapability] = inner.capabilities
  override def constraints: Array[Constraint] = inner.constraints
  override def version: String = inner.version
  override def toString: String = inner.toString
}

private[recovery] abstract class ScanDelegate(inner: Scan) extends Scan {
  override def readSchema: StructType = inner.readSchema
  override def description: String = inner.description
  override def toBatch: Batch = inner.toBatch
  override def toMicroBatchStream(checkpointLocation: String): MicroBatchStream = inner.toMicroBatchStream(checkpointLocation)
  override def toContinuousStream(checkpointLocation: String): ContinuousStream = inner.toContinuousStream(checkpointLocation)
  override def supportedCustomMetrics: Array[CustomMetric] = inner.supportedCustomMetrics
  override def reportDriverMetrics: Array[CustomTaskMetric] = inner.reportDriverMetrics
  override def columnarSupportMode: Scan.ColumnarSupportMode = inner.columnarSupportMode
  override def toString: String = inner.toString
}

/**
 * The methods of streams of both kinds. A stream without metrics gets an empty map, which Spark shows like no metrics.
 */
private[recovery] abstract class StreamDelegate(inner: SparkDataStream) extends SparkDataStream with ReportsSourceMetrics {
  override def initialOffset: Offset = inner.initialOffset
  override def deserializeOffset(json: String): Offset = inner.deserializeOffset(json)
  override def commit(end: Offset): Unit = inner.commit(end)
  override def stop(): Unit = inner.stop()
  override def metrics(latest: Optional[Offset]): util.Map[String, String] = inner match {
    case reporting: ReportsSourceMetrics => reporting.metrics(latest)
    case _ => util.Collections.emptyMap[String, String]
  }
  override def toString: String = inner.toString
}

private[recovery] abstract class MicroBatchDelegate(inner: MicroBatchStream) extends StreamDelegate(inner) with MicroBatchStream {
  override def latestOffset: Offset = inner.latestOffset
  override def planInputPartitions(start: Offset, end: Offset): Array[InputPartition] = inner.planInputPartitions(start, end)
  override def createReaderFactory: PartitionReaderFactory = inner.createReaderFactory
}

private[recovery] abstract class SourceDelegate(inner: Source) extends StreamDelegate(inner) with Source {
  override def schema: StructType = inner.schema
  override def getOffset: Option[OffsetV1] = inner.getOffset
  override def getBatch(start: Option[OffsetV1], end: OffsetV1): DataFrame = inner.getBatch(start, end)
  override def commit(end: OffsetV1): Unit = inner.commit(end)
  override def initialOffset: Offset = inner.initialOffset
  override def deserializeOffset(json: String): Offset = inner.deserializeOffset(json)
  override def commit(end: Offset): Unit = inner.commit(end)
}

private[recovery] abstract class WriteBuilderDelegate(inner: WriteBuilder) extends WriteBuilder {
  override def build: Write = inner.build
  @nowarn("cat=deprecation")
  override def buildForBatch: BatchWrite = inner.buildForBatch
  @nowarn("cat=deprecation")
  override def buildForStreaming: StreamingWrite = inner.buildForStreaming
  override def toString: String = inner.toString
}

private[recovery] abstract class WriteDelegate(inner: Write) extends Write {
  override def description: String = inner.description
  override def toBatch: BatchWrite = inner.toBatch
  override def toStreaming: StreamingWrite = inner.toStreaming
  override def supportedCustomMetrics: Array[CustomMetric] = inner.supportedCustomMetrics
  override def reportDriverMetrics: Array[CustomTaskMetric] = inner.reportDriverMetrics
  override def toString: String = inner.toString
}

private[recovery] abstract class DistributedWriteDelegate(inner: RequiresDistributionAndOrdering)
    extends WriteDelegate(inner) with RequiresDistributionAndOrdering {
  override def requiredDistribution: Distribution = inner.requiredDistribution
  override def distributionStrictlyRequired: Boolean = inner.distributionStrictlyRequired
  override def requiredNumPartitions: Int = inner.requiredNumPartitions
  override def advisoryPartitionSizeInBytes: Long = inner.advisoryPartitionSizeInBytes
  override def requiredOrdering: Array[SortOrder] = inner.requiredOrdering
}

private[recovery] abstract class StreamingWriteDelegate(inner: StreamingWrite) extends StreamingWrite {
  override def createStreamingWriterFactory(info: PhysicalWriteInfo): StreamingDataWriterFactory = inner.createStreamingWriterFactory(info)
  override def useCommitCoordinator: Boolean = inner.useCommitCoordinator
  override def commit(epoch: Long, messages: Array[WriterCommitMessage]): Unit = inner.commit(epoch, messages)
  override def abort(epoch: Long, messages: Array[WriterCommitMessage]): Unit = inner.abort(epoch, messages)
  override def toString: String = inner.toString
}
