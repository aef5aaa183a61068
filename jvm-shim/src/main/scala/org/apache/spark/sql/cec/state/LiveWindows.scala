package org.apache.spark.sql.cec.state

import org.apache.spark.sql.catalyst.expressions.UnsafeRow
import org.apache.spark.sql.execution.streaming.state.UnsafeRowPair
import org.apache.spark.unsafe.Platform

/** Sums over all windows: state keys, bytes of keys and values, and the hash over all rows in any order. */
private[cec] final case class StateTotals(rows: Long = 0L, bytes: Long = 0L, digest: Long = 0L)

/** Visits rows of windows. The rows are used again for each call. */
private[cec] trait RowVisitor {
  def visit(key: UnsafeRow, value: UnsafeRow): Unit
}

/**
 * The windows of one store at one version, with the undo list of the batch under way. Not thread-safe: `TaskLock` lets
 * one task in at a time.
 *
 * A window is a number: its place in columns of plain numbers. There may be millions of windows, and an object for
 * each would cost memory, and the collector's time. Keys and values are records in pages.
 *
 * A window is one state key with its value (`KeyWindows`), or all keys of one prefix with theirs (`GroupWindows`).
 * The first three columns are the same: the place of the record with the window's id, its footprint, and the batch
 * that first changed the window after its footprint. The upper bits of these are marks.
 *
 * A number of a window that has closed is not used again while its batch may be taken back.
 *
 * @param keyFields fields of a state key
 * @param valueFields fields of a value
 * @param order of the keys in a store with range scans
 * @param columns numbers for each window
 */
