package org.apache.spark.sql.cec.state

import java.util.ArrayList

import org.apache.spark.sql.catalyst.expressions.UnsafeRow

/**
 * A hash table of windows by id: open addressing, linear probing, no object per entry.
 *
 * An iterator visits the slots as they were at its start. The iterator may miss a window that is added meanwhile, and
 * shows a changed window as it is. Windows are removed only between batches.
 */
private[state] final class WindowTable {
  private var slots = new Array[Window](WindowTable.InitialSlots)
  private var count = 0

  def size: Int = count

  /** Returns the window with this id, or null. */
  def get(id: UnsafeRow, hash: Int): Window = {
    val mask = slots.length - 1
    var i = WindowTable.spreadHash(hash) & mask
    var window = slots(i)
    while (window != null && !(window.hash == hash && window.hasId(id))) {
      i = (i + 1) & mask
      window = slots(i)
    }
    window
  }

  /** Adds a window. The table may not have its id. */
  def add(window: Window): Unit = {
    if (2 * (count + 1) > slots.length) grow()
    place(slots, window)
    count += 1
  }

  /**
   * Adds windows in the order of their slots. The table may have none of their ids, and no two may be equal.
   *
   * A collector such as G1 tracks references from old memory to new. A million of them in random order takes longer
   * than the rest of a load.
   */
  def addAll(windows: ArrayList[Window]): Unit = {
    reserve(count.toLong + windows.size)
    val homes = new Array[Int](windows.size)
    var i = 0
    while (i < homes.length) {
      homes(i) = WindowTable.spreadHash(windows.get(i).hash) & (slots.length - 1)
      i += 1
    }
    val order = WindowTable.orderByPart(homes, slots.length)
    i = 0
    while (i < order.length) {
      placeFrom(slots, homes(order(i)), windows.get(order(i)))
      i += 1
    }
    count += windows.size
  }

  /** Returns the window with the same id. If there is none, adds this window and returns it. */
  def addIfAbsent(window: Window): Window = {
    if (2 * (count + 1) > slots.length) grow()
    val mask = slots.length - 1
    var i = WindowTable.spreadHash(window.hash) & mask
    while (slots(i) != null && !(slots(i).hash == window.hash && slots(i).hasIdOf(window))) i = (i + 1) & mask
    if (slots(i) == null) {
      slots(i) = window
      count += 1
    }
    slots(i)
  }

  /** Removes a window and closes the gap that it leaves. */
  def remove(window: Window): Unit = {
    val mask = slots.length - 1
    var gap = WindowTable.spreadHash(window.hash) & mask
    while (slots(gap) ne window) gap = (gap + 1) & mask
    var i = (gap + 1) & mask
    while (slots(i) != null) {
      val home = WindowTable.spreadHash(slots(i).hash) & mask
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

  /** Grows once for this number of windows. */
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
    placeFrom(into, WindowTable.spreadHash(window.hash) & (into.length - 1), window)

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

  /**
   * Orders the indices of `numbers` by the part of [0, limit) that each number is in. There are `Parts` equal parts,
   * and `limit` is a power of two.
   */
  private def orderByPart(numbers: Array[Int], limit: Int): Array[Int] = {
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

  /**
   * Mixes the high bits into the low bits. The low bits of Spark's row hash decide the partition, so they are alike in
   * one store.
   */
  private def spreadHash(hash: Int): Int = {
    val mixed = hash * 0x9E3779B9
    mixed ^ (mixed >>> 15)
  }
}
