package org.apache.spark.sql.cec.state

import java.util.ArrayList

import org.apache.spark.sql.catalyst.expressions.UnsafeRow
import org.apache.spark.sql.execution.streaming.state.UnsafeRowPair

/** A window as it was before a batch touched it. */
private[cec] final class Touched(val window: Window, val wasOpen: Boolean, val rows: AnyRef, val footprint: Long, val dirtySince: Long)

/** Sums over all windows: state keys, their bytes with those of their values, the order-free hash over them, and its sketch. */
private[cec] final case class Sums(rows: Long = 0L, bytes: Long = 0L, digest: Long = 0L, sketch: Long = 0L)

/**
 * The windows of one store at one version, with the undo list of the batch under way. Not safe for several threads: the
 * provider's lease lets one task in at a time.
 *
 * @param prefixOf the id of the window that a state key belongs to; None in a store without prefix
 * @param order of the keys in a store with range scans
 */
private[cec] final class LiveWindows(prefixOf: Option[UnsafeRow => UnsafeRow], order: Option[RangeOrder], rowDigest: RowDigest) {
  private val table = new WindowTable
  private var undo = new ArrayList[Touched]()

  /** Version that the store had before the batch under way: the id of that batch. */
  var version: Long = 0L

  /** Set while a replay is under way. */
  var hold: Option[HoldRule] = None

  /** Sums at `version`, without the batch under way. */
  private var settled = Sums()

  /** What the batch under way adds to them. They are counted when a row changes, because it is in the cache then. */
  private var rows, bytes, digest, sketch = 0L

  /** Sums with the batch under way. */
  def sums: Sums = Sums(settled.rows + rows, settled.bytes + bytes, settled.digest + digest, settled.sketch + sketch)

  /** Windows that are or were open in the batch under way. */
  def size: Int = table.size

  def get(key: UnsafeRow): UnsafeRow = find(key) match {
    case null => null
    case window if !visible(window) => null
    case window: KeyWindow => window.value
    case window: GroupWindow => window.rows.get(key)
  }

  def put(key: UnsafeRow, value: UnsafeRow): Unit = {
    var window = find(key)
    if (accepts(window)) {
      if (window == null) window = open(key)
      touch(window)
      val copy = value.copy()
      val before = window match {
        case one: KeyWindow =>
          val old = one.value
          one.value = copy
          old
        case group: GroupWindow => group.rows.put(if (group.rows.containsKey(key)) key else key.copy(), copy)
      }
      count(key, before, copy)
    }
  }

  def remove(key: UnsafeRow): Unit = {
    val window = find(key)
    if (window != null && has(window, key) && accepts(window)) {
      touch(window)
      val before = window match {
        case one: KeyWindow =>
          val old = one.value
          one.value = null
          old
        case group: GroupWindow => group.rows.remove(key)
      }
      count(key, before, null)
    }
  }

  /** All pairs; the pair object is reused. Puts and removes may go on meanwhile. */
  def iterator: Iterator[UnsafeRowPair] = pairs(inOrder(table.iterator))

  /** The pairs of one prefix. */
  def prefixScan(prefix: UnsafeRow): Iterator[UnsafeRowPair] = order match {
    case Some(range) => pairs(table.iterator.filter(range.hasPrefix(_, prefix)))
    case None => pairs(Option(table.get(prefix, prefix.hashCode)).iterator)
  }

  /** The pairs with keys in [start, end), in order. */
  def rangeScan(start: Option[UnsafeRow], end: Option[UnsafeRow]): Iterator[UnsafeRowPair] =
    pairs(inOrder(table.iterator.filter(window => order.forall(_.within(window, start, end)))))

  /** What the batch under way touched, in the order of first touch. */
  def touched: ArrayList[Touched] = undo

  def windows: Iterator[Window] = table.iterator

  /** A window as an eventual checkpoint has it; rows are added to an open window of the same id. */
  def load(window: => Window, id: UnsafeRow): Window = {
    val known = table.get(id, id.hashCode)
    if (known != null) known
    else {
      val fresh = window
      table.add(fresh)
      fresh
    }
  }

  /** Ends the batch: windows that closed go, the undo list is handed out and begins anew. */
  def advance(): ArrayList[Touched] = {
    val done = undo
    undo = new ArrayList[Touched](done.size)
    done.forEach { before =>
      before.window.touch = -1
      if (!before.window.isOpen) table.remove(before.window)
    }
    settle(sums)
    version += 1
    done
  }

  /** Takes back the batch under way. */
  def rollback(): Unit = {
    undo.forEach { before =>
      before.window.restore(before.rows)
      before.window.touch = -1
      if (!before.window.isOpen) table.remove(before.window)
    }
    undo.clear()
    settle(settled)
  }

  /** Gives the windows that the batch under way has closed their rows back. */
  def reopen(): Unit = undo.forEach { before =>
    if (before.wasOpen && !before.window.isOpen) {
      before.window.restore(before.rows)
      before.window.foreachRow((key, value) => count(key, null, value))
    }
  }

  /** Brings windows to what they were at version `at`, with the sums of then: what `advance` handed out takes its batch back. */
  def restore(images: ArrayList[Touched], sums: Sums, at: Long): Unit = {
    images.forEach { was =>
      val window = was.window
      val absent = !window.isOpen
      window.restore(was.rows)
      window.footprint = was.footprint
      window.dirtySince = was.dirtySince
      if (absent && window.isOpen) table.add(window)
      if (!absent && !window.isOpen) table.remove(window)
    }
    settle(sums)
    version = at
  }

  /** Makes room for windows that will be loaded. */
  def expect(windows: Long): Unit = table.reserve(windows)

  /** Counts a row that was loaded. */
  def counted(key: UnsafeRow, value: UnsafeRow): Unit = count(key, null, value)

  /** All rows were loaded. */
  def loaded(): Unit = settle(sums)

  private def settle(at: Sums): Unit = {
    settled = at
    rows = 0L
    bytes = 0L
    digest = 0L
    sketch = 0L
  }

  private def count(key: UnsafeRow, before: UnsafeRow, after: UnsafeRow): Unit = {
    val seed = rowDigest.seed(key)
    if (before != null) {
      rows -= 1
      bytes -= key.getSizeInBytes + before.getSizeInBytes
      digest -= rowDigest.hash(before, seed)
      if (rowDigest.floatColumns > 0) sketch -= rowDigest.sketch(before, seed)
    }
    if (after != null) {
      rows += 1
      bytes += key.getSizeInBytes + after.getSizeInBytes
      digest += rowDigest.hash(after, seed)
      if (rowDigest.floatColumns > 0) sketch += rowDigest.sketch(after, seed)
    }
  }

  private def inOrder(windows: Iterator[Window]): Iterator[Window] = order.map(_.sorted(windows)).getOrElse(windows)

  private def idOf(key: UnsafeRow): UnsafeRow = prefixOf match {
    case Some(project) => project(key)
    case None => key
  }

  private def find(key: UnsafeRow): Window = {
    val id = idOf(key)
    table.get(id, id.hashCode)
  }

  private def has(window: Window, key: UnsafeRow): Boolean = window match {
    case one: KeyWindow => one.value != null
    case group: GroupWindow => group.rows.containsKey(key)
  }

  private def open(key: UnsafeRow): Window = {
    val id = idOf(key).copy()
    val window = if (prefixOf.isDefined) new GroupWindow(id, id.hashCode) else new KeyWindow(id, id.hashCode)
    table.add(window)
    window
  }

  private def touch(window: Window): Unit = if (window.touch < 0) {
    window.touch = undo.size
    undo.add(new Touched(window, window.isOpen, window.saved, window.footprint, window.dirtySince))
  }

  private def visible(window: Window): Boolean = hold.forall(_.visible(window, version))

  private def accepts(window: Window): Boolean = hold.forall(_.accepts(window, version))

  private def pairs(windows: Iterator[Window]): Iterator[UnsafeRowPair] = {
    val pair = new UnsafeRowPair()
    windows.filter(window => window.isOpen && visible(window)).flatMap {
      case one: KeyWindow => Iterator.single(pair.withRows(one.id, one.value))
      case group: GroupWindow =>
        group.rows.entrySet.toArray(new Array[java.util.Map.Entry[UnsafeRow, UnsafeRow]](0)).iterator
          .map(entry => pair.withRows(entry.getKey, entry.getValue))
    }
  }
}
