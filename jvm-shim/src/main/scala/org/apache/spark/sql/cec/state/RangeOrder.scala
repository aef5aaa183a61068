package org.apache.spark.sql.cec.state

import org.apache.spark.sql.catalyst.expressions.{Ascending, BoundReference, InterpretedOrdering, NullsFirst, SortOrder, UnsafeProjection, UnsafeRow}
import org.apache.spark.sql.types.StructType

/**
 * The order of keys in a store with range scans: by some columns, ascending, null first. Each scan sorts the windows,
 * because no operator that this provider supports scans ranges often.
 *
 * @param ordinals of the key's columns that order it
 */
private[cec] final class RangeOrder(keySchema: StructType, ordinals: Seq[Int]) {
  private val columns = ordinals.map(keySchema(_))
  private val project = UnsafeProjection.create(ordinals.map(i => BoundReference(i, keySchema(i).dataType, keySchema(i).nullable)))
  private val order = new InterpretedOrdering(columns.zipWithIndex.map { case (column, i) =>
    SortOrder(BoundReference(i, column.dataType, column.nullable), Ascending, NullsFirst, Seq.empty)
  })

  /** Sorts windows by their keys. */
  def sorted(windows: Iterator[Int], keyOf: Int => UnsafeRow): Iterator[Int] =
    windows.map(window => (columnsOf(keyOf(window)), window)).toArray.sortWith((a, b) => order.compare(a._1, b._1) < 0).iterator.map(_._2)

  def hasPrefix(key: UnsafeRow, prefix: UnsafeRow): Boolean = order.compare(columnsOf(key), boundColumns(prefix)) == 0

  /** Whether a key lies in [start, end). A missing bound admits all keys. */
  def within(key: UnsafeRow, start: Option[UnsafeRow], end: Option[UnsafeRow]): Boolean = {
    val columns = columnsOf(key)
    start.forall(row => order.compare(boundColumns(row), columns) <= 0) && end.forall(row => order.compare(columns, boundColumns(row)) < 0)
  }

  /** The ordering columns of a bound, which Spark gives as a whole key or as the ordering columns alone. */
  private def boundColumns(row: UnsafeRow): UnsafeRow = if (row.numFields == keySchema.length) columnsOf(row) else row

  private def columnsOf(key: UnsafeRow): UnsafeRow = project(key).copy()
}
