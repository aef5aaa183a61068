package org.apache.spark.sql.cec.state

import java.util.ArrayList

import scala.jdk.CollectionConverters._

import org.apache.spark.sql.catalyst.expressions.UnsafeRow
import org.apache.spark.sql.execution.streaming.state.UnsafeRowPair
import org.apache.spark.unsafe.Platform

/** Sums over all windows: state keys, bytes of keys and values, and the hash over all rows in any order. */
private[cec] final case class StateTotals(rows: Long = 0L, bytes: Long = 0L, digest: Long = 0L)

/**
 * The windows of one store at one version, with the undo list of the batch under way. Not thread-safe: `TaskLock` lets
 * one task in at a time.
 *
 * @param keyFields fields of a state key
 * @param valueFields fields of a value
 * @param prefixOf returns the id of the window that a state key belongs to; None in a store without prefix
 * @param order of the keys in a store with range scans
 * @param cold the windows on the local disk; null: all windows stay in memory
 * @param books get the windows that come back from the local disk
 */
private[cec] final class LiveWindows(
    keyFields: Int, valueFields: Int, prefixOf: Option[UnsafeRow => UnsafeRow], order: Option[RangeOrder], rowDigest: RowDigest,
    cold: ColdWindows, books: CheckpointIndex) {
  private var table = new WindowTable
  private var undo = new UndoLog(0)
  private val readOrder = new ReadOrderCache
  private val loadedKey = new UnsafeRow(keyFields)

  /** Windows of an eventual checkpoint that are not in the table yet. */
  private val loading = new ArrayList[Window]()

  /** The store's version before the batch under way, which is also the id of that batch. */
  var version: Long = 0L

  /** The hold rule of the replay under way. */
  var hold: Option[ReplayVisibility] = None

  /** Sums at `version`, without the batch under way. */
  private var committedTotals = StateTotals()

  /**
   * The batch's additions to the sums. A row is counted when it changes, because it is in the CPU's cache
   * then.
   */
  private var rows, bytes, digest = 0L

  /** Sums with the batch under way. */
  def sums: StateTotals = StateTotals(committedTotals.rows + rows, committedTotals.bytes + bytes, committedTotals.digest + digest)

  def get(key: UnsafeRow): UnsafeRow = {
    val window = findWindow(key)
    if (window == null) return null
    readOrder.add(window)
    if (!visible(window)) null
    else window match {
      case one: KeyWindow => if (one.isOpen) one.value(valueFields) else null
      case group: GroupWindow => group.rows.get(key)
    }
  }

  def put(key: UnsafeRow, value: UnsafeRow): Unit = {
    val id = idOf(key)
    var window = readOrder.next(id)
    if (window == null) {
      window = findById(id)
      readOrder.goOnAfter(window)
    }
    if (acceptsChange(window)) {
      if (window == null) window = openWindow(id, id.hashCode)
      touchWindow(window)
      window match {
        case one: KeyWindow =>
          val seed = rowDigest.seed(key)
          uncount(one, seed)
          one.put(key, value)
          count(one, seed)
        case group: GroupWindow =>
          val copy = value.copy()
          count(key, group.rows.put(if (group.rows.containsKey(key)) key else key.copy(), copy), copy)
      }
    }
  }

  def remove(key: UnsafeRow): Unit = {
    val window = findWindow(key)
    if (window != null && hasKey(window, key) && acceptsChange(window)) {
      touchWindow(window)
      window match {
        case one: KeyWindow =>
          uncount(one, rowDigest.seed(key))
          one.close()
        case group: GroupWindow => count(key, group.rows.remove(key), null)
      }
    }
  }

  /** All pairs. The pair object is used again for each pair. Puts and removes may go on meanwhile. */
  def iterator: Iterator[UnsafeRowPair] = makePairs(sortWindows(windows))

  def prefixScan(prefix: UnsafeRow): Iterator[UnsafeRowPair] = order match {
    case Some(range) => makePairs(windows.filter(range.hasPrefix(_, prefix)))
    case None => makePairs(Option(findById(prefix)).iterator)
  }

  /** The pairs with keys in [start, end), in order. */
  def rangeScan(start: Option[UnsafeRow], end: Option[UnsafeRow]): Iterator[UnsafeRowPair] =
    makePairs(sortWindows(windows.filter(window => order.forall(_.within(window, start, end)))))

  /** The windows that the batch under way touched, in the order of first touch. */
  def touched: UndoLog = undo

  /** All windows, for reading only: a change to a cold window is lost. */
  def windows: Iterator[Window] =
    if (cold == null) table.iterator
    else {
      // Both lists are made now. A window that becomes warm meanwhile is in the list of cold ones, once.
      val (warm, rest) = (table.iterator.toArray, cold.iterator)
      warm.iterator ++ rest.map { case (id, window) => Option(table.get(Window.row(id, 0), window.hash)).getOrElse(window) }
    }

  /** The windows in memory. */
  def warm: Iterator[Window] = table.iterator

  /** Moves all windows but these to the local disk. Call it between batches only. */
  def cool(kept: Seq[UndoStamps]): Unit = if (cold != null) {
    val warm = new WindowTable
    for (stamps <- kept; i <- 0 until stamps.size if stamps.window(i).isOpen) warm.addIfAbsent(stamps.window(i))
    cold.closeIterators()
    cold.give(table.iterator.filter(window => warm.get(Window.row(window.id, 0), window.hash) == null))
    table = warm
    readOrder.clear() // a task may have read windows after its commit, and they may be cold now
    books.keep(warm.iterator)
  }

  /** Adds a window of one key from an eventual checkpoint, which has each window once. `loaded` makes it visible. */
  def loadKey(keySize: Int, keyAndValue: Array[Byte], footprint: Long): Unit = {
    loadedKey.pointTo(keyAndValue, Platform.BYTE_ARRAY_OFFSET, keySize)
    val window = new KeyWindow(keySize, loadedKey.hashCode)
    window.put(keyAndValue)
    window.footprint = footprint
    count(window, rowDigest.seed(loadedKey))
    loading.add(window)
    if (cold != null && loading.size >= LiveWindows.LoadedAtOnce) {
      cold.giveMany(loading.iterator.asScala)
      loading.clear()
    }
  }

  /** Adds a row from an eventual checkpoint to the window `id`, and opens that window if needed. */
  def loadRow(id: UnsafeRow, key: Array[Byte], value: Array[Byte], footprint: Long): Unit = {
    val known = findById(id)
    val window = (if (known != null) known else table.addIfAbsent(new GroupWindow(id.getBytes, id.hashCode))).asInstanceOf[GroupWindow]
    window.footprint = footprint
    val (keyRow, valueRow) = (Window.row(key, keyFields), Window.row(value, valueFields))
    count(keyRow, window.rows.put(keyRow, valueRow), valueRow)
    if (cold != null && table.size >= LiveWindows.LoadedAtOnce) {
      cold.giveMany(table.iterator)
      table = new WindowTable
    }
  }

  /** Ends the batch: removes closed windows, begins a new undo list and returns the old one. */
  def advance(): UndoLog = {
    val done = undo
    undo = new UndoLog(done.size)
    endBatch(done)
    readOrder.clear()
    setTotals(sums)
    version += 1
    done
  }

  /** Takes the batch under way back. */
  def rollback(): Unit = {
    var i = 0
    while (i < undo.size) {
      restoreRows(undo, i)
      i += 1
    }
    endBatch(undo)
    readOrder.clear()
    undo.clear()
    setTotals(committedTotals)
  }

  /** Unmarks the windows of a batch that is over, and removes the closed ones. */
  private def endBatch(batch: UndoLog): Unit = {
    var i = 0
    while (i < batch.size) {
      val window = batch.window(i)
      window.isTouched = false
      if (!window.isOpen) table.remove(window)
      i += 1
    }
  }

  /** Gives the windows that the batch under way closed their rows back. */
  def reopen(): Unit = (0 until undo.size).foreach { i =>
    val window = undo.window(i)
    if (undo.wasOpen(i) && !window.isOpen) window match {
      case one: KeyWindow =>
        restoreRows(undo, i)
        count(one, rowDigest.seed(one.key(keyFields)))
      case group: GroupWindow =>
        group.restore(undo.rows(i))
        group.rows.forEach((key, value) => count(key, null, value))
    }
  }

  /**
   * Brings the windows back to version `at`.
   *
   * @param images the undo list that `advance` returned for the batch after `at`
   * @param sums the sums at `at`
   */
  def restore(images: UndoLog, sums: StateTotals, at: Long): Unit = {
    (0 until images.size).foreach { i =>
      val window = images.window(i)
      val absent = !window.isOpen
      restoreRows(images, i)
      images.restamp(i)
      if (absent && window.isOpen) table.add(window)
      if (!absent && !window.isOpen) table.remove(window)
    }
    setTotals(sums)
    version = at
  }

  /** Gives a window its rows back. The caller restores the sums. */
  private def restoreRows(images: UndoLog, i: Int): Unit = {
    val window = images.window(i)
    window.restore(images.rows(i))
    window match {
      case one: KeyWindow if one.isOpen => one.digest = rowDigest.hash(one.bytes, one.valueFrom, rowDigest.seed(one.key(keyFields)))
      case _ =>
    }
  }

  /** Makes room for windows that a load will add. */
  def expect(windows: Long): Unit = table.reserve(if (cold == null) windows else Math.min(windows, LiveWindows.LoadedAtOnce))

  /** Ends a load: puts the windows into the table and into the books. */
  def loaded(): Unit = {
    table.addAll(loading)
    // In the order of arrival, which is the order in memory.
    books.rebuild(if (loading.isEmpty) table.iterator else loading.iterator.asScala)
    loading.clear()
    loading.trimToSize()
    setTotals(sums)
  }

  private def setTotals(at: StateTotals): Unit = {
    committedTotals = at
    rows = 0L
    bytes = 0L
    digest = 0L
  }

  /** Counts the value of a window. The window keeps its digest, so that a later change can subtract it. */
  private def count(window: KeyWindow, seed: Long): Unit = {
    window.digest = rowDigest.hash(window.bytes, window.valueFrom, seed)
    add(1, window.bytes.length, window.digest)
  }

  private def uncount(window: KeyWindow, seed: Long): Unit = if (window.isOpen) {
    add(-1, -window.bytes.length, -window.digest)
  }

  private def count(key: UnsafeRow, before: UnsafeRow, after: UnsafeRow): Unit = {
    val seed = rowDigest.seed(key)
    for ((row, sign) <- Seq(before -> -1, after -> 1) if row != null) {
      val value = row.getBytes
      add(sign, sign * (key.getSizeInBytes + value.length), sign * rowDigest.hash(value, 0, seed))
    }
  }

  private def add(rows: Int, bytes: Int, digest: Long): Unit = {
    this.rows += rows
    this.bytes += bytes
    this.digest += digest
  }

  private def sortWindows(windows: Iterator[Window]): Iterator[Window] = order.map(_.sorted(windows)).getOrElse(windows)

  private def idOf(key: UnsafeRow): UnsafeRow = if (prefixOf.isEmpty) key else prefixOf.get(key)

  private def findWindow(key: UnsafeRow): Window = findById(idOf(key))

  /** Whether the window with this id is open. */
  def isOpen(id: UnsafeRow): Boolean = Option(findById(id)).exists(_.isOpen)

  private def findById(id: UnsafeRow): Window = {
    val window = table.get(id, id.hashCode)
    if (window != null || cold == null) window else warmUp(id.getBytes)
  }

  /** Moves a cold window into memory and returns it; null if no cold window has this id. */
  def warmUp(id: Array[Byte]): Window = {
    val window = cold.take(id)
    if (window != null) {
      window match {
        case one: KeyWindow => one.digest = rowDigest.hash(one.bytes, one.valueFrom, rowDigest.seed(one.key(keyFields)))
        case _ =>
      }
      table.add(window)
      books.enter(window)
    }
    window
  }

  private def hasKey(window: Window, key: UnsafeRow): Boolean = window match {
    case one: KeyWindow => one.isOpen
    case group: GroupWindow => group.rows.containsKey(key)
  }

  private def openWindow(id: UnsafeRow, hash: Int): Window = {
    val window = if (prefixOf.isEmpty) new KeyWindow(id.getSizeInBytes, hash) else new GroupWindow(id.copy().getBytes, hash)
    table.add(window)
    window
  }

  private def touchWindow(window: Window): Unit = if (!window.isTouched) {
    window.isTouched = true
    undo.add(window)
  }

  private def visible(window: Window): Boolean = hold.isEmpty || hold.get.visible(window, version)

  private def acceptsChange(window: Window): Boolean = hold.isEmpty || hold.get.accepts(window, version)

  private def makePairs(windows: Iterator[Window]): Iterator[UnsafeRowPair] =
    if (prefixOf.isEmpty) new KeyPairs(windows)
    else {
      val pair = new UnsafeRowPair()
      windows.filter(window => window.isOpen && visible(window)).flatMap(_.asInstanceOf[GroupWindow].rows.entrySet
        .toArray(new Array[java.util.Map.Entry[UnsafeRow, UnsafeRow]](0)).iterator.map(entry => pair.withRows(entry.getKey, entry.getValue)))
    }

  /**
   * The pairs of windows of one key. A query with a watermark visits all of them in each batch, so no iterator is made
   * per window.
   */
  private final class KeyPairs(windows: Iterator[Window]) extends Iterator[UnsafeRowPair] {
    private val pair = new UnsafeRowPair()
    private var found: KeyWindow = _

    override def hasNext: Boolean = {
      while (found == null && windows.hasNext) {
        val window = windows.next()
        if (window.isOpen && visible(window)) found = window.asInstanceOf[KeyWindow]
      }
      found != null
    }

    override def next(): UnsafeRowPair = {
      if (!hasNext) throw new NoSuchElementException("no more windows")
      val window = found
      found = null
      pair.withRows(window.key(keyFields), window.value(valueFields))
    }
  }
}

private object LiveWindows {
  /** A load moves windows to the local disk in steps of this size. */
  val LoadedAtOnce = 1 << 18
}
