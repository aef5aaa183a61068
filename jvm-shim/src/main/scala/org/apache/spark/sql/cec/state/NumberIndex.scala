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
  private var readAhead = 0L

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
      if (hashOf(slot) == hash) {
        val number = numberOf(slot)
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
    segment.add(mixed, slotOf(hash, number))
    count += 1
  }

  /**
   * Adds numbers from `first` on, one for each hash. The slot of a later number is read meanwhile, so that the CPU waits
   * for several slots at once.
   */
  final def addAll(hashes: Array[Int], first: Int): Unit = {
    var i = 0
    var seen = 0L
    while (i < hashes.length) {
      if (i + ReadAhead < hashes.length) {
        val mixed = mix(hashes(i + ReadAhead))
        val table = segmentOf(mixed).slots
        seen |= table(homeOf(mixed, table.length))
      }
      add(hashes(i), first + i)
      i += 1
    }
    readAhead = seen // else the compiler may leave the reads out
  }

  /** Removes a number, and closes the gap that it leaves. */
  final def remove(hash: Int, number: Int): Unit = {
    val mixed = mix(hash)
    val segment = segmentOf(mixed)
    val table = segment.slots
    val wanted = slotOf(hash, number)
    var gap = homeOf(mixed, table.length)
    while (table(gap) != wanted) {
      if (table(gap) == 0L) throw new IllegalStateException(s"the index has no number $number with the hash $hash")
      gap = if (gap + 1 < table.length) gap + 1 else 0
    }
    var i = if (gap + 1 < table.length) gap + 1 else 0
    while (table(i) != 0L) {
      val home = homeOf(mix(hashOf(table(i))), table.length)
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

  /** Makes room for so many numbers in an empty index, so that a load does not grow it step by step. */
  final def reserve(expected: Long): Unit = if (count == 0 && expected > MostSlots / 2) {
    while (depth < MostDepth && (expected >>> depth) > MostSlots / 2) depth += 1
    val mean = expected >>> depth
    val each = Math.min((mean + 4 * Math.sqrt(mean.toDouble).toLong) * 5 / 4 + 2, MostSlots).toInt
    directory = Array.fill(1 << depth)(new Segment(depth, each))
    slots = each.toLong << depth
  }

  // Plain loops: at a restart the JVM has compiled nothing yet, and a closure would box each slot.
  private def enlarge(segment: Segment): Unit = {
    val old = segment.slots
    segment.slots = new Array[Long](old.length + old.length / 4)
    var i = 0
    while (i < old.length) {
      if (old(i) != 0L) segment.place(mix(hashOf(old(i))), old(i))
      i += 1
    }
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
      val upperNumbers = segment.countWithBit(31 - segment.depth)
      val lower = new Segment(segment.depth + 1, Math.max((segment.count - upperNumbers) / 2 * 3, FirstSlots))
      val upper = new Segment(segment.depth + 1, Math.max(upperNumbers / 2 * 3, FirstSlots))
      var i = 0
      while (i < segment.slots.length) {
        val slot = segment.slots(i)
        if (slot != 0L) {
          val mixed = mix(hashOf(slot))
          (if (hasBit(mixed, 31 - segment.depth)) upper else lower).add(mixed, slot)
        }
        i += 1
      }
      slots += lower.slots.length + upper.slots.length - segment.slots.length
      val span = 1 << (depth - segment.depth)
      val first = placeOf(mixed) & ~(span - 1)
      (0 until span).foreach(i => directory(first + i) = if (2 * i < span) lower else upper)
    }
}

private[state] object NumberIndex {
  private def slotOf(hash: Int, number: Int): Long = (hash.toLong << 32) | (number + 1L)
  private def hashOf(slot: Long): Int = (slot >>> 32).toInt
  private def numberOf(slot: Long): Int = slot.toInt - 1

  /** A CPU waits for about so many lines of the cache at once. */
  private val ReadAhead = 16

  private val FirstSlots = 16
  private val MostSlots = 8192

  /** A directory of 2^22 segments leads to more rows than there are numbers. */
  private val MostDepth = 22

  private final class Segment(val depth: Int, firstSlots: Int) {
    var slots = new Array[Long](firstSlots)
    var count = 0

    def isFull: Boolean = 5L * (count + 1) > 4L * slots.length

    def hasOneHash: Boolean = {
      var i = 0
      var first = 0L
      while (i < slots.length) {
        if (slots(i) != 0L) {
          if (first == 0L) first = slots(i)
          else if ((slots(i) >>> 32) != (first >>> 32)) return false
        }
        i += 1
      }
      true
    }

    def countWithBit(bit: Int): Int = {
      var i, found = 0
      while (i < slots.length) {
        if (slots(i) != 0L && hasBit(mix(hashOf(slots(i))), bit)) found += 1
        i += 1
      }
      found
    }

    def add(mixed: Int, slot: Long): Unit = {
      place(mixed, slot)
      count += 1
    }

    def place(mixed: Int, slot: Long): Unit = {
      var i = homeOf(mixed, slots.length)
      while (slots(i) != 0L) i = if (i + 1 < slots.length) i + 1 else 0
      slots(i) = slot
    }
  }

  /** The first slot to try, of any number of slots. The upper bits of `mixed` choose the segment, so others count here. */
  private def homeOf(mixed: Int, slots: Int): Int = ((((mixed * 0x9E3779B9) & 0xFFFFFFFFL) * slots) >>> 32).toInt

  private def hasBit(mixed: Int, bit: Int): Boolean = ((mixed >>> bit) & 1) == 1

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
