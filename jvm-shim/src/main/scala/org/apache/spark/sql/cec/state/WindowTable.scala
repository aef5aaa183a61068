package org.apache.spark.sql.cec.state

import java.util.ArrayList

import org.apache.spark.sql.catalyst.expressions.UnsafeRow

/**
 * A hash table of windows by id: open addressing, linear probing, no object per entry.
 *
 * Iteration goes over the slots as they were when it began: a window added meanwhile may be missed, a changed one is
 * seen as it is, and nothing fails. Windows are removed only between batches.
 */
private[state] final class WindowTable {
  private var slots = new Array[Window](WindowTable.InitialSlots)
  private var count = 0

  def size: Int = count

  /** The window with this id, or null. */
  def get(id: UnsafeRow, hash: Int): Window = {
    val mask = slots.length - 1
    var i = WindowTable.spread(hash) & mask
    var window = slots(i)
    while (window != null && !(window.hash == hash && window.hasId(id))) {
      i = (i + 1) & mask
      window = slots(i)
    }
    window
  }

  /** Adds a window whose id is not there. */
  def add(window: Window): Unit = {
    if (2 * (count + 1) > slots.length) grow()
    place(slots, window)
    count += 1
  }

  /**
   * Adds windows whose ids are not there, none twice, in the order of their places: a garbage collector that keeps track of references from old
   * memory to new, as G1 does, takes longer to note a million of them here and there than all the rest of a load.
   */
  def addAll(windows: ArrayList[Window]): Unit = {
    reserve(count.toLong + windows.size)
    val homes = new Array[Int](windows.size)
    var i = 0
    while (i < homes.length) {
      homes(i) = WindowTable.spread(windows.get(i).hash) & (slots.length - 1)
      i += 1
    }
    val order = WindowTable.ascending(homes, slots.length)
    i = 0
    while (i < order.length) {
      placeFrom(slots, homes(order(i)), windows.get(order(i)))
      i += 1
    }
    count += windows.size
  }

  /** The window with the id of this one: this one, if there was none. */
  def addIfAbsent(window: Window): Window = {
    if (2 * (count + 1) > slots.length) grow()
    val mask = slots.length - 1
    var i = WindowTable.spread(window.hash) & mask
    while (slots(i) != null && !(slots(i).hash == window.hash && slots(i).hasIdOf(window))) i = (i + 1) & mask
    if (slots(i) == null) {
      slots(i) = window
      count += 1
    }
    slots(i)
  }

  /** Removes a window that is there, closing the gap that it leaves. */
  def remove(window: Window): Unit = {
    val mask = slots.length - 1
    var gap = WindowTable.spread(window.hash) & mask
    while (slots(gap) ne window) gap = (gap + 1) & mask
    var i = (gap + 1) & mask
    while (slots(i) != null) {
      val home = WindowTable.spread(slots(i).hash) & mask
      if (((i - home) & mask) >= ((i - gap) & mask)) {
        slots(gap) = slots(i)
        gap = i
      }
      i = (i + 1) & mask
    }
    slots(gap) = null
    count -= 1
  }

  def iterator: Iterator[Window] = new Iterator[Window] {
    private val seen = slots
    private var i = 0
    override def hasNext: Boolean = {
      while (i < seen.length && seen(i) == null) i += 1
      i < seen.length
    }
    override def next(): Window = {
      if (!hasNext) throw new NoSuchElementException("no more windows")
      i += 1
      seen(i - 1)
    }
  }

  /** Grows once instead of many times, for so many windows in all. */
  def reserve(windows: Long): Unit = {
    val wanted = java.lang.Long.highestOneBit(Math.max(Math.min(2 * windows, WindowTable.MostSlots), 1) * 2 - 1).toInt
    if (wanted > slots.length) resize(wanted)
  }

  private def grow(): Unit = resize(Math.multiplyExact(slots.length, 2))

  private def resize(length: Int): Unit = {
    val larger = new Array[Window](length)
    slots.foreach(window => if (window != null) place(larger, window))
    slots = larger
  }

  private def place(into: Array[Window], window: Window): Unit =
    placeFrom(into, WindowTable.spread(window.hash) & (into.length - 1), window)

  private def placeFrom(into: Array[Window], home: Int, window: Window): Unit = {
    var i = home
    while (into(i) != null) i = (i + 1) & (into.length - 1)
    into(i) = window
  }
}

private[state] object WindowTable {
  private val InitialSlots = 64
  private val MostSlots = 1L << 30

  private val Parts = 4096

  /** Indices of numbers in [0, limit), ordered by which of `Parts` equal parts of that range they are in. `limit` is a power of two. */
  private def ascending(numbers: Array[Int], limit: Int): Array[Int] = {
    val shift = Math.max(Integer.numberOfTrailingZeros(limit) - Integer.numberOfTrailingZeros(Parts), 0)
    val (next, ordered) = (new Array[Int](Parts + 1), new Array[Int](numbers.length))
    var i = 0
    while (i < numbers.length) {
      next((numbers(i) >>> shift) + 1) += 1
      i += 1
    }
    (0 until Parts).foreach(part => next(part + 1) += next(part))
    i = 0
    while (i < numbers.length) {
      val part = numbers(i) >>> shift
      ordered(next(part)) = i
      next(part) += 1
      i += 1
    }
    ordered
  }

  /** Spark's row hash is good, but its low bits decide the partition too: use the high ones as well. */
  private def spread(hash: Int): Int = {
    val mixed = hash * 0x9E3779B9
    mixed ^ (mixed >>> 15)
  }
}
