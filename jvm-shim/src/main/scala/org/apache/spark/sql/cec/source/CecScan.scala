package org.apache.spark.sql.cec.source

import java.nio.channels.FileChannel
import java.nio.file.{Files, Paths, StandardOpenOption}

import org.apache.arrow.vector.ipc.ArrowStreamReader
import org.apache.arrow.vector.types.pojo.Field

import org.apache.spark.sql.cec.Acquired
import org.apache.spark.sql.cec.agent.Json
import org.apache.spark.sql.cec.recovery.InputBoundary
import org.apache.spark.sql.catalyst.InternalRow
import org.apache.spark.sql.catalyst.expressions.{GenericInternalRow, UnsafeRow}
import org.apache.spark.sql.connector.read._
import org.apache.spark.sql.connector.read.streaming._
import org.apache.spark.sql.internal.SQLConf
import org.apache.spark.sql.types.{StructField, StructType}
import org.apache.spark.sql.util.ArrowUtils
import org.apache.spark.sql.vectorized.{ArrowColumnVector, ColumnVector, ColumnarBatch}
import org.apache.spark.unsafe.Platform

private[source] final class CecScanBuilder(view: View, schema: StructType) extends ScanBuilder with SupportsPushDownRequiredColumns {
  private var columns = schema

  /** Prunes whole columns only. Spark may ask for some fields of a struct, but the log gives all of them. */
  override def pruneColumns(requiredSchema: StructType): Unit = columns = StructType(requiredSchema.map(column => schema(column.name)))

  override def build(): Scan = new CecScan(view, columns)
}

private final class CecScan(view: View, schema: StructType) extends Scan {
  override def readSchema(): StructType = schema

  override def description(): String = s"cec ${view.name} ${view.path}"

  override def toBatch: Batch = new Batch {
    view match {
      case output: OutputView if output.tentative => throw new UnsupportedOperationException(
        """option("tentative", "true") is for readStream: a batch reads the stable rows""")
      case _ =>
    }
    private val first = view match {
      case output: OutputView if output.startingMs.isDefined => output.first
      case _ => 0L
    }
    override def planInputPartitions(): Array[InputPartition] =
      view.splits(schema, first, Long.MaxValue, whole = true).map(CecPartition(_): InputPartition).toArray
    override def createReaderFactory(): PartitionReaderFactory = new CecReaderFactory(view, schema)
  }

  override def toMicroBatchStream(checkpointLocation: String): MicroBatchStream = view match {
    case output: OutputView => output.buckets match {
      case Some(buckets) if output.tentative =>
        new TentativeBucketStream(output, buckets, schema, SQLConf.get.minBatchesToRetain, checkpointLocation)
      case Some(buckets) => new BucketStream(output, buckets, schema, SQLConf.get.minBatchesToRetain, checkpointLocation)
      case None if output.tentative => new TentativeStream(output, schema, SQLConf.get.minBatchesToRetain, checkpointLocation)
      case None => new CecStream(output, schema, SQLConf.get.minBatchesToRetain, checkpointLocation)
    }
    case other => throw new UnsupportedOperationException(s"""readStream reads the view "output", not "${other.name}"""")
  }
}

/** @param constants the columns that the log does not have, by name, with the value for all rows */
private[source] final case class CecPartition(split: String, constants: Map[String, Any] = Map.empty) extends InputPartition

/**
 * A piece of an epoch's output.
 *
 * @param constants as of a [[CecPartition]]
 * @param flow the checkpoint of the flow, which has the epoch `number`
 */
private[source] final case class EpochPartition(split: String, constants: Map[String, Any], flow: String, number: Long) extends InputPartition

/**
 * Returns rows and no column batches. A consumer may keep a batch while it asks for the next, as Spark's Python
 * functions do, but the reader fills the same vectors again.
 */
private[source] final class CecReaderFactory(view: View, schema: StructType) extends PartitionReaderFactory {
  override def createReader(partition: InputPartition): PartitionReader[InternalRow] = {
    (partition, view) match {
      case (RowPartition(values), _) => new RowReader(values, schema)
      case (CecPartition(split, _), windows: WindowsView) =>
        val columns = Seq("key", "value", "partition", "footprint_version", "dirty")
        new WindowReader(new ArrowReader(windows.read(split, columns), windows.stored), windows, schema)
      case (CecPartition(split, constants), _) =>
        new ArrowReader(view.read(split, without(constants)), schema, constants, if (view.hasFormerTypes) Some(split) else None)
      case (EpochPartition(split, constants, flow, number), output: OutputView) =>
        new ArrowReader(output.copy(path = flow).readEpoch(number)(_.read(split, without(constants))).flatten, schema, constants)
      case (other, _) => throw new IllegalStateException(s"$other is no piece of a log")
    }
  }

  private def without(constants: Map[String, Any]): Seq[String] = schema.fieldNames.toSeq.filterNot(constants.contains)
}

/**
 * Reads the agent's spool file, and removes it. A row is valid until the next call of `next`.
 *
 * @param unsure the split, if its columns may have other types than the schema: Arrow would take their bytes for the schema's
 */
private final class ArrowReader(spool: Option[String], schema: StructType, constants: Map[String, Any] = Map.empty, unsure: Option[String] = None)
    extends PartitionReader[InternalRow] {
  private val acquired = new Acquired
  spool.foreach(file => acquired.undo(Files.deleteIfExists(Paths.get(file))))
  private val allocator = acquired(ArrowUtils.rootAllocator.newChildAllocator("cec read", 0, Long.MaxValue))
  private val channel = spool.map(file => acquired(FileChannel.open(Paths.get(file), StandardOpenOption.READ)))
  private val reader = channel.map(open => acquired(new ArrowStreamReader(open, allocator)))
  private lazy val vectors: Array[ColumnVector] = schema.fields.map { field =>
    if (constants.contains(field.name)) TentativeColumns.vector(field, constants(field.name))
    else {
      val vector = reader.get.getVectorSchemaRoot.getVector(field.name)
      unsure.foreach(ArrowTypes.check(vector.getField, field, _))
      new ArrowColumnVector(vector): ColumnVector
    }
  }
  private var rows: java.util.Iterator[InternalRow] = java.util.Collections.emptyIterator()
  private var row: InternalRow = _

  override def next(): Boolean = {
    while (!rows.hasNext && reader.exists(_.loadNextBatch())) rows = new ColumnarBatch(vectors, reader.get.getVectorSchemaRoot.getRowCount).rowIterator
    val more = rows.hasNext
    if (more) row = rows.next()
    more
  }

  override def get(): InternalRow = row

  override def close(): Unit = acquired.close()
}

private[source] object ArrowTypes {
  /** Refuses a column of Arrow that has another type than the wanted one. */
  def check(found: Field, wanted: StructField, split: String): Unit = {
    def inSpark(field: Field) = ArrowUtils.fromArrowField(field).asNullable
    val (before, now) = (inSpark(found), inSpark(ArrowUtils.toArrowField(wanted.name, wanted.dataType, wanted.nullable, "UTC", true)))
    if (before != now) throw new IllegalArgumentException(
      s"column ${wanted.name} of $split is ${before.sql}, and is ${now.sql} now: move that object elsewhere to read the others")
  }
}

/** Decodes rows of state, which the agent cannot. */
private final class WindowReader(inner: ArrowReader, view: WindowsView, schema: StructType) extends PartitionReader[InternalRow] {
  override def next(): Boolean = inner.next()

