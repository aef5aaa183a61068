package org.apache.spark.sql.cec.state

import java.util.ArrayDeque

import org.apache.spark.sql.catalyst.expressions.UnsafeRow
import org.apache.spark.sql.cec.agent.CecException
import org.apache.spark.unsafe.Platform

/** Moves a record out of a sparse page, if it may be moved now. */
private[state] trait RecordMover {
  def move(owner: Int, place: Int): Unit
}

/**
 * The work of pages beside the records that come and go.
 *
 * @param movedBytes of records that were moved out of sparse pages
 * @param spilledBytes of pages that went to the file
 * @param fileReads records that were read in the file. The system may have had them in its cache.
 */
private[cec] final case class PageWork(movedBytes: Long, spilledBytes: Long, fileReads: Long) {
  def -(before: PageWork): PageWork = PageWork(movedBytes - before.movedBytes, spilledBytes - before.spilledBytes, fileReads - before.fileReads)
}

/**
 * Pages of bytes with the records of one store: a key and a value each. A record has no object.
 *
 * A record never changes in place. An update adds a record, and frees the old one when nobody can need it. So a row
 * that points to a record stays as it is while the batch runs. The space of free records is used again, page by page.
 * `tidy` empties pages that have few records.
 *
 * A place is a page's number, shifted by 15, and a unit of eight bytes in that page. There is no place 0. The record
 * begins with its owner (4 bytes) and its sizes in words (4 bytes: key 10 bits, value 21 bits). Larger rows have -1
 * there, and their sizes in the next eight bytes. A hole has the owner -1 and its size in words.
 *
 * Pages beyond the memory's limit go to a file, the oldest first. A row that points to such a page's memory keeps that
 * memory.
 *
 * @param memory of all stores of this JVM
 * @param newFile makes the file for pages beyond the limit
 * @param mostPages that a store can have
 */
