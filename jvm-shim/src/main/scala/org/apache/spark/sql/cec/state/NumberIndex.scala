package org.apache.spark.sql.cec.state

import org.apache.spark.sql.catalyst.expressions.UnsafeRow

/**
 * A hash index from rows to numbers, without an object for an entry: extendible hashing. The upper bits of a hash
 * choose a segment, which is a small table with linear probing. A full segment grows by a quarter, and
 * later splits. So the index grows in small steps, however large it is, and most of it is used.
 *
 * A slot has the hash in its upper half, and the number plus one in its lower half. An empty slot is 0.
 */
private[state] abstract class NumberIndex {
  import NumberIndex._

  private var directory = Array(new Segment(0, FirstSlots))
  private var depth = 0
  private var count, slots = 0L

  slots = FirstSlots

  def size: Long = count

  /** Bytes of memory. */
  def bytes: Long = 8L * slots + 8L * directory.length

  /** Whether a number stands for a row that equals this one. */
  protected def isSame(number: Int, row: UnsafeRow): Boolean

  /** Returns the number of the row, or -1. */
  final def find(row: UnsafeRow, hash: Int): Int = {
    val mixed = mix(hash)
    val table = segmentOf(mixed).slots
    var i = homeOf(mixed, table.length)
    while (true) {
      val slot = table(i)
      if (slot == 0L) return -1
      if ((slot >>> 32).toInt == hash) {
        val number = slot.toInt - 1
        if (isSame(number, row)) return number
      }
      i = if (i + 1 < table.length) i + 1 else 0
    }
    -1
  }

  /** Adds a number. The index may not have its row. */
  final def add(hash: Int, number: Int): Unit = {
    val mixed = mix(hash)
    var segment = segmentOf(mixed)
    while (segment.isFull) {
      if (segment.slots.length < MostSlots) enlarge(segment) else split(segment, mixed)
      segment = segmentOf(mixed)
    }
    segment.place(mixed, (hash.toLong << 32) | (number + 1L))
    segment.count += 1
    count += 1
  }

  /** Removes a number, and closes the gap that it leaves. */
  final def remove(hash: Int, number: Int): Unit = {
    val mixed = mix(hash)
    val segment = segmentOf(mixed)
    val table = segment.slots
    val wanted = (hash.toLong << 32) | (number + 1L)
    var gap = homeOf(mixed, table.length)
    while (table(gap) != wanted) {
      if (table(gap) == 0L) throw new IllegalStateException(s"the index has no number $number with the hash $hash")
      gap = if (gap + 1 < table.length) gap + 1 else 0
    }
    var i = if (gap + 1 < table.length) gap + 1 else 0
    while (table(i) != 0L) {
      val home = homeOf(mix((table(i) >>> 32).toInt), table.length)
      // Whether the gap is on the way from its home to its slot.
      if (Math.floorMod(i - home, table.length) >= Math.floorMod(i - gap, table.length)) {
        table(gap) = table(i)
        gap = i
      }
      i = if (i + 1 < table.length) i + 1 else 0
    }
    table(gap) = 0L
    segment.count -= 1
    count -= 1
  }

  private def segmentOf(mixed: Int): Segment = directory(placeOf(mixed))

  private def placeOf(mixed: Int): Int = if (depth == 0) 0 else mixed >>> (32 - depth)

  private def enlarge(segment: Segment): Unit = {
    val old = segment.slots
    segment.slots = new Array[Long](old.length + old.length / 4)
    old.foreach(slot => if (slot != 0L) segment.place(mix((slot >>> 32).toInt), slot))
    slots += segment.slots.length - old.length
  }

  /** Splits a segment by the next bit of the hashes. If no bit tells them apart, the segment grows instead. */
  private def split(segment: Segment, mixed: Int): Unit =
    if (segment.depth == MostDepth || segment.hasOneHash) enlarge(segment)
    else {
      if (segment.depth == depth) {
        directory = directory.flatMap(each => Array(each, each))
        depth += 1
      }
      def isUpper(slot: Long): Boolean = ((mix((slot >>> 32).toInt) >>> (31 - segment.depth)) & 1) == 1
      val upper = segment.slots.count(slot => slot != 0L && isUpper(slot))
      val halves = Seq(segment.count - upper, upper).map(numbers => new Segment(segment.depth + 1, Math.max(numbers / 2 * 3, FirstSlots)))
      segment.slots.foreach { slot =>
        if (slot != 0L) {
          val half = halves(if (isUpper(slot)) 1 else 0)
          half.place(mix((slot >>> 32).toInt), slot)
          half.count += 1
        }
      }
      slots += halves.map(_.slots.length).sum - segment.slots.length
      val span = 1 << (depth - segment.depth)
      val first = placeOf(mixed) & ~(span - 1)
      (0 until span).foreach(i => directory(first + i) = halves(2 * i / span))
    }
}

private[state] object NumberIndex {
  private val FirstSlots = 16
  private val MostSlots = 8192

  /** A directory of 2^22 segments leads to more rows than there are numbers. */
  private val MostDepth = 22

  private final class Segment(val depth: Int, firstSlots: Int) {
    var slots = new Array[Long](firstSlots)
    var count = 0

    def isFull: Boolean = 5L * (count + 1) > 4L * slots.length

    def hasOneHash: Boolean = {
      val first = slots.find(_ != 0L).fold(0L)(_ >>> 32)
      slots.forall(slot => slot == 0L || (slot >>> 32) == first)
    }

    def place(mixed: Int, slot: Long): Unit = {
      var i = homeOf(mixed, slots.length)
      while (slots(i) != 0L) i = if (i + 1 < slots.length) i + 1 else 0
      slots(i) = slot
    }
  }

  /** The first slot to try, of any number of slots. The upper bits of `mixed` choose the segment, so others count here. */
  private def homeOf(mixed: Int, slots: Int): Int = ((((mixed * 0x9E3779B9) & 0xFFFFFFFFL) * slots) >>> 32).toInt

  /**
   * Mixes all bits of a hash (the last step of MurmurHash3). The low bits of Spark's row hash decide the partition, so
   * they are alike in one store.
   */
  private def mix(hash: Int): Int = {
    var h = hash
    h = (h ^ (h >>> 16)) * 0x85EBCA6B
    h = (h ^ (h >>> 13)) * 0xC2B2AE35
    h ^ (h >>> 16)
  }
}
