package org.apache.spark.sql.cec.state

import java.io.{ByteArrayInputStream, ByteArrayOutputStream}
import java.nio.channels.FileChannel
import java.nio.file.{Files, Path, StandardOpenOption}

import scala.jdk.CollectionConverters._
import scala.util.control.NonFatal

import org.apache.arrow.vector.{BigIntVector, BitVectorHelper, TinyIntVector, VarBinaryVector, VectorSchemaRoot}
import org.apache.arrow.vector.ipc.{ArrowStreamReader, ArrowStreamWriter}
import org.apache.arrow.vector.types.pojo.{ArrowType, Field, FieldType, Schema}

import org.apache.spark.sql.catalyst.expressions.UnsafeRow
import org.apache.spark.sql.cec.Acquired
import org.apache.spark.sql.cec.agent.{SpoolFile, SpoolPath}
import org.apache.spark.sql.util.ArrowUtils
import org.apache.spark.unsafe.Platform

/** Kinds of a record, as the log's format numbers them. */
private[state] object RecordKind {
  val Open: Byte = 1
  val Check: Byte = 2
  val Close: Byte = 3
}

/**
 * The records of one commit on their way to the agent: an Arrow IPC stream in a spool file. The first record creates
 * the file.
 */
private[state] final class RecordSpool(grouped: Boolean, newFile: () => SpoolPath) extends AutoCloseable {
  private var stream: RecordStream = _
  private val rows = new RowsOfWindow
  private var place: SpoolPath = _
  private var isKept = false

  var opened, checked, closed: Long = 0L

  def records: Long = opened + checked + closed

  def open(live: LiveWindows, window: Int): Unit = opened += addRows(RecordKind.Open, live, window)

  def check(live: LiveWindows, window: Int): Unit = checked += addRows(RecordKind.Check, live, window)

  def close(live: LiveWindows, window: Int): Unit = close(live.id(window))

  def close(id: UnsafeRow): Unit = {
    openStream().add(RecordKind.Close, id, id, null)
    closed += 1
  }

  /** Completes the file and returns it; None if there are no records. */
  def finish(): Option[Path] = {
    if (stream != null) stream.finish()
    Option(stream).map(_.path)
  }

  /** Keeps the file after `close`. Somebody else removes it. */
  def keep(): Unit = isKept = true

  /** Frees the memory, and removes the file unless it is kept. */
  override def close(): Unit =
    try if (stream != null) stream.close()
    finally if (place != null && !isKept) place.delete()

  private def addRows(kind: Byte, live: LiveWindows, window: Int): Long = {
    rows.to = openStream()
    rows.kind = kind
    rows.id = if (grouped) live.id(window) else null
    live.foreachRow(window, rows)
    live.rowCount(window)
  }

  private def openStream(): RecordStream = {
    if (stream == null) {
      place = newFile()
      stream = new RecordStream(place, grouped)
    }
    stream
  }
}

/** Adds the rows of a window. There may be millions of windows, so all have one visitor. */
private final class RowsOfWindow extends RowVisitor {
  var to: RecordStream = _
  var kind: Byte = 0
  /** The id of a window of several keys; null: the window's key is its id. */
  var id: UnsafeRow = _

  override def visit(key: UnsafeRow, value: UnsafeRow): Unit = to.add(kind, if (id == null) key else id, key, value)
}

/**
 * A column of rows on its way into an Arrow vector. It copies whole words, where each call of Arrow's own setters makes
 * sure of the vector's size again.
 */
private final class RowColumn(vector: VarBinaryVector) {
  private var bytes = new Array[Byte](1 << 12)
  /** Where each row begins, and behind the last one where it ends. */
  private var begins = new Array[Int](1 << 6)
  private var count = 0

