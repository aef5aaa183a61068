package org.apache.spark.sql.cec.source

import java.nio.file.Path
import java.util.UUID

import org.apache.arrow.vector.VectorSchemaRoot
import org.apache.arrow.vector.ipc.ArrowStreamWriter

import org.apache.spark.sql.catalyst.InternalRow
import org.apache.spark.sql.catalyst.expressions.{UnsafeProjection, UnsafeRow}
import org.apache.spark.sql.cec.Acquired
import org.apache.spark.sql.cec.agent.{
  Agent, AppendRequest, CecException, ColumnTimes, OutputRows, PublishRequest, SpoolFile, SpoolPath}
import org.apache.spark.sql.cec.exchange.{HeldOutput, HeldOutputs}
import org.apache.spark.sql.cec.state.RowLimit
import org.apache.spark.sql.connector.write._
import org.apache.spark.sql.connector.write.streaming.{StreamingDataWriterFactory, StreamingWrite}
import org.apache.spark.sql.execution.arrow.ArrowWriter
import org.apache.spark.sql.internal.SQLConf
import org.apache.spark.sql.internal.connector.SupportsStreamingUpdateAsAppend
import org.apache.spark.sql.types.{StructType, TimestampType}
import org.apache.spark.sql.util.SchemaUtils
import org.apache.spark.sql.util.ArrowUtils

private[source] final class CecWriteBuilder(target: SinkTarget, schema: StructType, truncate: Boolean)
    extends WriteBuilder with SupportsTruncate with SupportsStreamingUpdateAsAppend {
  override def truncate(): WriteBuilder = new CecWriteBuilder(target, schema, truncate = true)

  override def build(): Write = new Write {
    override def description: String = s"cec ${target.home}"
    override def toStreaming: StreamingWrite = {
      // A reader could not tell two columns of one name apart.
      SchemaUtils.checkColumnNameDuplication(schema.fieldNames.toSeq, SQLConf.get.resolver)
      val conf = SQLConf.get.getAllConfs.filter(_._1.startsWith("spark.sql.streaming.stateStore."))
      new CecStreamingWrite(target, schema, CecWriteBuilder.this.truncate, conf)
    }
  }
}

/** The result of one partition: the id of its output frame, None if it wrote no rows, and the times that its rows have. */
private[cec] final case class FrameWritten(frame: Option[String], rows: Long, times: Seq[ColumnTimes]) extends WriterCommitMessage

/**
 * Writes rows to the log as output frames. The manifest of the batch makes them visible, and the first manifest of a
 * batch id wins.
 */
private final class CecStreamingWrite(target: SinkTarget, schema: StructType, truncate: Boolean, conf: Map[String, String])
    extends StreamingWrite {
  override def createStreamingWriterFactory(info: PhysicalWriteInfo): StreamingDataWriterFactory =
    new CecWriterFactory(target, schema, conf)

  override def commit(epochId: Long, messages: Array[WriterCommitMessage]): Unit = {
    val written = messages.collect { case message: FrameWritten => message }
    Agent.call(PublishRequest(
      target.checkpoint, target.home, epochId, written.flatMap(_.frame).toSeq, written.map(_.rows).sum, schema.json, truncate,
      target.number.value, target.sources, written.flatMap(_.times).toSeq), conf)
  }

  /** Frames without a manifest are invisible, so an abort removes nothing. */
  override def abort(epochId: Long, messages: Array[WriterCommitMessage]): Unit = ()
}

private final class CecWriterFactory(target: SinkTarget, schema: StructType, conf: Map[String, String])
    extends StreamingDataWriterFactory {
  override def createWriter(partitionId: Int, taskId: Long, epochId: Long): DataWriter[InternalRow] =
    new CecDataWriter(target, schema, conf, partitionId, taskId, epochId)
}

