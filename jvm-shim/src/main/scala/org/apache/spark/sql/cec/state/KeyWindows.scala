package org.apache.spark.sql.cec.state

import org.apache.spark.sql.catalyst.expressions.UnsafeRow
import org.apache.spark.sql.execution.streaming.state.UnsafeRowPair

/**
 * The windows of a store without prefix: a window is one state key. A closed window keeps the place of its last
 * record, under a mark, because its key is still needed.
 */
private[state] final class KeyWindows(keyFields: Int, valueFields: Int, order: Option[RangeOrder], digest: RowDigest, pages: Pages)
    extends LiveWindows(keyFields, valueFields, order, digest, pages, columns = 3) {
  import LiveWindows.High

  private object numbers extends NumberIndex {
    override protected def isSame(number: Int, row: UnsafeRow): Boolean = pages.hasKey(idPlace(number), row)
  }
  private val movedKey = new UnsafeRow(keyFields)
  private val movedValue = new UnsafeRow(valueFields)

  override def isGrouped: Boolean = false
  override protected def indexBytes: Long = numbers.bytes
  override protected def reserveIndex(windows: Long, rows: Long): Unit = numbers.reserve(windows)
  override protected def idFields: Int = keyFields
  override def isOpen(window: Int): Boolean = column(window, 0) > 0
  override def rowCount(window: Int): Int = if (isOpen(window)) 1 else 0

  override def get(key: UnsafeRow): UnsafeRow = {
    val window = numbers.find(key, key.hashCode)
    if (window < 0) return null
    readOrder.add(window)
    if (isOpen(window) && visible(window)) pages.pointToValue(newValue, idPlace(window)) else null
  }

  override def put(key: UnsafeRow, value: UnsafeRow): Unit = {
    var window = readOrder.next(key)
    var hash = 0
    if (window < 0) {
      hash = key.hashCode
      window = numbers.find(key, hash)
      readOrder.goOnAfter(window)
    }
    if (acceptsChange(window)) {
      val isNew = window < 0
      // First, because the disk may be full: nothing has changed then.
      val place = pages.add(if (isNew) nextNumber else window, key, value)
      undo.made.add(place)
      if (isNew) window = newNumber()
      touch(window)
      val seed = rowDigest.seed(key.getBaseObject, key.getBaseOffset, key.getSizeInBytes)
      if (isOpen(window)) {
        val before = idPlace(window)
        count(-1, before, seed)
        undo.replaced.add(before)
      }
      setColumn(window, 0, place)
      if (isNew) numbers.add(hash, window)
      count(1, key.getSizeInBytes, seed, value.getBaseObject, value.getBaseOffset, value.getSizeInBytes)
    }
  }

  override def remove(key: UnsafeRow): Unit = {
    val window = numbers.find(key, key.hashCode)
    if (window >= 0 && isOpen(window) && acceptsChange(window)) {
      touch(window)
      val place = idPlace(window)
      count(-1, place, seedOf(place))
      undo.replaced.add(place)
      setColumn(window, 0, place | High)
    }
  }

  override def prefixScan(prefix: UnsafeRow): Iterator[UnsafeRowPair] = order match {
    case Some(range) => scanOrder(range, prefix)
    case None => pairsOf(Iterator.single(find(prefix)).filter(_ >= 0))
  }

  /**
   * Adds windows from an eventual checkpoint, which has each window once. `loaded` enters them into the books. Each step
   * is a loop of its own: at a restart the JVM has compiled nothing yet, and short loops are compiled soon and at little
   * cost.
   *
   * @param footprints the address of their footprints
   */
  def load(rows: Int, keys: LoadedColumn, values: LoadedColumn, footprints: Long): Unit = {
    val first = newNumbers(rows, footprints)
    val places = new Array[Int](rows)
    pages.addAll(first, keys, values, places)
    setPlaces(first, places)
    numbers.addAll(keys.hashes(rows), first)
    countAll(places)
  }

  override def foreachRow(window: Int, visitor: RowVisitor): Unit = if (isOpen(window)) {
    val place = idPlace(window)
    visitor.visit(pages.pointToKey(movedKey, place), pages.pointToValue(movedValue, place))
  }

  override def hasId(number: Int, id: UnsafeRow): Boolean = {
    val place = idPlace(number)
    place != 0 && pages.hasKey(place, id)
  }

  override protected def find(id: UnsafeRow): Int = numbers.find(id, id.hashCode)

  override protected def index(window: Int): Unit = numbers.add(id(window).hashCode, window)
  override protected def unindex(window: Int): Unit = numbers.remove(id(window).hashCode, window)
  override protected def dispose(window: Int): Unit = ()

  override private[state] def savedPlace(window: Int): Int = Math.max(column(window, 0), 0)
  override private[state] def savedPlaces(window: Int): Array[Int] = throw new UnsupportedOperationException("a window of one key")

  override protected def restoreRows(images: UndoLog, i: Int): Unit = {
    val window = images.window(i)
    setColumn(window, 0, if (images.wasOpen(i)) images.place(i) else idPlace(window) | High)
  }

  override protected def reopen(i: Int): Unit = {
    val window = undo.window(i)
    val place = pages.copy(window, undo.place(i))
    undo.made.add(place)
    setColumn(window, 0, place)
    count(1, place, seedOf(place))
  }

  override protected def moveRecord(owner: Int, place: Int): Unit = if (owner < numbersUsed && column(owner, 0) == place && !isTouched(owner)) {
    setColumn(owner, 0, pages.copy(owner, place))
    pages.freeLater(place)
  }

  /**
   * The pairs of windows of one key. A query with a watermark visits all of them in each batch, so no iterator is made
   * per window.
   */
  override protected def pairsOf(windows: Iterator[Int]): Iterator[UnsafeRowPair] = new Iterator[UnsafeRowPair] {
    private val pair = new UnsafeRowPair()
    private var found = -1

    override def hasNext: Boolean = {
      while (found < 0 && windows.hasNext) {
        val window = windows.next()
        if (isOpen(window) && visible(window)) found = window
      }
      found >= 0
    }

    override def next(): UnsafeRowPair = {
      if (!hasNext) throw new NoSuchElementException("no more windows")
      val place = idPlace(found)
      found = -1
      pair.withRows(pages.pointToKey(newKey, place), pages.pointToValue(newValue, place))
    }
  }
}
