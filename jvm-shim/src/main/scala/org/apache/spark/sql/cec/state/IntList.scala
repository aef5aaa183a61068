package org.apache.spark.sql.cec.state

/** A growing list of numbers, which a list of objects would box. */
private[state] final class IntList(expected: Int = 0) {
  private var items = if (expected == 0) IntList.Empty else new Array[Int](expected)
  private var count = 0

  def size: Int = count

  def isEmpty: Boolean = count == 0

  def apply(i: Int): Int = items(i)

  def last: Int = items(count - 1)

  def add(item: Int): Unit = {
    if (count == items.length) reserve(count + 1)
    items(count) = item
    count += 1
  }

  def addAll(more: IntList): Unit = {
    if (count == 0) items = new Array[Int](more.count) else if (count + more.count > items.length) reserve(count + more.count)
    System.arraycopy(more.items, 0, items, count, more.count)
    count += more.count
  }

  /** Adds the numbers from `first` to before `end`. */
  def addRange(first: Int, end: Int): Unit = {
    if (end - first > items.length - count) reserve(Math.addExact(count, end - first))
    var item = first
    while (item < end) {
      items(count) = item
      count += 1
      item += 1
    }
  }

  /** Removes the last number and returns it. */
  def pop(): Int = {
    count -= 1
    items(count)
  }

  def foreach(visit: Int => Unit): Unit = {
    var i = 0
    while (i < count) {
      visit(items(i))
      i += 1
    }
  }

  /** Keeps the numbers that pass, in their order. */
  def retain(passes: Int => Boolean): Unit = {
    var i, kept = 0
    while (i < count) {
      if (passes(items(i))) {
        items(kept) = items(i)
        kept += 1
      }
      i += 1
    }
    count = kept
    if (items.length > 2 * count) items = java.util.Arrays.copyOf(items, count)
  }

  def clear(): Unit = {
    items = IntList.Empty
    count = 0
  }

  /** Gives memory back that the list has beyond its numbers. */
  def trim(): Unit = if (items.length > count) items = java.util.Arrays.copyOf(items, count)

  def toArray: Array[Int] = java.util.Arrays.copyOf(items, count)

  /** Bytes of memory. */
  def bytes: Long = 4L * items.length

  private def reserve(least: Int): Unit =
    items = java.util.Arrays.copyOf(items, Math.max(least, Math.max(16, Math.min(items.length.toLong * 5 / 4, IntList.Most).toInt)))
}

private[state] object IntList {
  private val Empty = Array.emptyIntArray
  private val Most = Int.MaxValue - 16L
}
