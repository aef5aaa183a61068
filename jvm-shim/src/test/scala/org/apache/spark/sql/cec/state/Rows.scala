package org.apache.spark.sql.cec.state

import org.apache.spark.sql.catalyst.expressions.UnsafeRow
import org.apache.spark.sql.catalyst.expressions.codegen.UnsafeRowWriter
import org.apache.spark.unsafe.Platform
import org.apache.spark.unsafe.types.UTF8String

/** Makes rows and stores of windows for tests. */
private[cec] object Rows {
  /** A row with bytes of its own; null makes a null. */
  def row(values: Any*): UnsafeRow = {
    val writer = new UnsafeRowWriter(values.size)
    writer.resetRowWriter()
    values.zipWithIndex.foreach {
      case (null, i) => writer.setNullAt(i)
      case (value: Int, i) => writer.write(i, value)
      case (value: Long, i) => writer.write(i, value)
      case (value: Double, i) => writer.write(i, value)
      case (value: Float, i) => writer.write(i, value)
      case (value: String, i) => writer.write(i, UTF8String.fromString(value))
      case (value, _) => throw new IllegalArgumentException(s"no column for $value")
    }
    writer.getRow.copy()
  }

  /** Memory for pages that is never full. */
  def pages(): Pages = new Pages(PageMemory.apart(Long.MaxValue), () => throw new AssertionError("a file is made"))

  /** Windows of one key, a column or more, with values of one column. */
  def keyWindows(digest: RowDigest, keyFields: Int = 1): KeyWindows =
    new KeyWindows(keyFields, 1, None, digest, pages())

  /** Windows of several keys: of a window and a key in it. */
  def groupWindows(digest: RowDigest): GroupWindows = new GroupWindows(2, 1, 1, key => row(key.getLong(0)), digest, pages())

  /** Adds a window from an eventual checkpoint. */
  def load(into: KeyWindows, key: UnsafeRow, value: UnsafeRow, footprint: Long): Unit =
    inColumns(Seq(key, value), footprint)((columns, at) => into.load(1, columns(0), columns(1), at))

  /** Adds a row from an eventual checkpoint to its window. */
  def load(into: GroupWindows, id: UnsafeRow, key: UnsafeRow, value: UnsafeRow, footprint: Long): Unit =
    inColumns(Seq(id, key, value), footprint)((columns, at) => into.load(1, columns(0), columns(1), columns(2), at))

  /** Lays a row of an eventual checkpoint out in memory, as columns of one value and the address of a footprint. */
  private def inColumns(rows: Seq[UnsafeRow], footprint: Long)(load: (Seq[LoadedColumn], Long) => Unit): Unit = {
    val memory = rows.map(row => Platform.allocateMemory(8 + row.getSizeInBytes)) :+ Platform.allocateMemory(8)
    try {
      val columns = rows.zip(memory).map { case (row, at) =>
        Platform.putInt(null, at, 0)
        Platform.putInt(null, at + 4, row.getSizeInBytes)
        row.writeToMemory(null, at + 8)
        new LoadedColumn(at, at + 8)
      }
      Platform.putLong(null, memory.last, footprint)
      load(columns, memory.last)
    } finally memory.foreach(Platform.freeMemory)
  }

  /** The number of the open window with this id. */
  def windowOf(live: LiveWindows, id: UnsafeRow): Int =
    live.windows.find(window => live.id(window).getBytes.sameElements(id.getBytes)).getOrElse(throw new AssertionError(s"no window $id"))

  def long(row: UnsafeRow): Long = row.getLong(0)
}
