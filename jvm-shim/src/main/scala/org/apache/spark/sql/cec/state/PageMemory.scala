package org.apache.spark.sql.cec.state

import java.util.concurrent.atomic.AtomicLong

import org.apache.spark.sql.cec.agent.CecException
import org.apache.spark.sql.cec.metrics.WindowSource

/**
 * The memory on the heap that the pages of all stores of a JVM may take. Safe for several threads.
 *
 * @param limitBytes from here on pages go to files
 * @param mostBytes from here on no page is made. What a window takes beside its page cannot go to a file.
 */
private[cec] final class PageMemory(limitBytes: Long, mostBytes: Long, used: AtomicLong) {
  /** Whether a page more exceeds the limit. */
  def isFull: Boolean = used.get >= limitBytes

  /** Whether the pages that were moved out of files exceed the limit by as much as they may. */
  def isExceeded: Boolean = used.get - limitBytes >= Math.max(limitBytes / 8, PageMemory.LeastExcess)

  def usedBytes: Long = used.get

  /** Raises an error if the heap has no room for a page more. It says more than the JVM's own, which ends the process. */
  def refuseIfExhausted(): Unit = if (used.get >= mostBytes) {
    def megabytes(bytes: Long) = s"${bytes >> 20} MiB"
    throw new CecException("LiveStore",
      s"the windows of this executor take ${megabytes(used.get)} of its heap of ${megabytes(Runtime.getRuntime.maxMemory)}, and no more of that can " +
        "go to a file: raise spark.executor.memory (of a local session, spark.driver.memory), or run more executors")
  }

  /** Notes that a store has so many bytes more, or fewer. */
  def add(bytes: Long): Unit = used.addAndGet(bytes)
}

private[cec] object PageMemory {
  private val usedHere = new AtomicLong

  private lazy val source = new WindowSource(() => usedBytes).register()

  private val LeastExcess = 4L << 20

  /** Spark and its tasks need the rest of the heap. */
  private val MostPercent = 85

  /** A store's share of the heap of this JVM, which it has together with all other stores. */
  def limitedTo(bytes: Long): PageMemory = {
    source
    new PageMemory(bytes, Math.max(bytes, Runtime.getRuntime.maxMemory / 100 * MostPercent), usedHere)
  }

  /** Memory that only the caller's stores have, for tests. */
  private[state] def apart(bytes: Long, most: Long = Long.MaxValue): PageMemory = new PageMemory(bytes, most, new AtomicLong)

  /** Bytes that the windows of all stores of this JVM take on the heap. */
  def usedBytes: Long = usedHere.get
}
