package org.apache.spark.sql.cec.state

import org.apache.spark.sql.catalyst.expressions.UnsafeRow
import org.apache.spark.sql.types.{DoubleType, LongType, StructType}
import org.apache.spark.unsafe.Platform

/**
 * Finds the windows whose averages of integers Spark may have rounded. A commit writes these windows, because a replay
 * may round in another way.
 *
 * Spark adds the numbers of an average as doubles. An INT is at most 2^31 in size. So a sum of up to 2^22 INTs is a
 * whole number up to 2^53, which a double holds exactly. The order of the rows and their tasks then change nothing.
 * With more rows the order may change the result. The buffer of an average has the count beside the sum.
 *
 * @param sums the ordinals of the sums in a value; the count is the next column
 */
private[cec] final class ExactAverages private (fieldsFrom: Int, sums: Array[Int]) {
  /** Whether each average of the window has few enough rows. */
  def areExact(live: LiveWindows, window: Int): Boolean = {
    var exact = true
    live.foreachRow(window, (_, value) => exact &&= areExact(value))
    exact
  }

  private def areExact(value: UnsafeRow): Boolean =
    sums.forall(sum => Platform.getLong(value.getBaseObject, value.getBaseOffset + fieldsFrom + 8L * (sum + 1)) <= ExactAverages.MostRows)
}

private[cec] object ExactAverages {
  /** 2^53 / 2^31. */
  val MostRows: Long = 1L << 22

  /**
   * Finds averages by their columns. If a store has two such columns and no average, its windows are written more
   * often than needed.
   */
  def of(valueSchema: StructType): Option[ExactAverages] = {
    val sums = valueSchema.fields.indices.dropRight(1).filter { i =>
      val (sum, count) = (valueSchema(i), valueSchema(i + 1))
      sum.name == "sum" && sum.dataType == DoubleType && count.name == "count" && count.dataType == LongType
    }
    Option.when(sums.nonEmpty)(
      new ExactAverages(UnsafeRow.calculateBitSetWidthInBytes(valueSchema.length), sums.toArray))
  }
}
