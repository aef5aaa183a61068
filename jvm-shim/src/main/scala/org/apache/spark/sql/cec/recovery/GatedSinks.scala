package org.apache.spark.sql.cec.recovery

import java.util

import org.apache.spark.sql.DataFrame
import org.apache.spark.sql.catalyst.InternalRow
import org.apache.spark.sql.connector.catalog.{Column, SupportsWrite, Table, TableCapability}
import org.apache.spark.sql.connector.distributions.Distribution
import org.apache.spark.sql.connector.expressions.{SortOrder, Transform}
import org.apache.spark.sql.connector.metric.{CustomMetric, CustomTaskMetric}
import org.apache.spark.sql.connector.write._
import org.apache.spark.sql.connector.write.streaming.{StreamingDataWriterFactory, StreamingWrite}
import org.apache.spark.sql.execution.streaming.Sink
import org.apache.spark.sql.execution.streaming.operators.stateful.StateStoreWriter
import org.apache.spark.sql.internal.connector.SupportsStreamingUpdateAsAppend
import org.apache.spark.sql.types.StructType

/**
 * Wraps the sink of a query whose state may be ahead of the log: batches up to the last committed one run, so that state
 * is rebuilt, but write nothing. From the next batch on the sink is as it was, except that a batch which a V1 sink does
 * not run is run for the state's sake: a sink that has the batch already, since a crash came between its own commit and
 * Spark's, may pass it over (the file sink does), and what the batch did to the stores was in memory alone.
 */
private[recovery] object GatedSinks {
  /**
   * @param lastSilent the last committed batch, V
   * @param confirm fails if another run has begun meanwhile: Spark must not commit the batch then, into logs that were cut
   */
  def wrap(sink: Table, lastSilent: Long, confirm: () => Unit): Table = sink match {
    case v1: Sink => new GatedSink(v1, lastSilent, confirm)
    case v2: Table with SupportsWrite => new GatedTable(v2, lastSilent)
    case other => throw new UnsupportedOperationException(
        s"cannot silence the sink ${other.getClass.getName} during a replay: set spark.sql.streaming.stateStore.cec.mode=eager")
  }
}

private final class GatedSink(inner: Sink, lastSilent: Long, confirm: () => Unit) extends Sink {
  override def name: String = s"gated ${inner.getClass.getSimpleName}"
  override def toString: String = inner.toString
  override def addBatch(batchId: Long, data: DataFrame): Unit = {
    if (batchId > lastSilent) inner.addBatch(batchId, data)
    if (!hasRun(data)) data.queryExecution.toRdd.foreach(_ => ())
    confirm()
  }

  /** Whether every stateful operator of the batch has committed all its stores: a sink may have looked at some rows only. */
  private def hasRun(data: DataFrame): Boolean = {
    val operators = data.queryExecution.executedPlan.collect { case writer: StateStoreWriter => writer }
    operators.nonEmpty && operators.forall { operator =>
      val partitions = operator.children.head.outputPartitioning.numPartitions
      operator.longMetric(GatedSink.Committed).value >= Math.max(partitions, 1)
    }
  }
}

private object GatedSink {
  /** Spark's metric that counts the stores that an operator has committed. */
  val Committed = "numStateStoreInstances"
}

private final class GatedTable(inner: Table with SupportsWrite, lastSilent: Long) extends Table with SupportsWrite {
  override def name: String = inner.name
  override def toString: String = inner.toString
  override def schema: StructType = inner.schema
  override def columns: Array[Column] = inner.columns
  override def partitioning: Array[Transform] = inner.partitioning
  override def properties: util.Map[String, String] = inner.properties
  override def capabilities: util.Set[TableCapability] = inner.capabilities
  override def newWriteBuilder(info: LogicalWriteInfo): WriteBuilder = GatedBuilder(inner.newWriteBuilder(info), lastSilent)
}

/** A write builder says what it can do by its traits: the gated one has those of the one inside. */
private object GatedBuilder {
  private class Plain(inner: WriteBuilder, lastSilent: Long) extends WriteBuilder {
    override def build(): Write = GatedWrite(inner.build(), lastSilent)
  }

  private trait Truncating extends SupportsTruncate {
    protected def truncated: WriteBuilder
    override def truncate(): WriteBuilder = truncated
  }

  def apply(inner: WriteBuilder, lastSilent: Long): WriteBuilder = {
    def truncatedInner = GatedBuilder(inner.asInstanceOf[SupportsTruncate].truncate(), lastSilent)
    (inner.isInstanceOf[SupportsTruncate], inner.isInstanceOf[SupportsStreamingUpdateAsAppend]) match {
      case (false, false) => new Plain(inner, lastSilent)
      case (true, false) => new Plain(inner, lastSilent) with Truncating { def truncated: WriteBuilder = truncatedInner }
      case (false, true) => new Plain(inner, lastSilent) with SupportsStreamingUpdateAsAppend
      case (true, true) =>
        new Plain(inner, lastSilent) with Truncating with SupportsStreamingUpdateAsAppend { def truncated: WriteBuilder = truncatedInner }
    }
  }
}

private object GatedWrite {
  def apply(inner: Write, lastSilent: Long): Write = inner match {
    case shaped: RequiresDistributionAndOrdering =>
      new Gated(inner, lastSilent) with RequiresDistributionAndOrdering {
        override def requiredDistribution: Distribution = shaped.requiredDistribution
        override def distributionStrictlyRequired: Boolean = shaped.distributionStrictlyRequired
        override def requiredNumPartitions: Int = shaped.requiredNumPartitions
        override def advisoryPartitionSizeInBytes: Long = shaped.advisoryPartitionSizeInBytes
        override def requiredOrdering: Array[SortOrder] = shaped.requiredOrdering
      }
    case _ => new Gated(inner, lastSilent)
  }

  private class Gated(inner: Write, lastSilent: Long) extends Write {
    override def description: String = inner.description
    override def supportedCustomMetrics: Array[CustomMetric] = inner.supportedCustomMetrics
    override def reportDriverMetrics: Array[CustomTaskMetric] = inner.reportDriverMetrics
    override def toStreaming: StreamingWrite = new GatedStreamingWrite(inner.toStreaming, lastSilent)
  }
}

private final class GatedStreamingWrite(inner: StreamingWrite, lastSilent: Long) extends StreamingWrite {
  override def createStreamingWriterFactory(info: PhysicalWriteInfo): StreamingDataWriterFactory =
    new GatedWriterFactory(inner.createStreamingWriterFactory(info), lastSilent)
  override def useCommitCoordinator: Boolean = inner.useCommitCoordinator
  override def commit(epochId: Long, messages: Array[WriterCommitMessage]): Unit =
    if (epochId > lastSilent) inner.commit(epochId, messages)
  override def abort(epochId: Long, messages: Array[WriterCommitMessage]): Unit =
    if (epochId > lastSilent) inner.abort(epochId, messages)
}

private final class GatedWriterFactory(inner: StreamingDataWriterFactory, lastSilent: Long) extends StreamingDataWriterFactory {
  override def createWriter(partitionId: Int, taskId: Long, epochId: Long): DataWriter[InternalRow] =
    if (epochId > lastSilent) inner.createWriter(partitionId, taskId, epochId) else SilentWriter
}

private object SilentWriter extends DataWriter[InternalRow] {
  override def write(record: InternalRow): Unit = ()
  override def commit(): WriterCommitMessage = null
  override def abort(): Unit = ()
  override def close(): Unit = ()
}
