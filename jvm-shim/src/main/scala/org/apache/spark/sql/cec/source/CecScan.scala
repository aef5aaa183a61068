package org.apache.spark.sql.cec.source

import java.nio.channels.FileChannel
import java.nio.file.{Files, Paths, StandardOpenOption}

import org.apache.arrow.vector.ValueVector
import org.apache.arrow.vector.ipc.ArrowStreamReader

import org.apache.spark.sql.catalyst.InternalRow
import org.apache.spark.sql.catalyst.expressions.{GenericInternalRow, UnsafeRow}
import org.apache.spark.sql.connector.read._
import org.apache.spark.sql.connector.read.streaming._
import org.apache.spark.sql.types.StructType
import org.apache.spark.sql.util.ArrowUtils
import org.apache.spark.sql.vectorized.{ArrowColumnVector, ColumnVector, ColumnarBatch}
import org.apache.spark.unsafe.Platform

private[source] final class CecScanBuilder(view: View, schema: StructType) extends ScanBuilder with SupportsPushDownRequiredColumns {
  private var wanted = schema

  /** Whole columns only: Spark may ask for some fields of a struct, but what comes from the log has all of them. */
  override def pruneColumns(requiredSchema: StructType): Unit = wanted = StructType(requiredSchema.map(column => schema(column.name)))

  override def build(): Scan = new CecScan(view, wanted)
}

private final class CecScan(view: View, schema: StructType) extends Scan {
  override def readSchema(): StructType = schema

  override def description(): String = s"cec ${view.name} ${view.path}"

  override def toBatch: Batch = new Batch {
    private val first = view match {
      case output: OutputView if output.startingMs.isDefined => output.first
      case _ => 0L
    }
    override def planInputPartitions(): Array[InputPartition] =
      view.splits(first, Long.MaxValue, whole = true).map(CecPartition(_): InputPartition).toArray
    override def createReaderFactory(): PartitionReaderFactory = new CecReaderFactory(view, schema)
  }

  override def toMicroBatchStream(checkpointLocation: String): MicroBatchStream = view match {
    case output: OutputView => new CecStream(output, schema)
    case other => throw new UnsupportedOperationException(s"""readStream reads the view "output", not "${other.name}"""")
  }
}

private final case class CecPartition(split: String) extends InputPartition

/** Rows come from the agent as Arrow, and go on as Arrow; only state rows, which Spark alone can decode, go one by one. */
private final class CecReaderFactory(view: View, schema: StructType) extends PartitionReaderFactory {
  override def supportColumnarReads(partition: InputPartition): Boolean = !view.isInstanceOf[WindowsView]

  override def createColumnarReader(partition: InputPartition): PartitionReader[ColumnarBatch] =
    new ArrowReader(view.read(partition.asInstanceOf[CecPartition].split, schema.fieldNames.toSeq), schema)

  override def createReader(partition: InputPartition): PartitionReader[InternalRow] = {
    val windows = view.asInstanceOf[WindowsView]
    val columns = Seq("key", "value", "partition", "footprint_version", "dirty")
    val inner = new ArrowReader(windows.read(partition.asInstanceOf[CecPartition].split, columns), windows.stored)
    new WindowReader(inner, windows, schema)
  }
}

/** Reads the agent's spool file, and removes it. */
private final class ArrowReader(spool: Option[String], schema: StructType) extends PartitionReader[ColumnarBatch] {
  private val allocator = ArrowUtils.rootAllocator.newChildAllocator("cec read", 0, Long.MaxValue)
  private val channel = spool.map(file => FileChannel.open(Paths.get(file), StandardOpenOption.READ))
  private val reader = channel.map(new ArrowStreamReader(_, allocator))
  private lazy val vectors: Array[ColumnVector] = schema.fieldNames.map { name =>
    new LentVector(reader.get.getVectorSchemaRoot.getVector(name)): ColumnVector
  }

  override def next(): Boolean = reader.exists(_.loadNextBatch())

  override def get(): ColumnarBatch = new ColumnarBatch(vectors, reader.get.getVectorSchemaRoot.getRowCount)

  override def close(): Unit = {
    reader.foreach(_.close())
    channel.foreach(_.close())
    allocator.close()
    spool.foreach(file => Files.deleteIfExists(Paths.get(file)))
  }
}

/** A vector that its reader fills again and again: whoever is through with a batch must not take it apart. */
private final class LentVector(vector: ValueVector) extends ArrowColumnVector(vector) {
  override def close(): Unit = ()
}

private final class WindowReader(inner: ArrowReader, view: WindowsView, schema: StructType) extends PartitionReader[InternalRow] {
  private var rows: java.util.Iterator[InternalRow] = java.util.Collections.emptyIterator()

  override def next(): Boolean = {
    while (!rows.hasNext && inner.next()) rows = inner.get().rowIterator()
    rows.hasNext
  }

  override def get(): InternalRow = {
    val row = rows.next()
    new GenericInternalRow(schema.fieldNames.map[Any] {
      case "key" => decode(row.getBinary(0), view.key.length)
      case "value" => decode(row.getBinary(1), view.value.length)
      case "partition" => row.getInt(2)
      case "footprint_version" => row.getLong(3)
      case "dirty" => if (row.isNullAt(4)) null else row.getBoolean(4)
    })
  }

  override def close(): Unit = inner.close()

  private def decode(bytes: Array[Byte], fields: Int): UnsafeRow = {
    val row = new UnsafeRow(fields)
    row.pointTo(bytes, Platform.BYTE_ARRAY_OFFSET, bytes.length)
    row
  }
}

private final case class BatchOffset(batch: Long) extends Offset {
  override def json(): String = batch.toString
}

/** The output of a query as a stream; an offset is the id of the last batch read. */
private final class CecStream(view: OutputView, schema: StructType) extends MicroBatchStream with SupportsTriggerAvailableNow {
  private var availableNow: Option[Long] = None

  override def initialOffset(): Offset = BatchOffset(view.first - 1)

  override def deserializeOffset(json: String): Offset = BatchOffset(json.trim.toLong)

  override def getDefaultReadLimit: ReadLimit = ReadLimit.allAvailable()

  override def prepareForTriggerAvailableNow(): Unit = availableNow = Some(view.newest)

  override def latestOffset(): Offset = BatchOffset(view.newest)

  override def latestOffset(start: Offset, limit: ReadLimit): Offset = {
    val told = start.asInstanceOf[BatchOffset].batch
    val from = if (view.mayLose) Math.max(told, view.oldest - 1) else told // else a limit would count batches that are not kept
    val limited = view.maxBatches.map(from + _).filter(_ > from).getOrElse(Long.MaxValue)
    BatchOffset(Math.max(from, Math.min(availableNow.getOrElse(view.newest), limited)))
  }

  override def reportLatestOffset(): Offset = BatchOffset(view.newest)

  override def planInputPartitions(start: Offset, end: Offset): Array[InputPartition] =
    view.splits(start.asInstanceOf[BatchOffset].batch + 1, end.asInstanceOf[BatchOffset].batch, whole = false)
      .map(CecPartition(_): InputPartition).toArray

  override def createReaderFactory(): PartitionReaderFactory = new CecReaderFactory(view, schema)

  override def commit(end: Offset): Unit = ()

  override def stop(): Unit = ()
}
