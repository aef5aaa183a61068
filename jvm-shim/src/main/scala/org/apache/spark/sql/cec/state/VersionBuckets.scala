package org.apache.spark.sql.cec.state

import java.util.TreeMap

import scala.jdk.CollectionConverters._

/**
 * Windows by a version that they carry, oldest first: by footprint, or by the batch that dirtied them.
 *
 * A window that closes or moves to another version leaves a stale entry. Readers skip a stale entry. The entry goes
 * with the last window of its version, or in a sweep when stale entries are many. A sweep looks at each window, which
 * costs more than an entry.
 *
 * @param versionOf the version that an open window carries now; less than 0 for a closed one
 */
private[state] final class VersionBuckets(versionOf: Int => Long) {
  private final class Bucket {
    val windows = new IntList
    var live = 0
  }

  private val buckets = new TreeMap[java.lang.Long, Bucket]()
  private var total, entries = 0L

  /** The number of windows. */
  def size: Long = total

  /** Adds windows that carry `version`. `count` counts them. */
  def enter(version: Long, windows: IntList): Unit = if (!windows.isEmpty) {
    bucketOf(version).windows.addAll(windows)
    entries += windows.size
  }

  def enter(version: Long, window: Int): Unit = {
    bucketOf(version).windows.add(window)
    entries += 1
  }

  /** Enters the windows from `first` to before `end`, and counts them. */
  def add(version: Long, first: Int, end: Int): Unit = {
    val bucket = bucketOf(version)
    bucket.windows.addRange(first, end)
    bucket.live += end - first
    entries += end - first
    total += end - first
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
    bucket.windows.retain(versionOf(_) == version)
    entries += bucket.windows.size
  }

  /** The windows that carry a version before `before`, oldest first. The buckets may not change meanwhile. */
  def below(before: Long): Iterator[Int] = new Iterator[Int] {
    private val left = buckets.headMap(before).entrySet.iterator
    private var version = 0L
    private var windows = new IntList
    private var i = 0
    private var found = -1

    override def hasNext: Boolean = {
      while (found < 0 && (i < windows.size || left.hasNext)) {
        if (i < windows.size) {
          if (versionOf(windows(i)) == version) found = windows(i)
          i += 1
        } else {
          val bucket = left.next()
          version = bucket.getKey
          windows = bucket.getValue.windows
          i = 0
        }
      }
      found >= 0
    }

    override def next(): Int = {
      if (!hasNext) throw new NoSuchElementException("no more windows")
      val window = found
      found = -1
      window
    }
  }

  /** The number of windows per version. */
  def counts: Iterator[(Long, Int)] =
    buckets.entrySet.asScala.iterator.map(entry => (entry.getKey.longValue, entry.getValue.live))

  /** Gives memory back that a load has left. */
  def trim(): Unit = buckets.values.forEach(_.windows.trim())

  /** Bytes of memory. */
  def bytes: Long = buckets.values.asScala.iterator.map(bucket => bucket.windows.bytes + VersionBuckets.BucketBytes).sum

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
}

private object VersionBuckets {
  val StaleFactor = 2L
  val Few = 4096L
  /** About what a bucket takes beside its windows. */
  val BucketBytes = 100L
}
