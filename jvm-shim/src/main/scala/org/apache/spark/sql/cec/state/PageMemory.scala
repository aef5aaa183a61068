package org.apache.spark.sql.cec.state

import java.util.concurrent.atomic.AtomicLong

/** The memory on the heap that the pages of all stores of a JVM may take. Safe for several threads. */
private[cec] final class PageMemory(val limitBytes: Long, used: AtomicLong) {
  /** Whether a page more exceeds the limit. */
  def isFull: Boolean = used.get >= limitBytes

  def usedBytes: Long = used.get

  /** Notes that a store has so many bytes more, or fewer. */
  def add(bytes: Long): Unit = used.addAndGet(bytes)
}

private[cec] object PageMemory {
  private val usedHere = new AtomicLong

  /** A store's share of the heap of this JVM, which it has together with all other stores. */
  def limitedTo(bytes: Long): PageMemory = new PageMemory(bytes, usedHere)

  /** Memory that only the caller's stores have, for tests. */
  private[state] def apart(bytes: Long): PageMemory = new PageMemory(bytes, new AtomicLong)

  /** Bytes that the pages of all stores of this JVM take on the heap. */
  def usedBytes: Long = usedHere.get
}