private final class CecDataWriter(
    target: SinkTarget, schema: StructType, conf: Map[String, String], partition: Int, attempt: Long, batch: Long)
    extends DataWriter[InternalRow] {
  private var spool: RowSpool = _
  private val times = new TimesWritten(schema)

  override def write(row: InternalRow): Unit = {
    if (spool == null) spool = new RowSpool(Agent.spoolFile(CecDataWriter.ExpectedBytes, conf), schema)
    spool.write(row)
    times.add(row)
  }

  override def commit(): WriterCommitMessage =
    if (spool == null) FrameWritten(None, 0, Nil)
    else {
      spool.finish()
      val frame = UUID.randomUUID().toString.replace("-", "")
      val output = OutputRows(frame, batch, partition.toLong, attempt, target.number.value, spool.rows, spool.file.toString)
      if (target.together) {
        HeldOutputs.hold(HeldOutput(target.checkpoint, target.home, target.logId, output, conf))
        spool.keep()
      } else Agent.call(AppendRequest(target.home, Some(target.logId), Nil, Seq(output)), conf)
      FrameWritten(Some(frame), spool.rows, times.ranges)
    }

  override def abort(): Unit = close()

  override def close(): Unit = if (spool != null) spool.close()
}

/**
 * The earliest and the latest time in each TIMESTAMP column, in microseconds since 1970. A reader by buckets passes over
 * batches of other times.
 */
private final class TimesWritten(schema: StructType) {
  private val columns = schema.fields.zipWithIndex.collect { case (field, ordinal) if field.dataType == TimestampType => (field.name, ordinal) }
  private val first = Array.fill(columns.length)(Long.MaxValue)
  private val last = Array.fill(columns.length)(Long.MinValue)
  private val nulls = new Array[Long](columns.length)

  def add(row: InternalRow): Unit = {
    var i = 0
    while (i < columns.length) {
      val ordinal = columns(i)._2
      if (row.isNullAt(ordinal)) nulls(i) += 1
      else {
        val micros = row.getLong(ordinal)
        if (micros < first(i)) first(i) = micros
        if (micros > last(i)) last(i) = micros
      }
      i += 1
    }
  }

  def ranges: Seq[ColumnTimes] = columns.indices.map { i =>
    def ms(micros: Long) = Option.when(first(i) <= last(i))(Math.floorDiv(micros, 1000L))
    ColumnTimes(columns(i)._1, ms(first(i)), ms(last(i)), nulls(i))
  }
}

private object CecDataWriter {
  /** A guess: nobody knows at the first row how many rows a task will write. A fuller spool is passed over. */
  private val ExpectedBytes = 1L << 20
}

/** Rows on their way to the agent, as an Arrow IPC stream in a spool file. */
private[cec] final class RowSpool(place: SpoolPath, schema: StructType) extends AutoCloseable {
  private val acquired = new Acquired
  private val allocator = acquired(ArrowUtils.rootAllocator.newChildAllocator("cec output", 0, Long.MaxValue))
  private val root = acquired(VectorSchemaRoot.create(ArrowUtils.toArrowSchema(schema, "UTC", true, false), allocator))
  private val vectors = acquired.step(ArrowWriter.create(root))
  private val channel = acquired(new SpoolFile(place))
  acquired.undo(if (!isKept) place.delete())
  private val stream = new ArrowStreamWriter(root, null, channel)
  private lazy val measured = UnsafeProjection.create(schema)
  private var isKept = false
  private var count = 0
  private var bytes = 0L
  acquired.step(stream.start())

  /** Where the file is. */
  def file: Path = channel.path

  /** The rows that were written. */
  var rows: Long = 0L

  /** Keeps the file after `close`. Somebody else removes it. */
  def keep(): Unit = isKept = true

  def write(row: InternalRow): Unit = {
    val size = sizeOf(row)
    if (count > 0 && bytes + size > RowSpool.BatchBytes) flush()
    bytes += size
    vectors.write(row)
    count += 1
    rows += 1
    if (count == RowSpool.BatchRows) flush()
  }

  private def sizeOf(row: InternalRow): Int = {
    val size = row match {
      case unsafe: UnsafeRow => unsafe.getSizeInBytes
      case other => measured(other).getSizeInBytes
    }
    if (size > RowLimit.Bytes) {
      throw new CecException("TooLarge", s"the cec sink takes rows of up to ${RowLimit.Bytes} bytes: a row of this batch has $size")
    }
    size
  }

  def finish(): Unit = {
    if (count > 0) flush()
    stream.end()
    channel.close()
  }

  override def close(): Unit = acquired.close()

  private def flush(): Unit = {
    vectors.finish()
    stream.writeBatch()
    vectors.reset()
    count = 0
    bytes = 0L
  }
}

private object RowSpool {
  /** A batch ends at this number of rows, or before this number of bytes: the offsets of an Arrow buffer are ints. */
  val BatchRows: Int = 10000
  val BatchBytes: Long = 64L << 20
}
