package org.apache.spark.sql.cec.state

import org.apache.spark.sql.catalyst.expressions.UnsafeRow
import org.apache.spark.sql.types.{DoubleType, LongType, StructType}
import org.apache.spark.unsafe.Platform

/**
 * Finds the windows whose averages of integers may have been rounded, so that they are written instead of made again.
 *
 * Spark adds the numbers of an average as doubles. An INT is at most 2^31, so every sum of part of 2^22 of them is a whole number up to
 * 2^53, which a double holds exactly: whatever the order, and however tasks split the rows, the result is the same. With more rows it may
 * depend on the order. The buffer of an average has the count beside the sum.
 *
 * @param sums the ordinals of the sums in a value; the count is the next column
 */
private[cec] final class ExactAverages private (fixedFrom: Int, sums: Array[Int]) {
  /** Whether each of the window's averages has few enough rows. */
  def areExact(window: Window): Boolean = window match {
    case one: KeyWindow => areExact(one.bytes, one.valueFrom)
    case group =>
      var exact = true
      group.foreachRow((_, value) => exact &&= areExact(value, 0))
      exact
  }

  private def areExact(bytes: Array[Byte], valueFrom: Int): Boolean =
    sums.forall(sum => Platform.getLong(bytes, Platform.BYTE_ARRAY_OFFSET + valueFrom + fixedFrom + 8L * (sum + 1)) <= ExactAverages.MostRows)
}

private[cec] object ExactAverages {
  /** 2^53 / 2^31. */
  val MostRows: Long = 1L << 22

  /** Of a store with averages; another one that has two such columns is written more often than it need be. */
  def of(valueSchema: StructType): Option[ExactAverages] = {
    val sums = valueSchema.fields.indices.dropRight(1).filter { i =>
      val (sum, count) = (valueSchema(i), valueSchema(i + 1))
      sum.name == "sum" && sum.dataType == DoubleType && count.name == "count" && count.dataType == LongType
    }
    Option.when(sums.nonEmpty)(
      new ExactAverages(UnsafeRow.calculateBitSetWidthInBytes(valueSchema.length), sums.toArray))
  }
}