  /** Adds a row; null has no bytes. */
  def add(row: UnsafeRow): Unit = {
    if (count + 1 == begins.length) begins = java.util.Arrays.copyOf(begins, 2 * begins.length)
    val (begin, size) = (begins(count), if (row == null) 0 else row.getSizeInBytes)
    if (size > bytes.length - begin) {
      bytes = java.util.Arrays.copyOf(bytes, Math.max(Math.addExact(begin, size), Math.min(2L * bytes.length, RecordStream.BatchBytes).toInt))
    }
    if (row != null) Pages.copyWords(row.getBaseObject, row.getBaseOffset, bytes, Platform.BYTE_ARRAY_OFFSET + begin, size)
    count += 1
    begins(count) = begin + size
  }

  /** Fills the vector and begins anew. `isNull` tells which rows have no value. */
  def flush(isNull: Int => Boolean): Unit = {
    vector.allocateNew(begins(count), count)
    Platform.copyMemory(bytes, Platform.BYTE_ARRAY_OFFSET, null, vector.getDataBuffer.memoryAddress, begins(count))
    Platform.copyMemory(begins, Platform.INT_ARRAY_OFFSET, null, vector.getOffsetBuffer.memoryAddress, 4L * (count + 1))
    var i = 0
    while (i < count) {
      if (!isNull(i)) BitVectorHelper.setBit(vector.getValidityBuffer, i)
      i += 1
    }
    vector.setLastSet(count - 1)
    count = 0
    if (bytes.length > RecordStream.BatchBytes) bytes = new Array[Byte](1 << 12) // of one huge row
  }
}

private final class RecordStream(place: SpoolPath, grouped: Boolean) extends AutoCloseable {
  private def field(name: String, kind: ArrowType, nullable: Boolean) =
    new Field(name, new FieldType(nullable, kind, null), null)

  private val binary = new ArrowType.Binary
  private val fields = Seq(field("kind", new ArrowType.Int(8, true), nullable = false), field("window", binary, nullable = false)) ++
    (if (grouped) Seq(field("key", binary, nullable = false)) else Nil) :+ field("value", binary, nullable = true)
  private val acquired = new Acquired
  private val allocator = acquired(ArrowUtils.rootAllocator.newChildAllocator("cec commit", 0, Long.MaxValue))
  private val root = acquired(VectorSchemaRoot.create(new Schema(fields.asJava), allocator))
  private val kinds = root.getVector("kind").asInstanceOf[TinyIntVector]
  private val windows = columnOf("window")
  private val keys = if (grouped) columnOf("key") else null
  private val values = columnOf("value")
  private val channel = acquired(new SpoolFile(place))
  private val writer = new ArrowStreamWriter(root, null, channel)
  private var count = 0
  private var bytes = 0L
  acquired.step(writer.start())

  /** Adds a record. If `value` is null, the record has none. A store without prefix writes no key beside the window. */
  def add(kind: Byte, window: UnsafeRow, key: UnsafeRow, value: UnsafeRow): Unit = {
    val size = window.getSizeInBytes.toLong + (if (keys == null) 0 else key.getSizeInBytes) + (if (value == null) 0 else value.getSizeInBytes)
    if (count > 0 && bytes + size > RecordStream.BatchBytes) flush()
    bytes += size
    kinds.setSafe(count, kind)
    windows.add(window)
    if (keys != null) keys.add(key)
    values.add(value)
    count += 1
    if (count == RecordStream.BatchRows) flush()
  }

  /** Where the file is. */
  def path: Path = channel.path

  private def columnOf(name: String) = new RowColumn(root.getVector(name).asInstanceOf[VarBinaryVector])

  def finish(): Unit = {
    if (count > 0) flush()
    writer.end()
    channel.close()
  }

  override def close(): Unit = acquired.close()

  private def flush(): Unit = {
    windows.flush(_ => false)
    if (keys != null) keys.flush(_ => false)
    values.flush(kinds.get(_) == RecordKind.Close)
    root.setRowCount(count)
    writer.writeBatch()
    root.clear()
    count = 0
    bytes = 0L
  }
}

private object RecordStream {
  /** A batch ends at this number of rows, or before this number of bytes: the offsets of an Arrow buffer are ints. */
  val BatchRows: Int = 1 << 16
  val BatchBytes: Long = 64L << 20
}

