package org.apache.spark.sql.cec.state

import org.apache.spark.sql.catalyst.expressions.UnsafeRow
import org.apache.spark.sql.catalyst.expressions.codegen.UnsafeRowWriter
import org.apache.spark.unsafe.types.UTF8String

/** Makes rows and windows for tests. */
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

  /** An open window of one key; `hash` may be any, so that ids collide. */
  def window(key: UnsafeRow, hash: Int, value: UnsafeRow = row(0L)): KeyWindow = {
    val window = new KeyWindow(key.getSizeInBytes, hash)
    window.put(key, value)
    window
  }

  def window(key: Long): KeyWindow = window(row(key), row(key).hashCode)

  /** An open window with these stamps. */
  def stamped(key: Long, footprint: Long, dirtySince: Long = Window.Clean): KeyWindow = {
    val made = window(key)
    made.footprint = footprint
    made.dirtySince = dirtySince
    made
  }

  def long(row: UnsafeRow): Long = row.getLong(0)
}
