package org.apache.spark.sql.cec.state

import org.apache.spark.sql.catalyst.expressions.{UnsafeRow, XXH64}
import org.apache.spark.sql.types.{DoubleType, FloatType, StructType}
import org.apache.spark.unsafe.Platform

/**
 * A row's part of a store's digest, which is the sum over all rows.
 *
 * Sums of floating-point numbers depend in their last bits on the order in which they were added, and a shuffle keeps none. So
 * the columns of values that are floating-point numbers are not in the hash. They are in a second sum, of their
 * bit patterns as ordered whole numbers with weights that follow from the key: it moves by as many units as the numbers moved by
 * units in the last place, whatever the order of the rows, and it is exact.
 *
 * @param valueSchema of the store; numbers inside structs, arrays and binary columns count as they are
 */
private[cec] final class RowDigest(valueSchema: StructType) {
  private val isDouble: Array[Boolean] = valueSchema.fields.map(_.dataType == DoubleType)
  private val floats: Array[Int] = valueSchema.fields.zipWithIndex.collect { case (f, i) if f.dataType == DoubleType || f.dataType == FloatType => i }
  private val fixedFrom = UnsafeRow.calculateBitSetWidthInBytes(valueSchema.length)

  /** How many columns of a value are floating-point numbers. */
  def floatColumns: Int = floats.length

  /** The hash that a value is seeded with. */
  def seed(key: UnsafeRow): Long = XXH64.hashUnsafeBytes(key.getBaseObject, key.getBaseOffset, key.getSizeInBytes, RowDigest.Seed)

  /** The hash of a value, floating-point columns left out: the bytes from `start` to the end. */
  def hash(bytes: Array[Byte], start: Int, seed: Long): Long =
    if (floats.length == 0) RowDigest.hash(bytes, start, bytes.length, seed)
    else {
      var (from, result, i) = (start, seed, 0)
      while (i < floats.length) {
        val column = start + fixedFrom + 8 * floats(i)
        if (column > from) result = RowDigest.hash(bytes, from, column, result)
        from = column + 8
        i += 1
      }
      if (bytes.length > from) RowDigest.hash(bytes, from, bytes.length, result) else result
    }

  /** The weighted sum over the floating-point columns of a value: the bytes from `start` to the end. */
  def sketch(bytes: Array[Byte], start: Int, seed: Long): Long = {
    var (sum, i) = (0L, 0)
    while (i < floats.length) {
      val column = floats(i)
      val bits = if (isDouble(column)) Platform.getLong(bytes, Platform.BYTE_ARRAY_OFFSET + start + fixedFrom + 8L * column)
      else Platform.getInt(bytes, Platform.BYTE_ARRAY_OFFSET + start + fixedFrom + 8L * column).toLong
      sum += RowDigest.weight(seed, i) * (if (isDouble(column)) RowDigest.ordered(bits) else RowDigest.orderedFloat(bits.toInt).toLong)
      i += 1
    }
    sum
  }

  /** Whether two sketches differ by no more than the last bits of the numbers of so many rows. */
  def agree(sketch: Long, other: Long, rows: Long): Boolean = {
    val moved = sketch - other
    val allowed = rows * floats.length * RowDigest.LargestWeight * RowDigest.UnitsInTheLastPlace
    moved == 0 || (moved != Long.MinValue && Math.abs(moved) <= allowed)
  }
}

private[cec] object RowDigest {
  private val Seed = 42L
  private val LargestWeight = 7L

  /** What the order of a sum may do to it: 2^16 units in the last place are a relative 1e-11. */
  private val UnitsInTheLastPlace = 1L << 16

  /** The hash of the bytes in [from, to). */
  def hash(bytes: Array[Byte], from: Int, to: Int, seed: Long): Long =
    XXH64.hashUnsafeBytes(bytes, Platform.BYTE_ARRAY_OFFSET + from, to - from, seed)

  /** Odd, of either sign: what two rows moved by does not cancel out by itself. */
  private def weight(seed: Long, column: Int): Long = {
    val bits = java.lang.Long.rotateRight(seed, 5 * column)
    val size = 1L + 2L * (bits & 3L)
    if ((bits & 4L) == 0L) size else -size
  }

  /** Whole numbers in the order of the floating-point numbers, neighbours one apart. */
  private def ordered(bits: Long): Long = bits ^ ((bits >> 63) & Long.MaxValue)
  private def orderedFloat(bits: Int): Int = bits ^ ((bits >> 31) & Int.MaxValue)
}