/**
 * Loads the classes of Arrow in a thread of its own, once for a JVM. That takes most of a second, in which the first
 * load of a store waits for its agent.
 */
private[state] object ArrowClasses {
  def prepare(): Unit = thread

  private lazy val thread = {
    // If it fails, a load says what is wrong.
    val thread = new Thread(() => try readAndWrite() catch { case NonFatal(_) | _: LinkageError => }, "spark-cec-arrow-classes")
    thread.setDaemon(true)
    thread.start()
    thread
  }

  private def readAndWrite(): Unit = {
    val acquired = new Acquired
    try {
      val allocator = acquired(ArrowUtils.rootAllocator.newChildAllocator("cec classes", 0, Long.MaxValue))
      val fields = Seq(new ArrowType.Binary, new ArrowType.Int(64, true), new ArrowType.Int(8, true)).map(Field.nullable("", _))
      val root = acquired(VectorSchemaRoot.create(new Schema(fields.asJava), allocator))
      val bytes = new ByteArrayOutputStream
      val writer = acquired(new ArrowStreamWriter(root, null, bytes))
      writer.start()
      writer.writeBatch()
      writer.end()
      val reader = acquired(new ArrowStreamReader(new ByteArrayInputStream(bytes.toByteArray), allocator))
      reader.loadNextBatch()
    } finally acquired.close()
  }
}

/**
 * The values of an Arrow column without nulls. The class reads the memory itself, because Arrow checks the bounds of
 * each read again.
 *
 * @param offsets address of the places where values begin and end
 * @param data address of the first value
 */
private[state] final class LoadedColumn(offsets: Long, data: Long) {
  def size(i: Int): Int = Platform.getInt(null, offsets + 4L * i + 4) - Platform.getInt(null, offsets + 4L * i)

  /** The address of a value. */
  def at(i: Int): Long = data + Platform.getInt(null, offsets + 4L * i)

  /** The hashes of the first values as rows. */
  def hashes(count: Int): Array[Int] = {
    val all = new Array[Int](count)
    val row = new UnsafeRow(0)
    var i = 0
    while (i < count) {
      row.pointTo(null, at(i), size(i))
      all(i) = row.hashCode
      i += 1
    }
    all
  }
}

/** Reads the spool file of an eventual checkpoint, and removes it. */
private[state] object CheckpointSpool {
  /** Copies the windows of a store without prefix into its pages. */
  def loadKeys(file: Path, into: KeyWindows): Unit = foreachBatch(file) { root =>
    into.load(root.getRowCount, columnOf(root, "window"), columnOf(root, "value"), footprintVector(root).getDataBuffer.memoryAddress)
  }

  /** Copies the rows of a store with prefix into its pages. */
  def loadGroups(file: Path, into: GroupWindows): Unit = foreachBatch(file) { root =>
    val Seq(windows, keys, values) = Seq("window", "key", "value").map(columnOf(root, _))
    into.load(root.getRowCount, windows, keys, values, footprintVector(root).getDataBuffer.memoryAddress)
  }

  private def columnOf(root: VectorSchemaRoot, name: String): LoadedColumn = {
    val vector = root.getVector(name).asInstanceOf[VarBinaryVector]
    new LoadedColumn(vector.getOffsetBuffer.memoryAddress, vector.getDataBuffer.memoryAddress)
  }

  private def footprintVector(root: VectorSchemaRoot): BigIntVector = root.getVector("footprint").asInstanceOf[BigIntVector]

  private def foreachBatch(file: Path)(visit: VectorSchemaRoot => Unit): Unit = {
    val acquired = new Acquired
    acquired.undo(Files.deleteIfExists(file))
    try {
      val allocator = acquired(ArrowUtils.rootAllocator.newChildAllocator("cec load", 0, Long.MaxValue))
      val channel = acquired(FileChannel.open(file, StandardOpenOption.READ))
      val reader = acquired(new ArrowStreamReader(channel, allocator))
      while (reader.loadNextBatch()) visit(reader.getVectorSchemaRoot)
    } finally acquired.close()
  }
}
