package org.apache.spark.sql.cec.state

import java.util.{ArrayList, TreeMap}

import scala.jdk.CollectionConverters._

/**
 * Windows by a version that they carry, oldest first: by footprint, or by the batch that first dirtied them.
 *
 * A window that moved to another version or closed leaves a stale entry behind, which is passed over and swept out
 * when stale entries outnumber the living.
 *
 * @param versionOf where a window belongs now
 */
private[state] final class VersionBuckets(versionOf: Window => Long) {
  private final class Bucket {
    val windows = new ArrayList[Window]()
    var live = 0
  }

  private val buckets = new TreeMap[java.lang.Long, Bucket]()
  private var total = 0L

  /** The bucket used last: a commit goes to few of them, many times. */
  private var recentVersion = -1L
  private var recent: Bucket = _

  /** Windows in all buckets. */
  def size: Long = total

  def add(window: Window): Unit = {
    val bucket = bucketOf(versionOf(window))
    bucket.windows.add(window)
    bucket.live += 1
    total += 1
  }

  /** To be called after the window has stopped to carry `version`. */
  def left(version: Long): Unit = {
    val bucket = bucketOf(version)
    bucket.live -= 1
    total -= 1
    if (bucket.live == 0) {
      buckets.remove(version)
      recent = null
    } else if (bucket.windows.size > 2 * bucket.live + 64) bucket.windows.removeIf(window => !belongs(window, version))
  }

  /** The windows that carry a version below `before`, oldest first. Must not be changed while this is read. */
  def below(before: Long): Iterator[Window] = new Iterator[Window] {
    private val left = buckets.headMap(before).entrySet.iterator
    private var version = 0L
    private var windows = new ArrayList[Window](0)
    private var i = 0
    private var found: Window = _

    override def hasNext: Boolean = {
      while (found == null && (i < windows.size || left.hasNext)) {
        if (i < windows.size) {
          if (belongs(windows.get(i), version)) found = windows.get(i)
          i += 1
        } else {
          val bucket = left.next()
          version = bucket.getKey
          windows = bucket.getValue.windows
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

  /** How many windows carry each version. */
  def counts: Iterator[(Long, Int)] =
    buckets.entrySet.asScala.iterator.map(entry => (entry.getKey.longValue, entry.getValue.live))

  def clear(): Unit = {
    buckets.clear()
    recent = null
    total = 0
  }

  private def bucketOf(version: Long): Bucket = {
    if (recent == null || recentVersion != version) {
      recent = buckets.computeIfAbsent(version, _ => new Bucket)
      recentVersion = version
    }
    recent
  }

  private def belongs(window: Window, version: Long): Boolean = window.isOpen && versionOf(window) == version
}
