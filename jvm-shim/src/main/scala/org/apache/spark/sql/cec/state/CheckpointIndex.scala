package org.apache.spark.sql.cec.state

import java.util.ArrayList

import scala.collection.mutable

/**
 * The books of one store: which open windows have their footprint at which version, and which are dirty since when.
 *
 * @param warmUp makes a cold window warm, by its id
 */
private[state] final class CheckpointIndex(cold: ColdWindows, warmUp: Array[Byte] => Unit) {
  private val byFootprint = new VersionBuckets(_.footprint, version => if (cold == null) Iterator.empty else cold.byFootprint.at(version).map(warmUp))
  private val byDirty = new VersionBuckets(_.dirtySince, version => if (cold == null) Iterator.empty else cold.byDirty.at(version).map(warmUp))

  def openWindows: Long = byFootprint.size

  def dirtyWindows: Long = byDirty.size

  /** Windows with footprints before a version, oldest first. */
  def withFootprintBefore(version: Long): Iterator[Window] = byFootprint.below(version)

  /** How many these are. */
  def windowsBefore(version: Long): Long = byFootprint.counts.takeWhile(_._1 < version).map(_._2.toLong).sum

  /** Windows dirty since before a version, oldest first. */
  def dirtyBefore(version: Long): Iterator[Window] = byDirty.below(version)

  /**
   * The books as they will be after a commit, computed without touching them, so that a commit can fail.
   *
   * @param writes whether the opened windows are written; else they are as dirty as those that were open before
   */
  def after(version: Long, changes: BatchDelta, checks: ArrayList[Window], writes: Boolean = true): NextBooks = {
    val footprints, dirty = new Tally
    changes.closed.forEach { window =>
      footprints.add(window.footprint, -1)
      if (window.isDirty) dirty.add(window.dirtySince, -1)
    }
    dirty.add(version, changes.newlyDirty.size + (if (writes) 0 else changes.opened.size))
    footprints.add(version + 1, changes.opened.size)
    checks.forEach { window =>
      footprints.add(window.footprint, -1)
      if (window.isDirty) dirty.add(window.dirtySince, -1)
      else if (window.isTouched) dirty.add(version, -1)
    }
    footprints.add(version + 1, checks.size)
    new NextBooks(
      footprints,
      dirty,
      openWindows + changes.opened.size - changes.closed.size,
      dirtyWindows + dirty.total,
      oldest(dirty).getOrElse(version + 1),
      whole => if (whole) (footprints ++ byFootprint.counts).nonZero else footprints.nonZero)
  }

  /**
   * The books after a commit: opened, dirtied and closed windows, and the footprints of the checked ones. Answers those of these that
   * the batch has not touched, as they were before; `next` is what `after` has answered.
   */
  def apply(version: Long, changes: BatchDelta, checks: ArrayList[Window], next: NextBooks, writes: Boolean = true): UndoStamps = {
    val renewed = new UndoStamps(if (checks.size > changes.kept) checks.size - changes.kept else 0)
    var i = 0
    while (i < checks.size) {
      val window = checks.get(i)
      if (!window.isTouched) renewed.add(window)
      stamp(window, version + 1)
      i += 1
    }
    i = 0
    while (i < changes.opened.size) {
      stamp(changes.opened.get(i), version + 1)
      i += 1
    }
    // Millions of windows, none of them in a cache: whether there is one to be found is known.
    if (next.dirtyWindows > 0) changes.newlyDirty.forEach { window =>
      if (window.footprint != version + 1) enterDirty(version, window)
    }
    if (!writes) changes.opened.forEach(enterDirty(version, _))
    byFootprint.enter(version + 1, checks)
    byFootprint.enter(version + 1, changes.opened)
    byFootprint.count(next.footprints)
    byDirty.count(next.dirty)
    renewed
  }

  /** The same for a commit that checks nothing, and, unless it `writes`, does not write what it opens. */
  def apply(version: Long, changes: BatchDelta, writes: Boolean): UndoStamps = {
    val none = new ArrayList[Window](0)
    apply(version, changes, none, after(version, changes, none, writes), writes)
  }

  private def enterDirty(version: Long, window: Window): Unit = {
    window.dirtySince = version
    byDirty.enter(version, window)
  }

  /** Takes in a window that was cold: it is counted already. */
  def enter(window: Window): Unit = {
    byFootprint.enter(window.footprint, window)
    if (window.isDirty) byDirty.enter(window.dirtySince, window)
  }

  /** All windows but these go cold. */
  def keep(windows: Iterator[Window]): Unit = {
    val kept = windows.toArray
    byFootprint.keep(kept.iterator)
    byDirty.keep(kept.iterator)
  }

  /** Writes the books anew from the windows that are not cold, and from what is cold. */
  def rebuild(warm: Iterator[Window]): Unit = {
    byFootprint.clear()
    byDirty.clear()
    val footprints, dirty = new Tally
    if (cold != null) {
      cold.byFootprint.counts.foreach { case (version, count) => footprints.add(version, count) }
      cold.byDirty.counts.foreach { case (version, count) => dirty.add(version, count) }
    }
    while (warm.hasNext) { // a plain loop: at a restart nothing is compiled yet, and there may be millions of them
      val window = warm.next()
      if (window.isOpen) {
        byFootprint.enter(window.footprint, window)
        footprints.add(window.footprint, 1)
        if (window.isDirty) {
          byDirty.enter(window.dirtySince, window)
          dirty.add(window.dirtySince, 1)
        }
      }
    }
    byFootprint.count(footprints)
    byDirty.count(dirty)
  }

  private def stamp(window: Window, version: Long): Unit = {
    window.footprint = version
    window.dirtySince = Window.Clean
  }

  private def oldest(changes: Tally): Option[Long] =
    (changes ++ byDirty.counts).nonZero.collect { case (at, count) if count > 0 => at }.minOption
}

/**
 * The numbers of the books after a commit.
 *
 * @param footprints by how much the windows with a footprint at a version change
 * @param dirty the same of those that are dirty since a version
 * @param dirtyFrom D: the first batch that some window misses, or the new version if none misses any
 * @param live changes of the open windows per footprint version, or, asked with true, all of them
 */
private[state] final class NextBooks(
    val footprints: Tally, val dirty: Tally, val openWindows: Long, val dirtyWindows: Long, val dirtyFrom: Long, val live: Boolean => Iterable[(Long, Int)])

/** Sums per version. */
private[state] final class Tally {
  /** Cells of one number each: a map of plain numbers would box them. */
  private val counts = mutable.LongMap.empty[Array[Int]]

  /** The cell used last: windows come in runs of one version. */
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
