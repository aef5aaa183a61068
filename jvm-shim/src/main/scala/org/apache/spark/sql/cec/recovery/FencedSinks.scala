package org.apache.spark.sql.cec.recovery

import java.util

import org.apache.spark.sql.DataFrame
import org.apache.spark.sql.cec.agent.CecException
import org.apache.spark.sql.cec.source.FrameWritten
import org.apache.spark.sql.connector.catalog.{SupportsWrite, Table}
import org.apache.spark.sql.connector.read.streaming.ReportsSinkMetrics
import org.apache.spark.sql.connector.write._
import org.apache.spark.sql.connector.write.streaming.{StreamingDataWriterFactory, StreamingWrite}
import org.apache.spark.sql.execution.streaming.Sink
import org.apache.spark.sql.execution.streaming.sources.{ForeachBatchSink, MemorySink}
import org.apache.spark.sql.internal.connector.SupportsStreamingUpdateAsAppend

/**
 * Wraps the sink of a query and changes two things.
 *
 * A batch ends with a check that it may count (`BatchEnd`). A batch that a V1 sink skips runs for its state alone. A sink
 * may skip a batch that it has already, after a crash between its commit and Spark's (the file sink does). But the
 * stores may have had that batch in memory alone. Also, the frames of a committed batch must come from the run that
 * commits it.
 *
 * A memory sink stays unwrapped. The rows of a memory sink end with its session, so no other run can mix rows in.
 * Tests look for the sink itself. Others may read the console's output, so a console sink is wrapped.
 */
private[recovery] object FencedSinks {
  /** Sinks that take a batch number again. After a rollback the same number comes with other rows. */
  private val RepeatableSinks = Set("CecTable", "ForeachBatchSink", "ForeachWriterTable", "ConsoleTable", "NoopTable", "KafkaTable")

  /**
   * Refuses a sink that may skip a batch because of its number: it would lose the rows that come after a rollback.
   * Spark's file sink and memory sink do so, and others that keep the number of the last batch.
   */
  def refuseForgetful(sink: Table): Unit = {
    val name = sink.getClass.getName.stripSuffix("$").split("[.$]").last
    if (!RepeatableSinks(name)) throw new CecException("Unsupported",
      s"release='at-once' with the sink $sink: it may know a batch by its number, and pass over what comes under that number after a failure. Take " +
        "release='checkpoint', with which no batch comes again, or a foreachBatch that does not go by the batch's number")
  }

  /** Whether `wrap` wraps this sink. */
  def wraps(sink: Table): Boolean = sink match {
    case _: MemorySink => false
    case _: Sink | _: SupportsWrite => true
    case _ => false
  }

  /**
   * Wraps a sink.
   *
   * @param halves whether a function of `foreachBatch` may read a part of its batch
   * @param end fails if a batch may not count, because another run has taken over or a store is lost
   */
  def wrap(sink: Table, halves: Boolean, end: BatchEnd): Table = sink match {
    case memory: MemorySink => memory
    case function: ForeachBatchSink[_] => new CompletedFunction(function, halves, end)
    case v1: Sink => new ConfirmedSink(v1, end)
    case v2: SupportsWrite => wrapTable(v2, end)
    case other => other
  }

  private def wrapTable(table: SupportsWrite, end: BatchEnd): Table = table match {
    case reporting: ReportsSinkMetrics => new ConfirmedTable(table, end) with ReportsSinkMetrics {
      override def metrics: util.Map[String, String] = reporting.metrics
    }
    case _ => new ConfirmedTable(table, end)
  }
}

private sealed class ConfirmedTable(inner: SupportsWrite, end: BatchEnd) extends TableDelegate(inner) with SupportsWrite {
  override def newWriteBuilder(info: LogicalWriteInfo): WriteBuilder = ConfirmedBuilder(inner.newWriteBuilder(info), end)
}

private sealed class ConfirmedBuilder(val inner: WriteBuilder, val end: BatchEnd) extends WriteBuilderDelegate(inner) {
  override def build: Write = inner.build match {
    case distributed: RequiresDistributionAndOrdering => new DistributedWriteDelegate(distributed) {
      override def toStreaming: StreamingWrite = new ConfirmedWrite(distributed.toStreaming, end)
    }
    case write => new WriteDelegate(write) {
      override def toStreaming: StreamingWrite = new ConfirmedWrite(write.toStreaming, end)
    }
  }
}

private sealed trait Truncating extends ConfirmedBuilder with SupportsTruncate {
  override def truncate(): WriteBuilder = ConfirmedBuilder(inner.asInstanceOf[SupportsTruncate].truncate(), end)
}

private object ConfirmedBuilder {
  def apply(builder: WriteBuilder, end: BatchEnd): WriteBuilder = (builder, builder.isInstanceOf[SupportsStreamingUpdateAsAppend]) match {
    case (_: SupportsTruncate, false) => new ConfirmedBuilder(builder, end) with Truncating
    case (_: SupportsTruncate, true) => new ConfirmedBuilder(builder, end) with Truncating with SupportsStreamingUpdateAsAppend
    case (_, false) => new ConfirmedBuilder(builder, end)
    case (_, true) => new ConfirmedBuilder(builder, end) with SupportsStreamingUpdateAsAppend
  }
}

private final class ConfirmedWrite(inner: StreamingWrite, end: BatchEnd) extends StreamingWriteDelegate(inner) {
  override def createStreamingWriterFactory(info: PhysicalWriteInfo): StreamingDataWriterFactory = {
    end.awaitWrite()
    super.createStreamingWriterFactory(info)
  }

  override def commit(epoch: Long, messages: Array[WriterCommitMessage]): Unit = {
    end.confirm(epoch, messages.collect { case FrameWritten(Some(frame), _, _) => frame }.toSet)
    inner.commit(epoch, messages)
  }
}

private final class ConfirmedSink(inner: Sink, end: BatchEnd) extends TableDelegate(inner) with Sink {
  override def name: String = s"confirmed ${inner.getClass.getSimpleName}"
  override def toString: String = inner.toString
  override def addBatch(batchId: Long, data: DataFrame): Unit = {
    end.awaitWrite()
    inner.addBatch(batchId, data)
    PartialBatch.complete(data)
    end.confirm(batchId)
  }
}
