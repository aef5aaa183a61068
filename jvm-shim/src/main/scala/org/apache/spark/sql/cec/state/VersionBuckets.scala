package org.apache.spark.sql.cec.state

import java.util.{ArrayList, TreeMap}

import scala.jdk.CollectionConverters._

/**
 * Windows by a version that they carry, oldest first: by footprint, or by the batch that dirtied them.
 *
 * A window that closes or moves to another version leaves a stale entry. Readers skip a stale entry. The entry goes
 * with the last window of its version, or in a sweep when stale entries are many. A sweep looks at each window, which
 * costs more than an entry.
 *
 * Cold windows are in the counts alone, until they become warm.
 *
 * @param versionOf the version that a window carries now
 * @param warmUp enters the cold windows of a version, one at each step
 */
private[state] final class VersionBuckets(versionOf: Window => Long, warmUp: Long => Iterator[Unit]) {
  private final class Bucket {
    val windows = new ArrayList[Window]()
    var live = 0
  }

  private val buckets = new TreeMap[java.lang.Long, Bucket]()
  private var total, entries = 0L

  /** The number of windows. */
  def size: Long = total

  /** Adds windows that carry `version`. `count` counts them. */
  def enter(version: Long, windows: ArrayList[Window]): Unit = if (!windows.isEmpty) {
    bucketOf(version).windows.addAll(windows)
    entries += windows.size
  }

  def enter(version: Long, window: Window): Unit = {
    bucketOf(version).windows.add(window)
    entries += 1
  }

  /** Changes the number of windows per version. */
  def count(changes: Tally): Unit = {
    changes.nonZero.foreach { case (version, change) =>
      val bucket = bucketOf(version)
      bucket.live += change
      total += change
      if (bucket.live == 0) {
        buckets.remove(version)
        entries -= bucket.windows.size
        if (recentVersion == version) recent = null
      }
    }
    if (entries > VersionBuckets.StaleFactor * total + VersionBuckets.Few) removeStale()
  }

  private def removeStale(): Unit = buckets.forEach { (version, bucket) =>
    entries -= bucket.windows.size
    bucket.windows.removeIf(window => !carriesVersion(window, version))
    entries += bucket.windows.size
  }

  /** The windows that carry a version before `before`, oldest first. The buckets may not change meanwhile. */
  def below(before: Long): Iterator[Window] = new Iterator[Window] {
    private val left = buckets.headMap(before).entrySet.iterator
    private var version = 0L
    private var windows = new ArrayList[Window](0)
    private var cold = Iterator.empty[Unit]
    private var i = 0
    private var found: Window = _

    override def hasNext: Boolean = {
      while (found == null && (i < windows.size || cold.hasNext || left.hasNext)) {
        if (i < windows.size) {
          if (carriesVersion(windows.get(i), version)) found = windows.get(i)
          i += 1
        } else if (cold.hasNext) cold.next()
        else {
          val bucket = left.next()
          version = bucket.getKey
          windows = bucket.getValue.windows
          cold = warmUp(version)
          i = 0
        }
      }
      found != null
    }

    override def next(): Window = {
      if (!hasNext) throw new NoSuchElementException("no more windows")
      val window = found
      found = null
      window
    }
  }

  /** The number of windows per version. */
  def counts: Iterator[(Long, Int)] =
    buckets.entrySet.asScala.iterator.map(entry => (entry.getKey.longValue, entry.getValue.live))

  /** Forgets all windows but these. The counts stay. */
  def keep(windows: Iterator[Window]): Unit = {
    buckets.values.forEach(_.windows.clear())
    entries = 0
    windows.foreach(window => if (window.isOpen && versionOf(window) != Window.Clean) enter(versionOf(window), window))
  }

  def clear(): Unit = {
    buckets.clear()
    recent = null
    total = 0
    entries = 0
  }

  /** The last bucket used, because windows come in runs of one version. */
  private var recentVersion = -1L
  private var recent: Bucket = _

  private def bucketOf(version: Long): Bucket = {
    if (recent == null || recentVersion != version) {
      recent = buckets.computeIfAbsent(version, _ => new Bucket)
      recentVersion = version
    }
    recent
  }

  private def carriesVersion(window: Window, version: Long): Boolean = window.isOpen && versionOf(window) == version
}

private object VersionBuckets {
  /** With the default Q a window has two or three entries. */
  val StaleFactor = 4L
  val Few = 4096L
}
