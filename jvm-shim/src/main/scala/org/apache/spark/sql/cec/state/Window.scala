package org.apache.spark.sql.cec.state

import org.apache.spark.sql.catalyst.expressions.UnsafeRow
import org.apache.spark.unsafe.Platform
import org.apache.spark.unsafe.array.ByteArrayMethods

/**
 * One window: a state key with its value, or, in a grouped store, all keys of one prefix with their values.
 *
 * @param hash of the window's id: of the state key, or of the prefix
 */
private[cec] abstract class Window(val hash: Int) {
  /** Version of the newest record of this window in the log (the paper's tau); [[Window.Never]] before it opens. */
  var footprint: Long = Window.Never

  /** The batch that first changed this window after its footprint; [[Window.Clean]] if none did. */
  var dirtySince: Long = Window.Clean

  /** The last call of `CommitRecordChooser.spoolTo` that chose this window. */
  var checkRound: Long = -1L

  /** Whether the batch under way touched this window. */
  var isTouched: Boolean = false

  /** The bytes of the window's id. */
  def id: Array[Byte]

  def hasId(row: UnsafeRow): Boolean

  def hasIdOf(other: Window): Boolean

  def isOpen: Boolean

  def isDirty: Boolean = dirtySince != Window.Clean

  /** The window's rows, for `restore`; null if it is closed. */
  def saved: AnyRef

  def restore(rows: AnyRef): Unit

  /** Visits the bytes of each state key and its value. */
  def foreachRow(visit: (Array[Byte], Array[Byte]) => Unit): Unit

  def rowCount: Int
}

private[cec] object Window {
  val Never: Long = -1L
  val Clean: Long = Long.MaxValue

  /** Makes a row over these bytes. */
  def row(bytes: Array[Byte], fields: Int): UnsafeRow = {
    val row = new UnsafeRow(fields)
    row.pointTo(bytes, Platform.BYTE_ARRAY_OFFSET, bytes.length)
    row
  }

  /** Whether the first `size` bytes are equal to the row. */
  def same(bytes: Array[Byte], size: Int, row: UnsafeRow): Boolean = size == row.getSizeInBytes &&
    ByteArrayMethods.arrayEquals(bytes, Platform.BYTE_ARRAY_OFFSET, row.getBaseObject, row.getBaseOffset, size)
}

/**
 * A window of a store without prefix: one key. One array has key and value, and no row object exists, because there
 * are millions of windows and each object costs a memory access.
 *
 * @param keySize bytes of the key
 */
private[cec] final class KeyWindow(keySize: Int, hash: Int) extends Window(hash) {
  /** The bytes of the key, then of the value. Never changed in place, because `restore` puts the old array back. */
  var bytes: Array[Byte] = _

  private var open = false

  /** The row's part of the digest. */
  var digest: Long = 0L

  def key(fields: Int): UnsafeRow = row(0, keySize, fields)

  def value(fields: Int): UnsafeRow = row(keySize, valueSize, fields)

  /** Where in `bytes` the value begins. */
  def valueFrom: Int = keySize

  def valueSize: Int = bytes.length - keySize

  /** Changes the window, or opens it. */
  def put(keyAndValue: Array[Byte]): Unit = {
    bytes = keyAndValue
    open = true
  }

  def put(key: UnsafeRow, value: UnsafeRow): Unit = {
    val both = new Array[Byte](keySize + value.getSizeInBytes)
    key.writeToMemory(both, Platform.BYTE_ARRAY_OFFSET)
    value.writeToMemory(both, Platform.BYTE_ARRAY_OFFSET + keySize)
    put(both)
  }

  /** Closes the window and keeps its key. */
  def close(): Unit = open = false

  override def id: Array[Byte] = java.util.Arrays.copyOf(bytes, keySize)
  override def hasId(row: UnsafeRow): Boolean = Window.same(bytes, keySize, row)
  override def hasIdOf(other: Window): Boolean = hasId(Window.row(other.id, 0))
  override def isOpen: Boolean = open
  override def saved: AnyRef = if (open) bytes else null
  override def restore(rows: AnyRef): Unit = if (rows == null) close() else put(rows.asInstanceOf[Array[Byte]])
  override def foreachRow(visit: (Array[Byte], Array[Byte]) => Unit): Unit =
    if (open) visit(id, java.util.Arrays.copyOfRange(bytes, keySize, bytes.length))
  override def rowCount: Int = if (open) 1 else 0

  private def row(from: Int, size: Int, fields: Int): UnsafeRow = {
    val row = new UnsafeRow(fields)
    row.pointTo(bytes, Platform.BYTE_ARRAY_OFFSET + from, size)
    row
  }
}

/** A window of a store with prefix. State flows between the keys of a prefix, so they open and close together. */
private[cec] final class GroupWindow(override val id: Array[Byte], hash: Int) extends Window(hash) {
  private type Rows = java.util.LinkedHashMap[UnsafeRow, UnsafeRow]

  /** The rows. Each row has bytes of its own. */
  var rows: Rows = new Rows(4)

  override def hasId(row: UnsafeRow): Boolean = Window.same(id, id.length, row)
  override def hasIdOf(other: Window): Boolean = java.util.Arrays.equals(id, other.id)
  override def isOpen: Boolean = !rows.isEmpty
  override def saved: AnyRef = if (rows.isEmpty) null else new Rows(rows)
  /** Copies the rows, because a third run of the batch needs them again. */
  override def restore(saved: AnyRef): Unit = rows = if (saved == null) new Rows(4) else new Rows(saved.asInstanceOf[Rows])
  override def foreachRow(visit: (Array[Byte], Array[Byte]) => Unit): Unit = rows.forEach((key, value) => visit(key.getBytes, value.getBytes))
  override def rowCount: Int = rows.size
}

/**
 * Footprints and dirty versions of windows at an earlier time. The stamps are in columns, because a batch may touch
 * many windows.
 */
private[cec] class UndoStamps(expected: Int) {
  protected var windows = new Array[Window](Math.max(expected, 16))
  private var footprints, dirty = new Array[Long](windows.length)
  private var count = 0

  def size: Int = count

  def window(i: Int): Window = windows(i)

  /** Keeps the window's present stamps. */
  def add(window: Window): Unit = {
    if (count == windows.length) grow(2 * count)
    windows(count) = window
    footprints(count) = window.footprint
    dirty(count) = window.dirtySince
    count += 1
  }

  /** Gives a window its old stamps back. */
  def restamp(i: Int): Unit = {
    windows(i).footprint = footprints(i)
    windows(i).dirtySince = dirty(i)
  }

  def clear(): Unit = {
    java.util.Arrays.fill(windows.asInstanceOf[Array[AnyRef]], 0, count, null)
    count = 0
  }

  protected def grow(length: Int): Unit = {
    windows = java.util.Arrays.copyOf(windows, length)
    footprints = java.util.Arrays.copyOf(footprints, length)
    dirty = java.util.Arrays.copyOf(dirty, length)
  }
}

/** Windows at an earlier time, with their rows. */
private[cec] final class UndoLog(expected: Int) extends UndoStamps(expected) {
  private var saved = new Array[AnyRef](windows.length)

  def wasOpen(i: Int): Boolean = saved(i) != null

  def rows(i: Int): AnyRef = saved(i)

  override def add(window: Window): Unit = {
    super.add(window)
    saved(size - 1) = window.saved
  }

  override def clear(): Unit = {
    java.util.Arrays.fill(saved, 0, size, null)
    super.clear()
  }

  override protected def grow(length: Int): Unit = {
    super.grow(length)
    saved = java.util.Arrays.copyOf(saved, length)
  }
}
