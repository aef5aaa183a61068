package org.apache.spark.sql.cec.state

import org.apache.spark.sql.catalyst.expressions.UnsafeRow
import org.apache.spark.unsafe.Platform

/**
 * One window: a state key with its value, or, in a grouped store, all keys of one prefix with theirs.
 *
 * @param id the state key, or the prefix
 * @param hash of `id`
 */
private[cec] abstract class Window(val id: UnsafeRow, val hash: Int) {
  /** Version of the newest record of this window in the log (the paper's tau); [[Window.Never]] before its opening. */
  var footprint: Long = Window.Never

  /** The batch that first changed this window after its footprint; [[Window.Clean]] if none did. */
  var dirtySince: Long = Window.Clean

  /** Its place in the undo list of the batch under way, or -1 if that batch has not touched it. */
  var touch: Int = -1

  /** The round of choosing checks in which this window was chosen last. */
  var checkRound: Long = -1L

  def isOpen: Boolean

  def isDirty: Boolean = dirtySince != Window.Clean

  /** What `restore` needs to give this window back its present rows. */
  def saved: AnyRef

  def restore(rows: AnyRef): Unit

  def foreachRow(visit: (UnsafeRow, UnsafeRow) => Unit): Unit

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
}

/** A window of a store without prefix: one key. */
private[cec] final class KeyWindow(id: UnsafeRow, hash: Int) extends Window(id, hash) {
  /** Null: not open. */
  var value: UnsafeRow = _

  override def isOpen: Boolean = value != null
  override def saved: AnyRef = value
  override def restore(rows: AnyRef): Unit = value = rows.asInstanceOf[UnsafeRow]
  override def foreachRow(visit: (UnsafeRow, UnsafeRow) => Unit): Unit = if (value != null) visit(id, value)
  override def rowCount: Int = if (value != null) 1 else 0
}

/** A window of a store with prefix: state flows between the keys of a prefix, so they stand and fall together. */
private[cec] final class GroupWindow(id: UnsafeRow, hash: Int) extends Window(id, hash) {
  private type Rows = java.util.LinkedHashMap[UnsafeRow, UnsafeRow]

  var rows: Rows = new Rows(4)

  override def isOpen: Boolean = !rows.isEmpty
  override def saved: AnyRef = new Rows(rows)
  /** A copy: what was saved may be wanted once more, when a batch is run for the third time. */
  override def restore(saved: AnyRef): Unit = rows = new Rows(saved.asInstanceOf[Rows])
  override def foreachRow(visit: (UnsafeRow, UnsafeRow) => Unit): Unit = rows.forEach((key, value) => visit(key, value))
  override def rowCount: Int = rows.size
}
