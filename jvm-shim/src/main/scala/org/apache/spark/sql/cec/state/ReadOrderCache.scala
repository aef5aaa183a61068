package org.apache.spark.sql.cec.state

import org.apache.spark.sql.catalyst.expressions.UnsafeRow

/**
 * The windows that a batch has read, in order. An aggregation writes its keys in the order in which it has read them: most are found
 * here, without a search through a table that no cache holds. What is found is looked at, so that a wrong guess costs time alone.
 */
private[state] final class ReadOrderCache {
  private var windows = new Array[Window](16)
  private var count, at = 0

  /** Notes a window that was read. */
  def add(window: Window): Unit = if (count < ReadOrderCache.Most) {
    if (count == windows.length) windows = java.util.Arrays.copyOf(windows, 2 * count)
    windows(count) = window
    count += 1
  }

  /** The window that is due to be written, if it is the one with this id; else null. */
  def next(id: UnsafeRow): Window =
    if (at < count && windows(at).hasId(id)) {
      at += 1
      windows(at - 1)
    } else null

  /** Says which window was written instead: what was read a little before it is passed over. */
  def goOnAfter(window: Window): Unit = if (window != null) {
    var i = at
    while (i < Math.min(count, at + ReadOrderCache.Near) && (windows(i) ne window)) i += 1
    if (i < count && (windows(i) eq window)) at = i + 1
  }

  /** Forgets them: a batch is over. */
  def clear(): Unit = {
    java.util.Arrays.fill(windows.asInstanceOf[Array[AnyRef]], 0, count, null)
    count = 0
    at = 0
  }
}

private object ReadOrderCache {
  /** Of larger batches the rest is searched for: 4 MB. */
  val Most: Int = 1 << 20
  val Near = 8
}