  override def get(): InternalRow = {
    val row = inner.get()
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

/** A stream of rows that another query has written, and that says which rows of it will not come any more. */
private[cec] trait BoundedChannel {
  /** The boundary when Spark last asked for more input; empty if there are more rows, or if the other query says nothing. */
  def boundary: InputBoundary
}

/** The last batch read. If the log records it, `of` tells this batch from another one with the same number. */
private[source] final case class BatchOffset(batch: Long, of: Option[String] = None) extends Offset {
  override def json(): String = of.fold(batch.toString)(known => Json.obj().put("batch", batch).put("of", known).toString)
}

private[source] object BatchOffset {
  /** Why a stream of stable rows cannot go on from an offset with an epoch: nothing would take its rows back. */
  def refusesTentative(json: String): String =
    s"the query has read tentative rows, up to $json, and is to read stable rows alone now: read as before until the epoch is over, " +
      "or give the flow another name, so that it begins anew"

  def parse(json: String): BatchOffset = Json.parse(json.trim) match {
    case node if node.has("by") => throw new IllegalArgumentException( // it has not read all rows of the batches up to its own
      s"the query has read by buckets so far, up to $json, and is to read whole batches now: ${BucketOffset.Mend}")
    case node if node.has("epoch") => throw new IllegalArgumentException(refusesTentative(json))
    case node if node.isObject => BatchOffset(node.get("batch").asLong, Json.text(node.get("of")))
    case number => BatchOffset(number.asLong)
  }
}

/**
 * The output of a query as a stream. An offset is the id of the last batch read.
 *
 * @param retained how many batches Spark's offset log keeps, any of which a recovery may run again
 * @param place Spark's metadata path for this source
 */
private final class CecStream(view: OutputView, schema: StructType, retained: Int, place: String)
    extends MicroBatchStream with SupportsTriggerAvailableNow with BoundedChannel {
  private var availableNow: Option[Long] = None

  /** Whether the stream has checked since its start that its last batch still exists. */
  private var checked = false
  private var newest: Option[Long] = None
  private var known = InputBoundary(None)

  /**
   * Begins the stream, because Spark asks for it only without an offset. An earlier stream with the same reader name
   * does not count.
   */
  override def initialOffset(): Offset = BatchOffset(view.begin(place))

  override def deserializeOffset(json: String): Offset = BatchOffset.parse(json)

  override def getDefaultReadLimit: ReadLimit = ReadLimit.allAvailable()

  override def prepareForTriggerAvailableNow(): Unit = availableNow = Some(view.newest)

  override def latestOffset(): Offset = BatchOffset(view.newest)

  override def latestOffset(start: Offset, limit: ReadLimit): Offset = {
    val from = start.asInstanceOf[BatchOffset]
    if (!checked) view.noteResumed(from.batch)
    val end = view.endAfter(from.batch, from.of, checked, availableNow, place)
    checked = true
    newest = Some(end.newest)
    known = end.boundary
    if (end.batch == from.batch) from else BatchOffset(end.batch, end.of)
  }

  override def boundary: InputBoundary = known

  override def reportLatestOffset(): Offset = BatchOffset(newest.getOrElse(view.newest))

  override def planInputPartitions(start: Offset, end: Offset): Array[InputPartition] = {
    val (from, to) = (start.asInstanceOf[BatchOffset], end.asInstanceOf[BatchOffset])
    view.splits(schema, from.batch + 1, to.batch, whole = false, to.of).map(CecPartition(_): InputPartition).toArray
  }

  override def createReaderFactory(): PartitionReaderFactory = new CecReaderFactory(view, schema)

  override def commit(end: Offset): Unit = view.noteEnd(Some(end.asInstanceOf[BatchOffset].batch), retained)

  override def stop(): Unit = view.noteEnd(None, retained)

  override def toString: String = s"cec ${view.path}"
}