private[state] final class Pages(memory: PageMemory, newFile: () => PageFile, mostPages: Int = Pages.MostPages) {
  import Pages._

  /** By page: its bytes, or null if it is in the file or does not exist. */
  private var arrays = new Array[Array[Byte]](4)
  /** By page: where its bytes begin, in its array or in memory. */
  private var begins = new Array[Long](4)
  /** By page: its size, and the words in records that are not free. */
  private var sizes, lives = new Array[Int](4)
  /** By page: the words that were free when records came last, in holes that were too small. */
  private var wastes = new Array[Int](4)
  private var marks = new Array[Byte](4)
  private var pageCount = 1
  private val freePages = new IntList
  private var made = 0

  /** Pages with holes, and pages with few records. The lists may have pages that no longer are so. */
  private val holed, sparse, sparseInFile = new ArrayDeque[Integer]

  /** The next page that may go to the file. */
  private var hand = 1

  /** The gap that takes the next records. */
  private var gapPage, gapFrom, gapTo = 0

  /** Places that are free after the batch under way. */
  private var freedLater = new IntList
  private var file: PageFile = _
  private var heapWords, fileWords, liveWords, changedWords = 0L
  private var addedWords, movedWords, spilledWords, fileReads = 0L
  private var isTidying = false
  private var besideBytes = 0L

  /** Bytes on the heap, and in the file. */
  def heapBytes: Long = 8 * heapWords
  def fileBytes: Long = 8 * fileWords

  /** Bytes of pages that no record has: free records, and ends of pages. */
  def deadBytes: Long = 8 * (heapWords + fileWords - liveWords)

  /** All work since the first record. */
  def work: PageWork = PageWork(8 * movedWords, 8 * spilledWords, fileReads)

  /** Notes the bytes that the store takes on the heap beside its pages. They count for the limit, too. */
  def noteBeside(bytes: Long): Unit = {
    memory.addBeside(bytes - besideBytes)
    besideBytes = bytes
  }

  /** Raises an error if the store cannot take so many bytes more on the heap beside its pages. */
  def refuseBeside(bytes: Long): Unit = memory.refuseIfExhausted(bytes)

  /** Adds a record and returns its place. */
  def add(owner: Int, key: UnsafeRow, value: UnsafeRow): Int =
    add(owner, key.getBaseObject, key.getBaseOffset, key.getSizeInBytes, value.getBaseObject, value.getBaseOffset, value.getSizeInBytes)

  def add(owner: Int, keyBase: AnyRef, keyFrom: Long, keySize: Int, valueBase: AnyRef, valueFrom: Long, valueSize: Int): Int = {
    if (((keySize | valueSize) & 7) != 0) throw new IllegalArgumentException(s"a row has $keySize and $valueSize bytes: not whole words")
    val keyWords = keySize >>> 3
    val valueWords = valueSize >>> 3
    val isSmall = keyWords <= MostKeyWords && valueWords <= MostValueWords
    val head = if (isSmall) 1 else 2
    val words = Math.addExact(Math.addExact(keyWords, valueWords), head)
    val place = allocate(words)
    liveWords += words
    val base = arrays(place >>> UnitBits)
    val from = offset(place)
    Platform.putInt(base, from, owner)
    if (isSmall) Platform.putInt(base, from + 4, (valueWords << KeyBits) | keyWords)
    else {
      Platform.putInt(base, from + 4, -1)
      Platform.putInt(base, from + 8, keyWords)
      Platform.putInt(base, from + 12, valueWords)
    }
    val row = from + 8L * head
    copyWords(keyBase, keyFrom, base, row, keySize)
    copyWords(valueBase, valueFrom, base, row + keySize, valueSize)
    changedWords += words
    addedWords += words
    place
  }

  /** Adds a record for each of these places, with the owners from `first` on, and sets the places. */
  def addAll(first: Int, keys: LoadedColumn, values: LoadedColumn, places: Array[Int]): Unit = {
    var i = 0
    while (i < places.length) {
      places(i) = add(first + i, null, keys.at(i), keys.size(i), null, values.at(i), values.size(i))
      i += 1
    }
  }

  /** Copies a record and returns the place of the copy. */
  def copy(owner: Int, place: Int): Int = {
    val base = arrays(place >>> UnitBits)
    val from = rowFrom(place)
    val keySize = keyBytes(place)
    if (isTidying) movedWords += wordsOf(place)
    add(owner, base, from, keySize, base, from + keySize, valueBytes(place))
  }

  /** Points a row to the key, or to the value, of a record. */
  def pointToKey(row: UnsafeRow, place: Int): UnsafeRow = {
    noteRead(place)
    row.pointTo(arrays(place >>> UnitBits), rowFrom(place), keyBytes(place))
    row
  }

  def pointToValue(row: UnsafeRow, place: Int): UnsafeRow = {
    row.pointTo(arrays(place >>> UnitBits), rowFrom(place) + keyBytes(place), valueBytes(place))
    row
  }

  def hasKey(place: Int, row: UnsafeRow): Boolean = {
    noteRead(place)
    val size = keyBytes(place)
    size == row.getSizeInBytes && org.apache.spark.unsafe.array.ByteArrayMethods.arrayEquals(
      arrays(place >>> UnitBits), rowFrom(place), row.getBaseObject, row.getBaseOffset, size)
  }

  private def noteRead(place: Int): Unit = if (arrays(place >>> UnitBits) == null) fileReads += 1

  /** The memory of a record: its array, or null. */
  def base(place: Int): AnyRef = arrays(place >>> UnitBits)

  def keyFrom(place: Int): Long = rowFrom(place)
  def valueFrom(place: Int): Long = rowFrom(place) + keyBytes(place)

  def keyBytes(place: Int): Int = {
    val sizes = sizesOf(place)
    if (sizes >= 0) (sizes & MostKeyWords) << 3 else Platform.getInt(arrays(place >>> UnitBits), offset(place) + 8) << 3
  }

  def valueBytes(place: Int): Int = {
    val sizes = sizesOf(place)
    if (sizes >= 0) (sizes >>> KeyBits) << 3 else Platform.getInt(arrays(place >>> UnitBits), offset(place) + 12) << 3
  }

  /** Gives a record another owner. In the file the old one stays, so such a record is not moved. */
  def setOwner(place: Int, owner: Int): Unit = {
    val array = arrays(place >>> UnitBits)
    if (array != null) Platform.putInt(array, offset(place), owner)
  }

  /** Frees a record. The caller knows that no row points to it, and that nobody will read it. */
  def free(place: Int): Unit = {
    val page = place >>> UnitBits
    if (sizes(page) == 0 || Platform.getInt(arrays(page), offset(place)) == Hole) throw new IllegalStateException(s"no record is at the place $place")
    val words = wordsOf(place)
    lives(page) -= words
    liveWords -= words
    changedWords += words
    if (arrays(page) != null) writeHole(page, place & UnitMask, words)
    if (page != gapPage) note(page)
  }

  def free(places: IntList): Unit = places.foreach(free(_))

  /** Frees a record when the batch under way has ended. */
  def freeLater(place: Int): Unit = freedLater.add(place)

  def freeLater(places: IntList): Unit = freedLater.addAll(places)

  /** Frees what the batch that ends now, or the one before it, gave to `freeLater`. Call it at the end of a batch. */
  def endBatch(): Unit = {
    val places = freedLater
    freedLater = new IntList
    free(places)
  }

  /**
   * Moves records out of sparse pages. It reads at most twice the bytes that were added or freed, so that its time is in
   * proportion to what changed. It writes nothing to the file, because a commit could not be taken back if the disk were
   * full. So it moves out of files only as much as came since the last call, and the next records that come make room.
   * What it leaves is for later calls.
   */
  def tidy(mover: RecordMover): Unit = {
    isTidying = true
    try tidyPages(mover) finally isTidying = false
  }

  private def tidyPages(mover: RecordMover): Unit = {
    var left = 2 * changedWords
    while (left > 0 && !sparse.isEmpty) left -= emptyFirst(sparse, mover) // that takes no memory
    val most = movedWords + Math.max(addedWords, LeastMoved)
    while (left > 0 && !sparseInFile.isEmpty && movedWords < most) left -= emptyFirst(sparseInFile, mover)
    changedWords = if (sparse.isEmpty && sparseInFile.isEmpty) 0L else Math.min(Math.max(left, 0L) / 2, MostLeft)
    addedWords = 0L
  }

  /** Empties the first of these pages if it is still sparse, and returns how many words it has. */
  private def emptyFirst(pages: ArrayDeque[Integer], mover: RecordMover): Int = {
    val page = pages.poll()
    if ((marks(page) & Sparse) == 0) 0
    else if (arrays(page) == null && (pages eq sparse)) { // it has gone to the file since
      sparseInFile.add(page)
      0
    } else {
      marks(page) = (marks(page) & ~(Sparse | Holed)).toByte
      val words = sizes(page)
      if (page != gapPage && isSparse(page)) empty(page, mover)
      words
    }
  }

  /** Frees the memory. No row may point to the pages any more. */
  def close(): Unit = {
    noteBeside(0L)
    memory.addPages(-8 * heapWords)
    heapWords = 0L
    if (file != null) file.close()
  }

  private def empty(page: Int, mover: RecordMover): Unit = {
    var unit = 0
    while (unit < sizes(page)) {
      val place = (page << UnitBits) | unit
      val owner = Platform.getInt(arrays(page), offset(place))
      val words = wordsOf(place)
      if (owner != Hole) mover.move(owner, place)
      unit += words
    }
  }

  private def offset(place: Int): Long = begins(place >>> UnitBits) + ((place & UnitMask).toLong << 3)

  private def sizesOf(place: Int): Int = Platform.getInt(arrays(place >>> UnitBits), offset(place) + 4)

  private def rowFrom(place: Int): Long = offset(place) + (if (sizesOf(place) >= 0) 8L else 16L)

  /** Words of a record or a hole, with its head. */
  private def wordsOf(place: Int): Int = {
    val array = arrays(place >>> UnitBits)
    val from = offset(place)
    val sizes = Platform.getInt(array, from + 4)
    if (Platform.getInt(array, from) == Hole) sizes
    else if (sizes >= 0) (sizes & MostKeyWords) + (sizes >>> KeyBits) + 1
    else Platform.getInt(array, from + 8) + Platform.getInt(array, from + 12) + 2
  }

  private def writeHole(page: Int, unit: Int, words: Int): Unit = {
    val from = begins(page) + 8L * unit
    Platform.putInt(arrays(page), from, Hole)
    Platform.putInt(arrays(page), from + 4, words)
  }

  private def allocate(words: Int): Int =
    if (words > MostWordsInGap) {
      val page = makePage(words)
      lives(page) = words
      marks(page) = Hot.toByte
      page << UnitBits
    } else {
      while (gapTo - gapFrom < words) findGap(words)
      val place = (gapPage << UnitBits) | gapFrom
      gapFrom += words
      lives(gapPage) += words
      place
    }

  /** Goes to the next gap of the page, or to another page. */
  private def findGap(words: Int): Unit = {
    makeRoom() // not for new pages alone: records may all come into holes, and what `tidy` has moved would stay
    if (gapFrom < gapTo) writeHole(gapPage, gapFrom, gapTo - gapFrom)
    var unit = gapTo
    while (unit < sizes(gapPage)) {
      val from = unit
      while (unit < sizes(gapPage) && isHole(gapPage, unit)) unit += wordsOf((gapPage << UnitBits) | unit)
      if (unit - from >= words) {
        gapFrom = from
        gapTo = unit
        return
      }
      if (unit > from) writeHole(gapPage, from, unit - from)
      if (unit < sizes(gapPage)) unit += wordsOf((gapPage << UnitBits) | unit)
    }
    leavePage()
    while (!holed.isEmpty) {
      val page = holed.poll()
      if ((marks(page) & Holed) != 0) {
        marks(page) = (marks(page) & ~(Holed | Sparse)).toByte
        gapPage = page
        gapFrom = 0
        gapTo = 0
        return
      }
    }
    gapPage = makePage(Math.max(Math.min(FirstWords << Math.min(made, 16), PageWords), words))
    gapFrom = 0
    gapTo = sizes(gapPage)
  }

  private def isHole(page: Int, unit: Int): Boolean = Platform.getInt(arrays(page), begins(page) + 8L * unit) == Hole

  private def leavePage(): Unit = if (gapPage != 0) {
    val page = gapPage
    gapPage = 0
    gapFrom = 0
    gapTo = 0
    marks(page) = (marks(page) | Hot).toByte
    wastes(page) = sizes(page) - lives(page)
    note(page)
  }

  /** Notes that a page has space again: it goes, or waits for records, or for its end. */
  private def note(page: Int): Unit =
    if (lives(page) == 0) release(page)
    else {
      val freed = sizes(page) - lives(page) - wastes(page)
      if (arrays(page) != null && (marks(page) & Holed) == 0 && sizes(page) <= PageWords && freed >= sizes(page) / HoledPart) {
        marks(page) = (marks(page) | Holed).toByte
        holed.add(page)
      }
      if ((marks(page) & Sparse) == 0 && isSparse(page)) {
        marks(page) = (marks(page) | Sparse).toByte
        (if (arrays(page) != null) sparse else sparseInFile).add(page)
      }
    }

  private def isSparse(page: Int): Boolean =
    sizes(page) <= PageWords && (if (arrays(page) != null) lives(page) < sizes(page) / 4 else lives(page) < sizes(page) / 2)

  private def makePage(words: Int): Int = {
    makeRoom()
    val page = if (!freePages.isEmpty) freePages.pop() else {
      if (pageCount == arrays.length) growTo(2 * pageCount)
      pageCount += 1
      pageCount - 1
    }
    if (page > mostPages) {
      throw new CecException("LiveStore",
        s"a store has $mostPages pages with ${(heapBytes + fileBytes) >> 20} MiB, and can have no more: give the query more partitions, " +
          "spark.sql.shuffle.partitions; cec rescale does so for a checkpoint that is there")
    }
    arrays(page) = new Array[Byte](Math.multiplyExact(words, 8))
    begins(page) = Platform.BYTE_ARRAY_OFFSET
    sizes(page) = words
    lives(page) = 0
    wastes(page) = 0
    marks(page) = 0
    made += 1
    heapWords += words
    memory.addPages(8L * words)
    page
  }

  private def makeRoom(): Unit = if (!isTidying) {
    while (memory.isFull && spillOldest()) {}
    memory.refuseIfExhausted(0L)
  }

  private def growTo(length: Int): Unit = {
    arrays = java.util.Arrays.copyOf(arrays, length)
    begins = java.util.Arrays.copyOf(begins, length)
    sizes = java.util.Arrays.copyOf(sizes, length)
    lives = java.util.Arrays.copyOf(lives, length)
    wastes = java.util.Arrays.copyOf(wastes, length)
    marks = java.util.Arrays.copyOf(marks, length)
  }

  private def release(page: Int): Unit = {
    if (arrays(page) != null) {
      heapWords -= sizes(page)
      memory.addPages(-8L * sizes(page))
    } else {
      fileWords -= sizes(page)
      file.free(begins(page))
    }
    arrays(page) = null
    begins(page) = 0L
    sizes(page) = 0
    marks(page) = 0
    freePages.add(page)
  }

  /**
   * Moves a page to the file: one that has not been filled since the hand's last round. Returns false if there is none.
   */
  private def spillOldest(): Boolean = {
    var left = if (heapWords > sizes(gapPage)) 2 * pageCount else 0
    while (left > 0) {
      hand = if (hand + 1 < pageCount) hand + 1 else 1
      left -= 1
      if (hand < pageCount && hand != gapPage && arrays(hand) != null && !isSparse(hand)) {
        if ((marks(hand) & Hot) != 0) marks(hand) = (marks(hand) & ~Hot).toByte
        else {
          spill(hand)
          return true
        }
      }
    }
    false
  }

  private def spill(page: Int): Unit = {
    if (file == null) file = newFile()
    begins(page) = file.write(arrays(page))
    arrays(page) = null
    marks(page) = (marks(page) & ~Holed).toByte
    heapWords -= sizes(page)
    fileWords += sizes(page)
    spilledWords += sizes(page)
    memory.addPages(-8L * sizes(page))
  }
}

