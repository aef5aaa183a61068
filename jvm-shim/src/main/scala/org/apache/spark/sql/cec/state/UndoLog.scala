package org.apache.spark.sql.cec.state

/**
 * Footprints and dirty versions of windows at an earlier time. The stamps are in columns, because a batch may touch
 * many windows.
 */
private[cec] class UndoStamps(live: LiveWindows, expected: Int) {
  protected var windows = new Array[Int](Math.max(expected, 16))
  private var footprints, dirty = new Array[Int](windows.length)
  private var count = 0

  def size: Int = count

  def window(i: Int): Int = windows(i)

  /** Keeps the window's present stamps. */
  def add(window: Int): Unit = {
    if (count == windows.length) grow(Math.multiplyExact(2, count))
    windows(count) = window
    footprints(count) = live.footprintBits(window)
    dirty(count) = live.dirtyBits(window)
    count += 1
  }

  /** Gives a window its old stamps back. */
  def restamp(i: Int): Unit = live.restamp(windows(i), footprints(i), dirty(i))

  def clear(): Unit = count = 0

  /** Bytes of memory. */
  def bytes: Long = 12L * windows.length

  protected def grow(length: Int): Unit = {
    windows = java.util.Arrays.copyOf(windows, length)
    footprints = java.util.Arrays.copyOf(footprints, length)
    dirty = java.util.Arrays.copyOf(dirty, length)
  }
}

/**
 * Windows at an earlier time, with the places of their rows.
 *
 * Of a batch it also knows the records that the batch made, and those that it replaced. Exactly one of both kinds is
 * free when the batch can no longer be taken back, or when it was taken back.
 */
private[cec] final class UndoLog(live: LiveWindows, expected: Int) extends UndoStamps(live, expected) {
  /** By window, the places of its rows: of a window of one key the place, 0 if the window was not open. */
  private var saved = new Array[Int](windows.length)
  /** By window of several keys, the places of its rows in their order; null if the window was not open. */
  private var groups: Array[Array[Int]] = if (live.isGrouped) new Array[Array[Int]](windows.length) else null

  private var groupBytes = 0L

  /** Places of records that the batch made, and of those that it replaced or removed. */
  val made, replaced = new IntList

  /** Windows that the batch closed. Their numbers are free when the batch can no longer be taken back. */
  val gone = new IntList

  def wasOpen(i: Int): Boolean = if (groups == null) saved(i) != 0 else groups(i) != null

  def place(i: Int): Int = saved(i)

  def places(i: Int): Array[Int] = groups(i)

  override def bytes: Long = super.bytes + made.bytes + replaced.bytes + gone.bytes + (if (groups == null) 4L * saved.length else groupBytes)

  override def add(window: Int): Unit = {
    super.add(window)
    if (groups == null) saved(size - 1) = live.savedPlace(window)
    else {
      groups(size - 1) = live.savedPlaces(window)
      groupBytes += 8L + (if (groups(size - 1) == null) 0L else 16L + 4L * groups(size - 1).length)
    }
  }

  override def clear(): Unit = {
    if (groups != null) java.util.Arrays.fill(groups.asInstanceOf[Array[AnyRef]], 0, size, null)
    groupBytes = 0L
    made.clear()
    replaced.clear()
    gone.clear()
    super.clear()
  }

  override protected def grow(length: Int): Unit = {
    super.grow(length)
    if (groups == null) saved = java.util.Arrays.copyOf(saved, length) else groups = java.util.Arrays.copyOf(groups, length)
  }
}
