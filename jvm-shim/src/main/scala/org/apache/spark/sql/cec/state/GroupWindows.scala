package org.apache.spark.sql.cec.state

import org.apache.spark.sql.catalyst.expressions.UnsafeRow
import org.apache.spark.sql.execution.streaming.state.UnsafeRowPair
import org.apache.spark.unsafe.Platform

/**
 * The windows of a store with prefix: a window is all state keys of one prefix. State flows between them, so they open
 * and close together.
 *
 * A window has a record with its prefix, and a chain of its rows in the order in which they came. A row has a number,
 * too, and an index finds it by its key.
 *
 * @param prefixFields fields of a prefix
 * @param prefixOf returns the prefix of a state key
 */
private[state] final class GroupWindows(
    keyFields: Int, valueFields: Int, prefixFields: Int, prefixOf: UnsafeRow => UnsafeRow, digest: RowDigest, pages: Pages)
    extends LiveWindows(keyFields, valueFields, None, digest, pages, columns = 6) {
  import GroupWindows._

  private object groups extends NumberIndex {
    override protected def isSame(number: Int, row: UnsafeRow): Boolean = pages.hasKey(idPlace(number), row)
  }

  private object keys extends NumberIndex {
    override protected def isSame(number: Int, row: UnsafeRow): Boolean = pages.hasKey(cells(number * RowColumns), row)
  }

  /** By row: its place, its window, and the next and the previous row of the window, each plus one. */
  private var cells = new Array[Int](16 * RowColumns)
  private var rowNumbers = 0
  private val freeRows = new IntList
  private val noValue = new UnsafeRow(0)
  noValue.pointTo(Array.emptyByteArray, Platform.BYTE_ARRAY_OFFSET, 0)
  private val visitedKey = new UnsafeRow(keyFields)
  private val visitedValue = new UnsafeRow(valueFields)

  override def isGrouped: Boolean = true
  override protected def indexBytes: Long = groups.bytes + keys.bytes + 4L * cells.length + freeRows.bytes
  override protected def reserveIndex(windows: Long, rows: Long): Unit = {
    groups.reserve(windows)
    keys.reserve(rows)
    cells = new Array[Int](Math.min(rows * 9 / 8 + 16, MostRows).toInt * RowColumns)
  }
  override protected def idFields: Int = prefixFields
  override def isOpen(window: Int): Boolean = column(window, Count) > 0
  override def rowCount(window: Int): Int = column(window, Count)

  override def get(key: UnsafeRow): UnsafeRow = {
    val row = keys.find(key, key.hashCode)
    if (row < 0) return null
    readOrder.add(row)
    if (visible(windowOf(row))) pages.pointToValue(newValue, placeOf(row)) else null
  }

  override def put(key: UnsafeRow, value: UnsafeRow): Unit = {
    var row = readOrder.next(key)
    if (row < 0) {
      row = keys.find(key, key.hashCode)
      readOrder.goOnAfter(row)
    }
    val prefix = if (row < 0) prefixOf(key) else null
    var window = if (row < 0) find(prefix) else windowOf(row)
    if (acceptsChange(window)) {
      // Records come first, because the disk may be full: nothing that counts has changed then.
      val place = pages.add(if (row < 0) nextRow else row, key, value)
      undo.made.add(place)
      if (window < 0) window = open(prefix)
      touch(window)
      val seed = rowDigest.seed(key.getBaseObject, key.getBaseOffset, key.getSizeInBytes)
      if (row < 0) append(window, newRow(), place, key.hashCode)
      else {
        val before = placeOf(row)
        count(-1, before, seed)
        undo.replaced.add(before)
        cells(row * RowColumns) = place
      }
      count(1, key.getSizeInBytes, seed, value.getBaseObject, value.getBaseOffset, value.getSizeInBytes)
    }
  }

  override def remove(key: UnsafeRow): Unit = {
    val hash = key.hashCode
    val row = keys.find(key, hash)
    if (row >= 0 && acceptsChange(windowOf(row))) {
      val window = windowOf(row)
      val place = placeOf(row)
      touch(window)
      count(-1, place, seedOf(place))
      undo.replaced.add(place)
      keys.remove(hash, row)
      unlink(window, row)
      freeRow(row)
    }
  }

  override def prefixScan(prefix: UnsafeRow): Iterator[UnsafeRowPair] = pairsOf(Iterator.single(find(prefix)).filter(_ >= 0))

  /**
   * Adds rows from an eventual checkpoint to their windows, and opens windows if needed. No number of a row is free
   * before the first batch, so the rows have the numbers from the first on.
   *
   * @param footprints the address of the footprints of the rows' windows
   */
  def load(rows: Int, ids: LoadedColumn, loadedKeys: LoadedColumn, values: LoadedColumn, footprints: Long): Unit = {
    val first = rowNumbers
    val places = new Array[Int](rows)
    pages.addAll(first, loadedKeys, values, places)
    val id = new UnsafeRow(prefixFields)
    var i = 0
    while (i < rows) {
      id.pointTo(null, ids.at(i), ids.size(i))
      val known = find(id)
      val window = if (known >= 0) known else open(id)
      setFootprint(window, Platform.getLong(null, footprints + 8L * i))
      link(window, newRow(), places(i))
      i += 1
    }
    keys.addAll(loadedKeys.hashes(rows), first)
    countAll(places)
  }

  override def foreachRow(window: Int, visitor: RowVisitor): Unit = {
    var row = column(window, First) - 1
    while (row >= 0) {
      val place = placeOf(row)
      visitor.visit(pages.pointToKey(visitedKey, place), pages.pointToValue(visitedValue, place))
      row = cells(row * RowColumns + Next) - 1
    }
  }

  override def hasId(number: Int, id: UnsafeRow): Boolean = {
    val place = placeOf(number)
    place != 0 && pages.hasKey(place, id)
  }

  override protected def find(id: UnsafeRow): Int = groups.find(id, id.hashCode)

  override protected def index(window: Int): Unit = groups.add(id(window).hashCode, window)
  override protected def unindex(window: Int): Unit = groups.remove(id(window).hashCode, window)
  override protected def dispose(window: Int): Unit = pages.free(idPlace(window))

  override private[state] def savedPlace(window: Int): Int = throw new UnsupportedOperationException("a window of several keys")

  override private[state] def savedPlaces(window: Int): Array[Int] = if (!isOpen(window)) null else {
    val places = new Array[Int](column(window, Count))
    var i = 0
    var row = column(window, First) - 1
    while (row >= 0) {
      places(i) = placeOf(row)
      i += 1
      row = cells(row * RowColumns + Next) - 1
    }
    places
  }

  override protected def restoreRows(images: UndoLog, i: Int): Unit = {
    val window = images.window(i)
    var row = column(window, First) - 1
    while (row >= 0) {
      val next = cells(row * RowColumns + Next) - 1
      keys.remove(hashOf(placeOf(row)), row)
      freeRow(row)
      row = next
    }
    setColumn(window, First, 0)
    setColumn(window, Last, 0)
    setColumn(window, Count, 0)
    if (images.wasOpen(i)) images.places(i).foreach { place =>
      val back = newRow()
      pages.setOwner(place, back)
      append(window, back, place, hashOf(place))
    }
  }

  override protected def reopen(i: Int): Unit = undo.places(i).foreach { saved =>
    val place = pages.copy(nextRow, saved)
    undo.made.add(place)
    append(undo.window(i), newRow(), place, hashOf(place))
    count(1, place, seedOf(place))
  }

  override protected def moveRecord(owner: Int, place: Int): Unit =
    if ((owner & OfPrefix) != 0) {
      val window = owner & ~OfPrefix
      // The place of a prefix is in no undo list. Nobody but this class reads it.
      if (window < numbersUsed && idPlace(window) == place) {
        setColumn(window, 0, pages.copy(owner, place))
        pages.freeLater(place)
      }
    } else if (owner < rowNumbers && placeOf(owner) == place && !isTouched(windowOf(owner))) {
      cells(owner * RowColumns) = pages.copy(owner, place)
      pages.freeLater(place)
    }

  /** The pairs of a window are those of the moment when the iterator reaches it. */
  override protected def pairsOf(windows: Iterator[Int]): Iterator[UnsafeRowPair] = {
    val pair = new UnsafeRowPair()
    windows.filter(window => isOpen(window) && visible(window))
      .flatMap(window => savedPlaces(window).iterator.map(place => pair.withRows(pages.pointToKey(newKey, place), pages.pointToValue(newValue, place))))
  }

  private def open(prefix: UnsafeRow): Int = {
    val place = pages.add(nextNumber | OfPrefix, prefix, noValue)
    val window = newNumber()
    setColumn(window, 0, place)
    groups.add(prefix.hashCode, window)
    window
  }

  private def placeOf(row: Int): Int = cells(row * RowColumns)

  private def windowOf(row: Int): Int = cells(row * RowColumns + 1)

  private def hashOf(place: Int): Int = pages.pointToKey(visitedKey, place).hashCode

  /** Adds a row behind the others of its window. */
  private def append(window: Int, row: Int, place: Int, hash: Int): Unit = {
    link(window, row, place)
    keys.add(hash, row)
  }

  private def link(window: Int, row: Int, place: Int): Unit = {
    val last = column(window, Last)
    cells(row * RowColumns) = place
    cells(row * RowColumns + 1) = window
    cells(row * RowColumns + Next) = 0
    cells(row * RowColumns + Previous) = last
    if (last == 0) setColumn(window, First, row + 1) else cells((last - 1) * RowColumns + Next) = row + 1
    setColumn(window, Last, row + 1)
    setColumn(window, Count, column(window, Count) + 1)
  }

  private def unlink(window: Int, row: Int): Unit = {
    val next = cells(row * RowColumns + Next)
    val previous = cells(row * RowColumns + Previous)
    if (next == 0) setColumn(window, Last, previous) else cells((next - 1) * RowColumns + Previous) = previous
    if (previous == 0) setColumn(window, First, next) else cells((previous - 1) * RowColumns + Next) = next
    setColumn(window, Count, column(window, Count) - 1)
  }

  /** The answer of the next call of `newRow`. */
  private def nextRow: Int = if (freeRows.isEmpty) rowNumbers else freeRows.last

  private def newRow(): Int = if (!freeRows.isEmpty) freeRows.pop() else {
    if ((rowNumbers + 1) * RowColumns.toLong > cells.length) {
      cells = java.util.Arrays.copyOf(cells, Math.min(cells.length / RowColumns * 9L / 8 + 16, MostRows).toInt * RowColumns)
    }
    if ((rowNumbers & LiveWindows.NotedEach) == 0) noteBeside()
    rowNumbers += 1
    rowNumbers - 1
  }

  private def freeRow(row: Int): Unit = {
    cells(row * RowColumns) = 0
    freeRows.add(row)
  }
}

private[state] object GroupWindows {
  /** Columns of a window: its first and its last row, each plus one, and the number of its rows. */
  private val First = 3
  private val Last = 4
  private val Count = 5

  private val RowColumns = 4
  private val Next = 2
  private val Previous = 3
  private val MostRows = (Int.MaxValue - 64L) / RowColumns

  /** Marks the owner of a record that has the prefix of a window. */
  private val OfPrefix = 1 << 30
}
