package org.apache.spark.sql.cec.state

import org.apache.spark.sql.types.{LongType, StructType}

/** The key of a window, and the stamps that a test gives it. */
private[state] final case class Stamp(key: Long, footprint: Long, dirtySince: Long = LiveWindows.Clean)

/** Makes stores whose windows have stamps, as a load leaves them. */
private[state] object Stamps {
  import Rows._

  val Longs: RowDigest = new RowDigest(new StructType().add("v", LongType))

  /** Windows of one key, with their stamps in the books. */
  def stamped(stamps: Stamp*): KeyWindows = {
    val live = keyWindows(Longs)
    stamps.foreach(stamp => load(live, row(stamp.key), row(0L), stamp.footprint))
    live.loaded()
    stamps.foreach(stamp => live.setDirtySince(windowOf(live, row(stamp.key)), stamp.dirtySince))
    live.books.rebuild()
    live
  }

  /** The changes of the batch under way. */
  def changesOf(live: LiveWindows): BatchDelta = BatchDelta.of(live, None)

  def list(windows: Int*): IntList = {
    val made = new IntList
    windows.foreach(made.add)
    made
  }
}
