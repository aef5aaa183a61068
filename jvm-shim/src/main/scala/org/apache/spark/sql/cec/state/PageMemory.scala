package org.apache.spark.sql.cec.state

import java.util.concurrent.atomic.AtomicLong

import org.apache.spark.SparkEnv
import org.apache.spark.sql.cec.agent.CecException
import org.apache.spark.sql.cec.metrics.WindowSource

/**
 * The memory on the heap that the windows of all stores of a JVM may take. Safe for several threads.
 *
 * @param limitBytes from here on pages go to files
 * @param mostBytes the most that windows may take beside their pages, which cannot go to files
 */
private[cec] final class PageMemory(limitBytes: Long, mostBytes: Long, used: PageMemory.Used) {
  /** Whether a page more exceeds the limit. */
  def isFull: Boolean = usedBytes >= limitBytes

  /**
   * Raises an error if so many bytes more, beside pages, would leave too little of the heap. It says more than the
   * JVM's own, which ends the process.
   */
  def refuseIfExhausted(bytes: Long): Unit = if (used.beside.get + bytes >= mostBytes) {
    throw new CecException("LiveStore",
      s"columns and indexes of the windows of this executor take ${(used.beside.get + bytes) >> 20} MiB of its heap of " +
        s"${Runtime.getRuntime.maxMemory >> 20} MiB, and cannot go to a file: raise spark.executor.memory (of a local session, " +
        "spark.driver.memory), or run more executors")
  }

  def usedBytes: Long = used.bytes

  /** Notes that the pages of a store have so many bytes more, or fewer. */
  def addPages(bytes: Long): Unit = used.pages.addAndGet(bytes)

  /** Notes that a store takes so many bytes more, or fewer, beside its pages. */
  def addBeside(bytes: Long): Unit = used.beside.addAndGet(bytes)
}

private[cec] object PageMemory {
  /** Bytes on the heap: of pages, and beside them. */
  private[cec] final class Used {
    val pages, beside = new AtomicLong

    def bytes: Long = pages.get + beside.get
  }

  private val usedHere = new Used

  /** The session whose metrics system has the numbers. A JVM may have several, one after another. */
  private var registeredIn: SparkEnv = _

  /** Spark and its tasks need the rest of the heap. */
  private val MostPercent = 85

  /** A store's share of the heap of this JVM, which it has together with all other stores. */
  def limitedTo(bytes: Long): PageMemory = synchronized {
    if (registeredIn ne SparkEnv.get) {
      registeredIn = SparkEnv.get
      new WindowSource(() => usedHere.bytes, () => usedHere.beside.get).register()
    }
    new PageMemory(bytes, Runtime.getRuntime.maxMemory / 100 * MostPercent, usedHere)
  }

  /** Memory that only the caller's stores have, for tests. */
  private[state] def apart(bytes: Long, most: Long = Long.MaxValue): PageMemory = new PageMemory(bytes, most, new Used)
}