private[state] object Pages {
  private val UnitBits = 15
  private val UnitMask = (1 << UnitBits) - 1

  /** A page has 256 KB less a word, so that with its array's head it fits in a quarter of the smallest region of G1. */
  val PageWords: Int = (1 << UnitBits) - 2
  /** The first page of a store is small, because a query may have hundreds of stores. Each next one is twice as large. */
  private val FirstWords = 256
  /** A larger record has a page of its own. */
  private val MostWordsInGap = PageWords / 4
  private val MostPages = (1 << (31 - UnitBits)) - 1

  private val KeyBits = 10
  private val MostKeyWords = (1 << KeyBits) - 1
  private val MostValueWords = (1 << (31 - KeyBits)) - 1

  /** Copies bytes, of a small row by words: the JVM's own copy costs as much as twenty words before it begins. */
  def copyWords(from: AnyRef, fromAt: Long, to: AnyRef, toAt: Long, bytes: Int): Unit =
    if (bytes > MostBytesInLoop || (bytes & 7) != 0) Platform.copyMemory(from, fromAt, to, toAt, bytes)
    else {
      var i = 0
      while (i < bytes) {
        Platform.putLong(to, toAt + i, Platform.getLong(from, fromAt + i))
        i += 8
      }
    }

  private val MostBytesInLoop = 128

  /** A call of `tidy` may move so much out of files, and leave so much of its time to later calls. */
  private val LeastMoved = 4L * PageWords
  private val MostLeft = 64L * PageWords

  private val Hole = -1
  /** Marks of a page: it waits in `holed`, or in `sparse`; records came lately. */
  private val Holed = 1
  private val Sparse = 2
  private val Hot = 4
  /** A page takes records again when this part of it is free that was not so when records came last. */
  private val HoledPart = 12
}
