package org.apache.spark.sql.cec.state

import org.apache.spark.sql.catalyst.expressions.UnsafeRow
import org.apache.spark.unsafe.Platform

/**
 * One window: a state key with its value, or, in a grouped store, all keys of one prefix with theirs.
 *
 * @param id the bytes of the state key, or of the prefix
 * @param hash of that row
 */
private[cec] abstract class Window(val id: Array[Byte], val hash: Int) {
  /** Version of the newest record of this window in the log (the paper's tau); [[Window.Never]] before its opening. */
  var footprint: Long = Window.Never

  /** The batch that first changed this window after its footprint; [[Window.Clean]] if none did. */
  var dirtySince: Long = Window.Clean

  /** The round of choosing checks in which this window was chosen last. */
  var checkRound: Long = -1L

  /** Whether the batch under way has touched it. */
  var isTouched: Boolean = false

  def isOpen: Boolean

  def isDirty: Boolean = dirtySince != Window.Clean

  /** What `restore` needs to give this window back its present rows; null if it has none. */
  def saved: AnyRef

  def restore(rows: AnyRef): Unit

  /** Calls with the bytes of each state key and of its value. */
  def foreachRow(visit: (Array[Byte], Array[Byte]) => Unit): Unit

  def rowCount: Int
}

private[cec] object Window {
  val Never: Long = -1L
  val Clean: Long = Long.MaxValue

  /** A row over bytes of its own. */
  def row(bytes: Array[Byte], fields: Int): UnsafeRow = {
    val row = new UnsafeRow(fields)
    row.pointTo(bytes, Platform.BYTE_ARRAY_OFFSET, bytes.length)
    row
  }

  /** A copy of a row's bytes, wherever they are. */
  def bytesOf(row: UnsafeRow): Array[Byte] = {
    val bytes = new Array[Byte](row.getSizeInBytes)
    row.writeToMemory(bytes, Platform.BYTE_ARRAY_OFFSET)
    bytes
  }
}

/** A window of a store without prefix: one key. It has bytes, not rows: there are millions, and a row is an object more. */
private[cec] final class KeyWindow(id: Array[Byte], hash: Int) extends Window(id, hash) {
  /** The bytes of the value; null: not open. */
  var value: Array[Byte] = _

  /** What its row is in the digest. */
  var digest: Long = 0L

  override def isOpen: Boolean = value != null
  override def saved: AnyRef = value
  override def restore(rows: AnyRef): Unit = value = rows.asInstanceOf[Array[Byte]]
  override def foreachRow(visit: (Array[Byte], Array[Byte]) => Unit): Unit = if (value != null) visit(id, value)
  override def rowCount: Int = if (value != null) 1 else 0
}

/** A window of a store with prefix: state flows between the keys of a prefix, so they stand and fall together. */
private[cec] final class GroupWindow(id: Array[Byte], hash: Int) extends Window(id, hash) {
  private type Rows = java.util.LinkedHashMap[UnsafeRow, UnsafeRow]

  /** Each row over bytes of its own. */
  var rows: Rows = new Rows(4)

  override def isOpen: Boolean = !rows.isEmpty
  override def saved: AnyRef = if (rows.isEmpty) null else new Rows(rows)
  /** A copy: what was saved may be wanted once more, when a batch is run for the third time. */
  override def restore(saved: AnyRef): Unit = rows = if (saved == null) new Rows(4) else new Rows(saved.asInstanceOf[Rows])
  override def foreachRow(visit: (Array[Byte], Array[Byte]) => Unit): Unit = rows.forEach((key, value) => visit(key.getBytes, value.getBytes))
  override def rowCount: Int = rows.size
}

/** Footprints and dirt of windows as they were, in columns: there are as many as a batch has updates. */
private[cec] class Stamps(expected: Int) {
  protected var windows = new Array[Window](Math.max(expected, 16))
  private var footprints, dirty = new Array[Long](windows.length)
  private var count = 0

  def size: Int = count

  def window(i: Int): Window = windows(i)

  /** Notes a window as it is. */
  def add(window: Window): Unit = {
    if (count == windows.length) grow(2 * count)
    windows(count) = window
    footprints(count) = window.footprint
    dirty(count) = window.dirtySince
    count += 1
  }

  /** Gives a window its footprint and dirt back. */
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

/** Windows as they were, with their rows. */
private[cec] final class Images(expected: Int) extends Stamps(expected) {
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
