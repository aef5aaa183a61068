package org.apache.spark.sql.cec.state

import org.apache.spark.sql.catalyst.expressions.UnsafeRow

/**
 * The numbers of the rows that a batch read, in order.
 *
 * An aggregation writes keys in the order in which it read them. So most writes find their row here, without a
 * search through an index that no CPU cache holds. Each hit compares the key, so a wrong guess costs only time.
 */
private[state] final class ReadOrderCache(live: LiveWindows) {
  private var numbers = new Array[Int](16)
  private var count, position = 0

  /** Bytes of memory. */
  def bytes: Long = 4L * numbers.length

  def add(number: Int): Unit = if (count < ReadOrderCache.Most) {
    if (count == numbers.length) numbers = java.util.Arrays.copyOf(numbers, 2 * count)
    numbers(count) = number
    count += 1
  }

  /** Returns the next number of the order, if it stands for this key; else -1. */
  def next(key: UnsafeRow): Int =
    if (position < count && live.hasId(numbers(position), key)) {
      position += 1
      numbers(position - 1)
    } else -1

  /** Continues after the row that was written, and skips the rows just before it. */
  def goOnAfter(number: Int): Unit = if (number >= 0) {
    var i = position
    while (i < Math.min(count, position + ReadOrderCache.Near) && numbers(i) != number) i += 1
    if (i < count && numbers(i) == number) position = i + 1
  }

  /** Forgets the numbers at the end of a batch, when others may get them. */
  def clear(): Unit = {
    count = 0
    position = 0
  }
}

private object ReadOrderCache {
  /** The most numbers to remember, which takes 4 MB. A larger batch finds the rest in the index. */
  val Most: Int = 1 << 20
  val Near = 8
}
