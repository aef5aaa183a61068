package org.apache.spark.sql.cec.state

import java.util.ArrayList

import scala.jdk.CollectionConverters._

import org.apache.spark.sql.catalyst.expressions.UnsafeRow
import org.apache.spark.sql.execution.streaming.state.UnsafeRowPair
import org.apache.spark.unsafe.Platform

/** Sums over all windows: state keys, their bytes with those of their values, and the order-free hash over them. */
private[cec] final case class StateTotals(rows: Long = 0L, bytes: Long = 0L, digest: Long = 0L)

/**
 * The windows of one store at one version, with the undo list of the batch under way. Not safe for several threads: the
 * provider's lock lets one task in at a time.
 *
 * @param keyFields fields of a state key
 * @param valueFields fields of a value
 * @param prefixOf the id of the window that a state key belongs to; None in a store without prefix
 * @param order of the keys in a store with range scans
 * @param cold where windows are that no batch has touched lately; null: there are none
 * @param books are told of windows that come from there
 */
private[cec] final class LiveWindows(
    keyFields: Int, valueFields: Int, prefixOf: Option[UnsafeRow => UnsafeRow], order: Option[RangeOrder], rowDigest: RowDigest,
    cold: ColdWindows, books: CheckpointIndex) {
  private var table = new WindowTable
  private var undo = new UndoLog(0)
  private val trail = new ReadOrderCache
  private val loadedKey = new UnsafeRow(keyFields)

  /** Windows of an eventual checkpoint on their way into the table. */
  private val loading = new ArrayList[Window]()

  /** Version that the store had before the batch under way: the id of that batch. */
  var version: Long = 0L

  /** Set while a replay is under way. */
  var hold: Option[ReplayVisibility] = None

  /** Sums at `version`, without the batch under way. */
  private var settled = StateTotals()

  /** What the batch under way adds to them. They are counted when a row changes, because it is in the cache then. */
  private var rows, bytes, digest = 0L

  /** Sums with the batch under way. */
  def sums: StateTotals = StateTotals(settled.rows + rows, settled.bytes + bytes, settled.digest + digest)

  def get(key: UnsafeRow): UnsafeRow = {
    val window = find(key)
    if (window == null) return null
    trail.add(window)
    if (!visible(window)) null
    else window match {
      case one: KeyWindow => if (one.isOpen) one.value(valueFields) else null
      case group: GroupWindow => group.rows.get(key)
    }
  }

  def put(key: UnsafeRow, value: UnsafeRow): Unit = {
    val id = idOf(key)
    var window = trail.next(id)
    if (window == null) {
      window = lookUp(id)
      trail.goOnAfter(window)
    }
    if (accepts(window)) {
      if (window == null) window = open(id, id.hashCode)
      touch(window)
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
    val window = find(key)
    if (window != null && has(window, key) && accepts(window)) {
      touch(window)
      window match {
        case one: KeyWindow =>
          uncount(one, rowDigest.seed(key))
          one.close()
        case group: GroupWindow => count(key, group.rows.remove(key), null)
      }
    }
  }

  /** All pairs; the pair object is reused. Puts and removes may go on meanwhile. */
  def iterator: Iterator[UnsafeRowPair] = pairs(inOrder(windows))

  /** The pairs of one prefix. */
  def prefixScan(prefix: UnsafeRow): Iterator[UnsafeRowPair] = order match {
    case Some(range) => pairs(windows.filter(range.hasPrefix(_, prefix)))
    case None => pairs(Option(lookUp(prefix)).iterator)
  }

  /** The pairs with keys in [start, end), in order. */
  def rangeScan(start: Option[UnsafeRow], end: Option[UnsafeRow]): Iterator[UnsafeRowPair] =
    pairs(inOrder(windows.filter(window => order.forall(_.within(window, start, end)))))

  /** What the batch under way touched, in the order of first touch. */
  def touched: UndoLog = undo

  /** All windows, to be looked at: what is done to one that is cold is lost. */
  def windows: Iterator[Window] =
    if (cold == null) table.iterator
    else {
      // Both as they are now: a window that becomes warm meanwhile is among the cold ones, once.
      val (warm, rest) = (table.iterator.toArray, cold.iterator)
      warm.iterator ++ rest.map { case (id, window) => Option(table.get(Window.row(id, 0), window.hash)).getOrElse(window) }
    }

  /** Those that are not cold. */
  def warm: Iterator[Window] = table.iterator

  /** Lets all windows but these go cold. Between batches only. */
  def cool(kept: Seq[UndoStamps]): Unit = if (cold != null) {
    val warm = new WindowTable
    for (stamps <- kept; i <- 0 until stamps.size if stamps.window(i).isOpen) warm.addIfAbsent(stamps.window(i))
    cold.closeIterators()
    cold.give(table.iterator.filter(window => warm.get(Window.row(window.id, 0), window.hash) == null))
    table = warm
    books.keep(warm.iterator)
  }

  /** Takes a window of one key as an eventual checkpoint has it, which has each once. It is there when all are. */
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

  /** Takes a row as an eventual checkpoint has it, in the window `id`; rows are added to an open window of that id. */
  def loadRow(id: UnsafeRow, key: Array[Byte], value: Array[Byte], footprint: Long): Unit = {
    val known = lookUp(id)
    val window = (if (known != null) known else table.addIfAbsent(new GroupWindow(id.getBytes, id.hashCode))).asInstanceOf[GroupWindow]
    window.footprint = footprint
    val (keyRow, valueRow) = (Window.row(key, keyFields), Window.row(value, valueFields))
    count(keyRow, window.rows.put(keyRow, valueRow), valueRow)
    if (cold != null && table.size >= LiveWindows.LoadedAtOnce) {
      cold.giveMany(table.iterator)
      table = new WindowTable
    }
  }

  /** Ends the batch: windows that closed go, the undo list is handed out and begins anew. */
  def advance(): UndoLog = {
    val done = undo
    undo = new UndoLog(done.size)
    leave(done)
    trail.clear()
    settle(sums)
    version += 1
    done
  }

  /** Takes back the batch under way. */
  def rollback(): Unit = {
    var i = 0
    while (i < undo.size) {
      putBack(undo, i)
      i += 1
    }
    leave(undo)
    trail.clear()
    undo.clear()
    settle(settled)
  }

  /** The batch under way is over: its windows are touched no more, and those that are not open are not there. */
  private def leave(batch: UndoLog): Unit = {
    var i = 0
    while (i < batch.size) {
      val window = batch.window(i)
      window.isTouched = false
      if (!window.isOpen) table.remove(window)
      i += 1
    }
  }

  /** Gives the windows that the batch under way has closed their rows back. */
  def reopen(): Unit = (0 until undo.size).foreach { i =>
    val window = undo.window(i)
    if (undo.wasOpen(i) && !window.isOpen) window match {
      case one: KeyWindow =>
        putBack(undo, i)
        count(one, rowDigest.seed(one.key(keyFields)))
      case group: GroupWindow =>
        group.restore(undo.rows(i))
        group.rows.forEach((key, value) => count(key, null, value))
    }
  }

  /** Brings windows to what they were at version `at`, with the sums of then: what `advance` handed out takes its batch back. */
  def restore(images: UndoLog, sums: StateTotals, at: Long): Unit = {
    (0 until images.size).foreach { i =>
      val window = images.window(i)
      val absent = !window.isOpen
      putBack(images, i)
      images.restamp(i)
      if (absent && window.isOpen) table.add(window)
      if (!absent && !window.isOpen) table.remove(window)
    }
    settle(sums)
    version = at
  }

  /** Gives a window its rows back, which the sums that go with them count already. */
  private def putBack(images: UndoLog, i: Int): Unit = {
    val window = images.window(i)
    window.restore(images.rows(i))
    window match {
      case one: KeyWindow if one.isOpen => one.digest = rowDigest.hash(one.bytes, one.valueFrom, rowDigest.seed(one.key(keyFields)))
      case _ =>
    }
  }

  /** Makes room for windows that will be loaded. */
  def expect(windows: Long): Unit = table.reserve(if (cold == null) windows else Math.min(windows, LiveWindows.LoadedAtOnce))

  /** All rows were loaded: they are in the table, and in the books. */
  def loaded(): Unit = {
    table.addAll(loading)
    // In the order in which they came, which is the order in memory.
    books.rebuild(if (loading.isEmpty) table.iterator else loading.iterator.asScala)
    loading.clear()
    loading.trimToSize()
    settle(sums)
  }

  private def settle(at: StateTotals): Unit = {
    settled = at
    rows = 0L
    bytes = 0L
    digest = 0L
  }

  /** Counts the value of a window, and keeps what it is in the digest: then it is known when the value goes. */
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

  private def inOrder(windows: Iterator[Window]): Iterator[Window] = order.map(_.sorted(windows)).getOrElse(windows)

  private def idOf(key: UnsafeRow): UnsafeRow = if (prefixOf.isEmpty) key else prefixOf.get(key)

  private def find(key: UnsafeRow): Window = lookUp(idOf(key))

  /** Whether the window of that id is open. */
  def isOpen(id: UnsafeRow): Boolean = Option(lookUp(id)).exists(_.isOpen)

  private def lookUp(id: UnsafeRow): Window = {
    val window = table.get(id, id.hashCode)
    if (window != null || cold == null) window else warmUp(id.getBytes)
  }

  /** Makes a window warm that may be cold; null if it is not there. */
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

  private def has(window: Window, key: UnsafeRow): Boolean = window match {
    case one: KeyWindow => one.isOpen
    case group: GroupWindow => group.rows.containsKey(key)
  }

  private def open(id: UnsafeRow, hash: Int): Window = {
    val window = if (prefixOf.isEmpty) new KeyWindow(id.getSizeInBytes, hash) else new GroupWindow(id.copy().getBytes, hash)
    table.add(window)
    window
  }

  private def touch(window: Window): Unit = if (!window.isTouched) {
    window.isTouched = true
    undo.add(window)
  }

  private def visible(window: Window): Boolean = hold.isEmpty || hold.get.visible(window, version)

  private def accepts(window: Window): Boolean = hold.isEmpty || hold.get.accepts(window, version)

  private def pairs(windows: Iterator[Window]): Iterator[UnsafeRowPair] =
    if (prefixOf.isEmpty) new KeyPairs(windows)
    else {
      val pair = new UnsafeRowPair()
      windows.filter(window => window.isOpen && visible(window)).flatMap(_.asInstanceOf[GroupWindow].rows.entrySet
        .toArray(new Array[java.util.Map.Entry[UnsafeRow, UnsafeRow]](0)).iterator.map(entry => pair.withRows(entry.getKey, entry.getValue)))
    }

  /** The pairs of windows of one key. Each batch of a query with a watermark goes over all of them: no iterator for each. */
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
  /** So many windows of a checkpoint are in the table before they go cold. */
  val LoadedAtOnce = 1 << 18
}
