package org.apache.spark.sql.cec.state

import scala.collection.mutable

/**
 * The books of one store: the open windows by footprint, and the dirty windows by the batch that first changed them.
 */
private[cec] final class CheckpointIndex(windows: LiveWindows) {
  private val byFootprint = new VersionBuckets(window => if (windows.isOpen(window)) windows.footprint(window) else LiveWindows.Never)
  private val byDirty = new VersionBuckets(window => if (windows.isOpen(window)) windows.dirtySince(window) else LiveWindows.Never)

  /** Bytes of memory. */
  def bytes: Long = byFootprint.bytes + byDirty.bytes

  def openWindows: Long = byFootprint.size

  def dirtyWindows: Long = byDirty.size

  /** Windows with a footprint before `version`, oldest first. */
  def withFootprintBefore(version: Long): Iterator[Int] = byFootprint.below(version)

  /** The number of open windows per footprint version. */
  def live: Iterable[(Long, Int)] = byFootprint.counts.filter(_._2 != 0).toSeq

  /** The number of windows with a footprint before `version`. */
  def windowsBefore(version: Long): Long = byFootprint.counts.takeWhile(_._1 < version).map(_._2.toLong).sum

  /** Windows that became dirty before `version`, oldest first. */
  def dirtyBefore(version: Long): Iterator[Int] = byDirty.below(version)

  /**
   * Computes the books after a commit and changes nothing, because the commit may still fail.
   *
   * @param writes whether the commit writes the opened windows; if false, they become dirty
   */
  def after(version: Long, changes: BatchDelta, checks: IntList, writes: Boolean = true): NextBooks = {
    val footprints, dirty = new Tally
    changes.closed.foreach { window =>
      footprints.add(windows.footprint(window), -1)
      if (windows.isDirty(window)) dirty.add(windows.dirtySince(window), -1)
    }
    dirty.add(version, changes.newlyDirty.size + (if (writes) 0 else changes.opened.size))
    footprints.add(version + 1, changes.opened.size)
    checks.foreach { window =>
      footprints.add(windows.footprint(window), -1)
      if (windows.isDirty(window)) dirty.add(windows.dirtySince(window), -1)
      else if (windows.isTouched(window)) dirty.add(version, -1)
    }
    footprints.add(version + 1, checks.size)
    new NextBooks(
      footprints,
      dirty,
      openWindows + changes.opened.size - changes.closed.size,
      dirtyWindows + dirty.total,
      findOldestDirty(dirty).getOrElse(version + 1),
      whole => if (whole) (footprints ++ byFootprint.counts).nonZero else footprints.nonZero)
  }

  /**
   * Brings the books to the version after a commit. Returns the old stamps of the checked windows that the batch did
   * not touch.
   *
   * @param next the answer of `after` for the same commit
   */
  def apply(version: Long, changes: BatchDelta, checks: IntList, next: NextBooks, writes: Boolean = true): UndoStamps = {
    val renewed = new UndoStamps(windows, if (checks.size > changes.kept) checks.size - changes.kept else 0)
    checks.foreach { window =>
      if (!windows.isTouched(window)) renewed.add(window)
      stampWindow(window, version + 1)
    }
    changes.opened.foreach(stampWindow(_, version + 1))
    // There may be millions of windows, and a look at each one misses the cache. So skip the loop if no window is
    // dirty.
    if (next.dirtyWindows > 0) changes.newlyDirty.foreach { window =>
      if (windows.footprint(window) != version + 1) enterDirty(version, window)
    }
    if (!writes) changes.opened.foreach(enterDirty(version, _))
    byFootprint.enter(version + 1, checks)
    byFootprint.enter(version + 1, changes.opened)
    byFootprint.count(next.footprints)
    byDirty.count(next.dirty)
    renewed
  }

  /**
   * Brings the books to the version after a commit without checks.
   *
   * @param writes whether the commit writes the opened windows; if false, they become dirty
   */
  def apply(version: Long, changes: BatchDelta, writes: Boolean): UndoStamps = {
    val none = new IntList
    apply(version, changes, none, after(version, changes, none, writes), writes)
  }

  private def enterDirty(version: Long, window: Int): Unit = {
    windows.setDirtySince(window, version)
    byDirty.enter(version, window)
  }

  /** Builds the books again from the open windows. */
  def rebuild(): Unit = {
    byFootprint.clear()
    byDirty.clear()
    var window = 0
    while (window < windows.numbersUsed) { // at a restart the JVM has compiled nothing yet, and there may be millions of windows
      val end = windows.endOfRun(window)
      if (windows.isOpen(window)) {
        byFootprint.add(windows.footprint(window), window, end)
        if (windows.isDirty(window)) byDirty.add(windows.dirtySince(window), window, end)
      }
      window = end
    }
    byFootprint.trim()
    byDirty.trim()
  }

  private def stampWindow(window: Int, version: Long): Unit = {
    windows.setFootprint(window, version)
    windows.setDirtySince(window, LiveWindows.Clean)
  }

  private def findOldestDirty(changes: Tally): Option[Long] =
    (changes ++ byDirty.counts).nonZero.collect { case (at, count) if count > 0 => at }.minOption
}

/**
 * The numbers of the books after a commit.
 *
 * @param footprints per version, by how much the number of windows with that footprint changes
 * @param dirty per version, by how much the number of windows dirty since that version changes
 * @param dirtyFrom D: the first batch that some window misses, or the new version if no window is dirty
 * @param live per footprint version, the change of the number of open windows; with true, the number itself
 */
private[state] final class NextBooks(
    val footprints: Tally, val dirty: Tally, val openWindows: Long, val dirtyWindows: Long, val dirtyFrom: Long, val live: Boolean => Iterable[(Long, Int)])

/** Sums per version. */
private[state] final class Tally {
  /** An array of one number for each version, because a map of plain numbers would box them. */
  private val counts = mutable.LongMap.empty[Array[Int]]

  /** The array of the last call, because windows come in runs of one version. */
  private var recentAt = 0L
  private var recent: Array[Int] = _

  def add(at: Long, count: Int): Unit = if (count != 0) {
    if (recent == null || recentAt != at) {
      recent = counts.getOrElseUpdate(at, new Array[Int](1))
      recentAt = at
    }
    recent(0) += count
  }

  def ++(more: Iterator[(Long, Int)]): Tally = {
    val sum = new Tally
    counts.foreach { case (at, count) => sum.add(at, count(0)) }
    more.foreach { case (at, count) => sum.add(at, count) }
    sum
  }

  def total: Long = counts.valuesIterator.map(_(0).toLong).sum

  def nonZero: Iterable[(Long, Int)] = counts.iterator.collect { case (at, count) if count(0) != 0 => at -> count(0) }.toSeq
}
