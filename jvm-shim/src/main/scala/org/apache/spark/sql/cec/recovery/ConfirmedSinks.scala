package org.apache.spark.sql.cec.recovery

import java.util

import org.apache.spark.sql.DataFrame
import org.apache.spark.sql.connector.catalog.{Column, SupportsWrite, Table, TableCapability}
import org.apache.spark.sql.connector.distributions.Distribution
import org.apache.spark.sql.connector.expressions.{SortOrder, Transform}
import org.apache.spark.sql.connector.metric.{CustomMetric, CustomTaskMetric}
import org.apache.spark.sql.connector.read.streaming.ReportsSinkMetrics
import org.apache.spark.sql.connector.write._
import org.apache.spark.sql.connector.write.streaming.{StreamingDataWriterFactory, StreamingWrite}
import org.apache.spark.sql.execution.streaming.Sink
import org.apache.spark.sql.execution.streaming.sources.{ForeachBatchSink, MemorySink}
import org.apache.spark.sql.internal.connector.SupportsStreamingUpdateAsAppend
import org.apache.spark.sql.types.StructType

/**
 * Wraps the sink of a query, in two things only. A batch ends by confirming that no other run has begun meanwhile. And a batch that
 * a V1 sink does not run is run for the state's sake: a sink that has the batch already, since a crash came between its own
 * commit and Spark's, may pass it over (the file sink does). What the batch did to the stores may have been in memory alone; and
 * the frames of a committed batch are always those of the run that committed it.
 *
 * A sink in the driver's memory is left as it is: its rows are seen by its own session alone and end with it, so no other run's are mixed
 * with them, and tests look for it as the query's sink. (What the console prints may be read by others, and goes on being confirmed.)
 */
private[recovery] object ConfirmedSinks {
  /**
   * @param halves whether a function of `foreachBatch` may look at a part of its batch
   * @param confirm fails if another run has begun meanwhile
   */
  def wrap(sink: Table, halves: Boolean, confirm: () => Unit): Table = sink match {
    case memory: MemorySink => memory
    case function: ForeachBatchSink[_] => new CompletedFunction(function, halves, confirm)
    case v1: Sink => new ConfirmedSink(v1, confirm)
    case v2: Table with SupportsWrite => new ConfirmedTable(v2, confirm)
    case other => other
  }
}

private final class ConfirmedSink(inner: Sink, confirm: () => Unit) extends Sink {
  override def name: String = s"confirmed ${inner.getClass.getSimpleName}"
  override def toString: String = inner.toString
  override def addBatch(batchId: Long, data: DataFrame): Unit = {
    inner.addBatch(batchId, data)
    BatchRun.complete(data)
    confirm()
  }
}

private final class ConfirmedTable(inner: Table with SupportsWrite, confirm: () => Unit)
    extends Table with SupportsWrite with ReportsSinkMetrics {
  override def name: String = inner.name
  override def toString: String = inner.toString
  override def schema: StructType = inner.schema
  override def columns: Array[Column] = inner.columns
  override def partitioning: Array[Transform] = inner.partitioning
  override def properties: util.Map[String, String] = inner.properties
  override def capabilities: util.Set[TableCapability] = inner.capabilities
  override def newWriteBuilder(info: LogicalWriteInfo): WriteBuilder = ConfirmedBuilder(inner.newWriteBuilder(info), confirm)
  override def metrics(): util.Map[String, String] = inner match {
    case reporting: ReportsSinkMetrics => reporting.metrics()
    case _ => util.Collections.emptyMap() // as Spark has it for a sink that reports none
  }
}

/** A write builder says what it can do by its traits: the wrapped one has those of the one inside. */
private object ConfirmedBuilder {
  private class Plain(inner: WriteBuilder, confirm: () => Unit) extends WriteBuilder {
    override def build(): Write = ConfirmedWrite(inner.build(), confirm)
  }

  private trait Truncating extends SupportsTruncate {
    protected def truncated: WriteBuilder
    override def truncate(): WriteBuilder = truncated
  }

  def apply(inner: WriteBuilder, confirm: () => Unit): WriteBuilder = {
    def truncatedInner = ConfirmedBuilder(inner.asInstanceOf[SupportsTruncate].truncate(), confirm)
    (inner.isInstanceOf[SupportsTruncate], inner.isInstanceOf[SupportsStreamingUpdateAsAppend]) match {
      case (false, false) => new Plain(inner, confirm)
      case (true, false) => new Plain(inner, confirm) with Truncating { def truncated: WriteBuilder = truncatedInner }
      case (false, true) => new Plain(inner, confirm) with SupportsStreamingUpdateAsAppend
      case (true, true) =>
        new Plain(inner, confirm) with Truncating with SupportsStreamingUpdateAsAppend { def truncated: WriteBuilder = truncatedInner }
    }
  }
}

private object ConfirmedWrite {
  def apply(inner: Write, confirm: () => Unit): Write = inner match {
    case shaped: RequiresDistributionAndOrdering =>
      new Confirmed(inner, confirm) with RequiresDistributionAndOrdering {
        override def requiredDistribution: Distribution = shaped.requiredDistribution
        override def distributionStrictlyRequired: Boolean = shaped.distributionStrictlyRequired
        override def requiredNumPartitions: Int = shaped.requiredNumPartitions
        override def advisoryPartitionSizeInBytes: Long = shaped.advisoryPartitionSizeInBytes
        override def requiredOrdering: Array[SortOrder] = shaped.requiredOrdering
      }
    case _ => new Confirmed(inner, confirm)
  }

  private class Confirmed(inner: Write, confirm: () => Unit) extends Write {
    override def description: String = inner.description
    override def supportedCustomMetrics: Array[CustomMetric] = inner.supportedCustomMetrics
    override def reportDriverMetrics: Array[CustomTaskMetric] = inner.reportDriverMetrics
    override def toStreaming: StreamingWrite = new ConfirmedStreamingWrite(inner.toStreaming, confirm)
  }
}

private final class ConfirmedStreamingWrite(inner: StreamingWrite, confirm: () => Unit) extends StreamingWrite {
  override def createStreamingWriterFactory(info: PhysicalWriteInfo): StreamingDataWriterFactory = inner.createStreamingWriterFactory(info)
  override def useCommitCoordinator: Boolean = inner.useCommitCoordinator
  override def commit(epochId: Long, messages: Array[WriterCommitMessage]): Unit = {
    confirm()
    inner.commit(epochId, messages)
  }
  override def abort(epochId: Long, messages: Array[WriterCommitMessage]): Unit = inner.abort(epochId, messages)
}