private[cec] abstract class LiveWindows(
    keyFields: Int, valueFields: Int, order: Option[RangeOrder], protected val rowDigest: RowDigest, protected val pages: Pages, columns: Int) {
  import LiveWindows._

  private var stamps = new Array[Int](16 * columns)
  private var numbers = 0
  private val freeNumbers = new IntList
  protected var undo: UndoLog = new UndoLog(this, 0)
  /** The list of the last batch, which its caller keeps. */
  private var lastUndo = undo
  protected val readOrder = new ReadOrderCache(this)

  /** The store's books. */
  val books: CheckpointIndex = new CheckpointIndex(this)

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

  /** Bytes on the heap: pages, columns, indexes, books and what it takes to take a batch back. */
  def heapBytes: Long = pages.heapBytes + besideBytes

  private def besideBytes: Long = 4L * stamps.length + freeNumbers.bytes + indexBytes + books.bytes + undo.bytes + lastUndo.bytes + readOrder.bytes

  /** Bytes of pages in the file. */
  def fileBytes: Long = pages.fileBytes

  /** Bytes of pages that no row has. */
  def deadBytes: Long = pages.deadBytes

  private var workBefore, workOfBatch = PageWork(0L, 0L, 0L)

  /** What the pages did in the last batch, and in tasks that failed before it. */
  def pageWork: PageWork = workOfBatch

  def isGrouped: Boolean

  protected def indexBytes: Long

  protected def reserveIndex(windows: Long, rows: Long): Unit

  def get(key: UnsafeRow): UnsafeRow

  def put(key: UnsafeRow, value: UnsafeRow): Unit

  def remove(key: UnsafeRow): Unit

  def prefixScan(prefix: UnsafeRow): Iterator[UnsafeRowPair]

  /** Whether a window with this id is open. */
  def isOpen(id: UnsafeRow): Boolean = {
    val window = find(id)
    window >= 0 && isOpen(window)
  }

  def isOpen(window: Int): Boolean

  /** The state keys of a window. */
  def rowCount(window: Int): Int

  /** Visits each state key of a window and its value. */
  def foreachRow(window: Int, visitor: RowVisitor): Unit

  /** Whether a number of `ReadOrderCache` stands for this id. */
  def hasId(number: Int, id: UnsafeRow): Boolean

  /** Returns the window with this id, open or not, or -1. */
  protected def find(id: UnsafeRow): Int

  /** Removes a closed window from the index. Its number is not free yet. */
  protected def unindex(window: Int): Unit

  /** Frees all that a window has beside its number. */
  protected def dispose(window: Int): Unit

  /** Gives a window the rows that the list has of it. The caller restores the sums. */
  protected def restoreRows(images: UndoLog, i: Int): Unit

  /** Puts a window into the index, where it is not. */
  protected def index(window: Int): Unit

  /** Gives a window that the batch closed copies of its rows. */
  protected def reopen(i: Int): Unit

  /** Moves a record of a window that the batch did not touch. */
  protected def moveRecord(owner: Int, place: Int): Unit

  protected def pairsOf(windows: Iterator[Int]): Iterator[UnsafeRowPair]

  private[state] def savedPlace(window: Int): Int
  private[state] def savedPlaces(window: Int): Array[Int]

  /** The id of a window, a state key or a prefix. It stays as it is while the batch runs. */
  def id(window: Int): UnsafeRow = pages.pointToKey(new UnsafeRow(idFields), idPlace(window))

  protected def idFields: Int

  /** Version of the newest record of this window in the log (the paper's tau); `Never` before it opens. */
  def footprint(window: Int): Long = (footprintBits(window) - 1).toLong

  /** The batch that first changed this window after its footprint; `Clean` if none did. */
  def dirtySince(window: Int): Long = {
    val since = dirtyBits(window)
    if (since == Low) Clean else since.toLong
  }

  def isDirty(window: Int): Boolean = dirtyBits(window) != Low

  /** Whether the batch under way touched this window. */
  def isTouched(window: Int): Boolean = stamps(window * columns + 1) < 0

  def setFootprint(window: Int, version: Long): Unit = {
    val at = window * columns + 1
    stamps(at) = (stamps(at) & High) | (version + 1).toInt
  }

  def setDirtySince(window: Int, version: Long): Unit = {
    val at = window * columns + 2
    stamps(at) = (stamps(at) & High) | (if (version == Clean) Low else version.toInt)
  }

  /** Marks a window that a commit has chosen. Returns false if it was marked. */
  def choose(window: Int): Boolean = {
    val at = window * columns + 2
    val isNew = stamps(at) >= 0
    stamps(at) |= High
    isNew
  }

  def unchoose(window: Int): Unit = stamps(window * columns + 2) &= Low

  private[state] def footprintBits(window: Int): Int = stamps(window * columns + 1) & Low
  private[state] def dirtyBits(window: Int): Int = stamps(window * columns + 2) & Low
  private[state] def restamp(window: Int, footprint: Int, dirty: Int): Unit = {
    stamps(window * columns + 1) = (stamps(window * columns + 1) & High) | footprint
    stamps(window * columns + 2) = (stamps(window * columns + 2) & High) | dirty
  }

  protected final def column(window: Int, i: Int): Int = stamps(window * columns + i)
  protected final def setColumn(window: Int, i: Int, to: Int): Unit = stamps(window * columns + i) = to

  /** The place of the record with the window's id; 0 if nobody has the number. */
  protected final def idPlace(window: Int): Int = stamps(window * columns) & Low

  /** The answer of the next call of `newNumber`. */
  protected final def nextNumber: Int = if (freeNumbers.isEmpty) numbers else freeNumbers.last

  /** A number for a new window, which is clean and was never written. */
  protected final def newNumber(): Int = {
    val number = if (freeNumbers.isEmpty) numbers else freeNumbers.pop()
    if (number == numbers) {
      if ((numbers + 1) * columns.toLong > stamps.length) {
        stamps = java.util.Arrays.copyOf(stamps, Math.min(stamps.length / columns * 9L / 8 + 16, MostNumbers / columns).toInt * columns)
      }
      numbers += 1
    }
    java.util.Arrays.fill(stamps, number * columns, (number + 1) * columns, 0)
    stamps(number * columns + 2) = Low
    if ((number & NotedEach) == 0) noteBeside()
    number
  }

  /**
   * Numbers for windows of a load, with the footprints at this address. Returns the first; the others follow, because
   * no number is free before the first batch.
   */
  protected final def newNumbers(count: Int, footprints: Long): Int = {
    val first = numbers
    if ((first + count) * columns.toLong > stamps.length) stamps = java.util.Arrays.copyOf(stamps, Math.toIntExact((first + count) * columns.toLong))
    var i = 0
    while (i < count) {
      stamps((first + i) * columns + 1) = (Platform.getLong(null, footprints + 8L * i) + 1).toInt
      stamps((first + i) * columns + 2) = Low
      i += 1
    }
    numbers += count
    noteBeside()
    first
  }

  /** Sets the places of the windows from `first` on. */
  protected final def setPlaces(first: Int, places: Array[Int]): Unit = {
    var i = 0
    while (i < places.length) {
      stamps((first + i) * columns) = places(i)
      i += 1
    }
  }

  /** Counts the rows of records. It reads the records, so that the digest tells of a copy that went wrong. */
  protected final def countAll(places: Array[Int]): Unit = {
    var i = 0
    while (i < places.length) {
      count(1, places(i), seedOf(places(i)))
      i += 1
    }
  }

  /** Call it now and then: a load, or a batch, may bring millions. */
  protected final def noteBeside(): Unit = pages.noteBeside(besideBytes)

  /** Makes room for so many windows with so many rows in an empty store. */
  def reserve(windows: Long, rows: Long): Unit = {
    pages.refuseBeside((4L * columns + 11) * windows + (if (isGrouped) 27 * rows else 0L)) // about what it takes in the end
    stamps = new Array[Int](Math.min(windows * 9 / 8 + 16, MostNumbers / columns).toInt * columns)
    reserveIndex(windows, rows)
    pages.noteBeside(besideBytes)
  }

  private def freeNumber(window: Int): Unit = {
    dispose(window)
    java.util.Arrays.fill(stamps, window * columns, (window + 1) * columns, 0)
    freeNumbers.add(window)
  }

  /** All pairs. The pair object is used again for each pair. Puts and removes may go on meanwhile. */
  def iterator: Iterator[UnsafeRowPair] = pairsOf(sortWindows(windows))

  /** The pairs with keys in [start, end), in order. */
  def rangeScan(start: Option[UnsafeRow], end: Option[UnsafeRow]): Iterator[UnsafeRowPair] =
    pairsOf(sortWindows(windows.filter(window => order.forall(_.within(id(window), start, end)))))

  protected def scanOrder(range: RangeOrder, prefix: UnsafeRow): Iterator[UnsafeRowPair] =
    pairsOf(windows.filter(window => range.hasPrefix(id(window), prefix)))

  private def sortWindows(windows: Iterator[Int]): Iterator[Int] = order.map(_.sorted(windows, id)).getOrElse(windows)

  /** The windows that the batch under way touched, in the order of first touch. */
  def touched: UndoLog = undo

  /** The windows that are open now, but for those that close before the iterator reaches them. */
  def windows: Iterator[Int] = new Iterator[Int] {
    private val end = numbers
    private var i = 0
    override def hasNext: Boolean = {
      while (i < end && !isOpen(i)) i += 1
      i < end
    }
    override def next(): Int = {
      if (!hasNext) throw new NoSuchElementException("no more windows")
      i += 1
      i - 1
    }
  }

  /** The numbers that windows have had; some are not open. */
  private[state] def numbersUsed: Int = numbers

  /** The first number behind this one whose window has other stamps, or is not as open. */
  private[state] def endOfRun(window: Int): Int = {
    val open = isOpen(window)
    val footprint = footprintBits(window)
    val dirty = dirtyBits(window)
    var end = window + 1
    while (end < numbers && footprintBits(end) == footprint && dirtyBits(end) == dirty && isOpen(end) == open) end += 1
    end
  }

  /** Ends the batch: removes closed windows, begins a new undo list and returns the old one. */
  def advance(): UndoLog = {
    if (version >= MostVersions) throw new IllegalStateException(s"version $version is too large for this store")
    val done = undo
    undo = new UndoLog(this, done.size)
    pages.endBatch()
    pages.tidy(moveRecord(_, _))
    var i = 0
    while (i < done.size) {
      val window = done.window(i)
      untouch(window)
      if (!isOpen(window)) {
        unindex(window)
        done.gone.add(window)
      }
      i += 1
    }
    readOrder.clear()
    setTotals(sums)
    version += 1
    lastUndo = done
    workOfBatch = pages.work - workBefore
    workBefore = pages.work
    pages.noteBeside(besideBytes)
    done
  }

  /** Takes the batch under way back. */
  def rollback(): Unit = {
    pages.endBatch()
    var i = 0
    while (i < undo.size) {
      val window = undo.window(i)
      restoreRows(undo, i)
      untouch(window)
      if (!isOpen(window)) {
        unindex(window)
        freeNumber(window)
      }
      i += 1
    }
    readOrder.clear()
    pages.freeLater(undo.made)
    undo.clear()
    setTotals(committedTotals)
  }

  /** Gives the windows that the batch under way closed their rows back. */
  def reopen(): Unit = (0 until undo.size).foreach(i => if (undo.wasOpen(i) && !isOpen(undo.window(i))) reopen(i))

  /**
   * Brings the windows back to version `at`.
   *
   * @param images the undo list that `advance` returned for the batch after `at`
   * @param sums the sums at `at`
   */
  def restore(images: UndoLog, sums: StateTotals, at: Long): Unit = {
    (0 until images.size).foreach { i =>
      val window = images.window(i)
      val absent = !isOpen(window)
      restoreRows(images, i)
      images.restamp(i)
      if (absent && isOpen(window)) index(window)
      if (!absent && !isOpen(window)) unindex(window)
    }
    setTotals(sums)
    version = at
  }

  /** Frees what a batch has replaced: nobody can take the batch back any more. */
  def forgetBefore(batch: UndoLog): Unit = {
    pages.free(batch.replaced)
    batch.gone.foreach(freeNumber(_))
  }

  /** Frees what a batch has made: it was taken back, and will not come again. */
  def forgetAfter(batch: UndoLog): Unit = {
    (0 until batch.size).foreach(i => if (!batch.wasOpen(i)) freeNumber(batch.window(i)))
    pages.freeLater(batch.made)
  }

  /** Ends a load: enters the windows into the books. */
  def loaded(): Unit = {
    workBefore = pages.work // of the batches alone
    books.rebuild()
    setTotals(sums)
    pages.noteBeside(besideBytes)
  }

  /** Frees all memory. */
  def close(): Unit = pages.close()

  private def untouch(window: Int): Unit = stamps(window * columns + 1) &= Low

  private def setTotals(at: StateTotals): Unit = {
    committedTotals = at
    rows = 0L
    bytes = 0L
    digest = 0L
  }

  /** Counts a row that comes, or with the sign -1 one that goes. */
  protected final def count(sign: Int, keyBytes: Int, seed: Long, base: AnyRef, from: Long, size: Int): Unit = {
    rows += sign
    bytes += sign * (keyBytes.toLong + size)
    digest += sign * rowDigest.hash(base, from, size, seed)
  }

  /** Counts the row of a record. */
  protected final def count(sign: Int, place: Int, seed: Long): Unit =
    count(sign, pages.keyBytes(place), seed, pages.base(place), pages.valueFrom(place), pages.valueBytes(place))

  protected final def seedOf(place: Int): Long = rowDigest.seed(pages.base(place), pages.keyFrom(place), pages.keyBytes(place))

  protected final def touch(window: Int): Unit = if (!isTouched(window)) {
    undo.add(window)
    if ((undo.size & NotedEach) == 0) noteBeside()
    stamps(window * columns + 1) |= High
  }

  protected final def visible(window: Int): Boolean = hold.isEmpty || hold.get.visible(footprint(window), version)

  /** Whether a change reaches this window; -1: no window with that id is open. */
  protected final def acceptsChange(window: Int): Boolean =
    hold.isEmpty || hold.get.accepts(window >= 0, if (window >= 0) footprint(window) else 0L, version)

  protected final def newKey: UnsafeRow = new UnsafeRow(keyFields)
  protected final def newValue: UnsafeRow = new UnsafeRow(valueFields)
}

