package org.apache.spark.sql.cec.state

import org.apache.spark.sql.catalyst.expressions.UnsafeRow

/**
 * The windows that a batch read, in order.
 *
 * An aggregation writes keys in the order in which it read them. So most writes find their window here, without a
 * search through a table that no CPU cache holds. Each hit compares the id, so a wrong guess costs only time.
 */
private[state] final class ReadOrderCache {
  private var windows = new Array[Window](16)
  private var count, position = 0

  def add(window: Window): Unit = if (count < ReadOrderCache.Most) {
    if (count == windows.length) windows = java.util.Arrays.copyOf(windows, 2 * count)
    windows(count) = window
    count += 1
  }

  /** Returns the next window of the order, if it has this id; else null. */
  def next(id: UnsafeRow): Window =
    if (position < count && windows(position).hasId(id)) {
      position += 1
      windows(position - 1)
    } else null

  /** Continues after the window that was written, and skips the windows just before it. */
  def goOnAfter(window: Window): Unit = if (window != null) {
    var i = position
    while (i < Math.min(count, position + ReadOrderCache.Near) && (windows(i) ne window)) i += 1
    if (i < count && (windows(i) eq window)) position = i + 1
  }

  /** Forgets the windows at the end of a batch. */
  def clear(): Unit = {
    java.util.Arrays.fill(windows.asInstanceOf[Array[AnyRef]], 0, count, null)
    count = 0
    position = 0
  }
}

private object ReadOrderCache {
  /** The most windows to remember, which takes 4 MB. A larger batch finds the rest in the table. */
  val Most: Int = 1 << 20
  val Near = 8
}