private[cec] object LiveWindows {
  val Never: Long = -1L
  val Clean: Long = Long.MaxValue

  /** The part of a column that is a number, and the mark above it. */
  private[state] val Low = Int.MaxValue
  private[state] val High = Int.MinValue

  private val MostNumbers = Int.MaxValue - 64L
  private[state] val NotedEach = (1 << 16) - 1
  /** At ten batches a second it takes six years. */
  private val MostVersions = Int.MaxValue - 2L

  /** Makes a row over these bytes. */
  def row(bytes: Array[Byte], fields: Int): UnsafeRow = {
    val row = new UnsafeRow(fields)
    row.pointTo(bytes, org.apache.spark.unsafe.Platform.BYTE_ARRAY_OFFSET, bytes.length)
    row
  }

  /**
   * Makes the windows of a store.
   *
   * @param prefix fields of a prefix, and the function from a state key to it; None in a store without prefix
   */
  def make(
      keyFields: Int, valueFields: Int, prefix: Option[(Int, UnsafeRow => UnsafeRow)], order: Option[RangeOrder], rowDigest: RowDigest,
      pages: Pages): LiveWindows = prefix match {
    case None => new KeyWindows(keyFields, valueFields, order, rowDigest, pages)
    case Some((fields, of)) => new GroupWindows(keyFields, valueFields, fields, of, rowDigest, pages)
  }
}
