package org.apache.spark.sql.cec.state

import org.apache.spark.sql.catalyst.expressions.{UnsafeRow, XXH64}
import org.apache.spark.sql.types.{DoubleType, FloatType, StructType}
import org.apache.spark.unsafe.Platform

/**
 * The hash of a row. The digest of a store is the sum over all rows.
 *
 * The digest is exact: one other number changes it. The digest treats as equal only the numbers that Spark treats as
 * equal: 0.0 and -0.0, and all NaNs. A minimum or maximum keeps the first of two equal numbers, and a shuffle keeps no
 * order.
 *
 * @param valueSchema of the store; numbers inside structs, arrays and binary columns count as they are
 */
private[cec] final class RowDigest(valueSchema: StructType) {
  private val isDouble: Array[Boolean] = valueSchema.fields.map(_.dataType == DoubleType)
  private val floatOrdinals: Array[Int] = valueSchema.fields.zipWithIndex.collect { case (f, i) if f.dataType == DoubleType || f.dataType == FloatType => i }
  private val fieldsFrom = UnsafeRow.calculateBitSetWidthInBytes(valueSchema.length)

  /** The kind of digest in a new commit. */
  val kind: DigestKind.Value = if (floatOrdinals.length == 0) DigestKind.OfBytes else DigestKind.OfNumbers

  /** Hashes a key, as the seed for its value. */
  def seed(key: UnsafeRow): Long = XXH64.hashUnsafeBytes(key.getBaseObject, key.getBaseOffset, key.getSizeInBytes, RowDigest.Seed)

  /** Hashes a value: the bytes from `start` to the end. */
  def hash(bytes: Array[Byte], start: Int, seed: Long): Long =
    if (floatOrdinals.length == 0) RowDigest.hash(bytes, start, bytes.length, seed) else hashColumns(bytes, start, seed, withNumbers = true)

  /** Hashes a value as a commit of the given kind does. */
  def hash(bytes: Array[Byte], seed: Long, as: DigestKind.Value): Long = as match {
    case _ if floatOrdinals.length == 0 => hash(bytes, 0, seed)
    case DigestKind.OfNumbers => hash(bytes, 0, seed)
    case DigestKind.WithoutNumbers => hashColumns(bytes, 0, seed, withNumbers = false)
    case DigestKind.OfBytes => RowDigest.hash(bytes, 0, bytes.length, seed)
  }

  private def hashColumns(bytes: Array[Byte], start: Int, seed: Long, withNumbers: Boolean): Long = {
    var (from, result, i) = (start, seed, 0)
    while (i < floatOrdinals.length) {
      val column = start + fieldsFrom + 8 * floatOrdinals(i)
      if (column > from) result = RowDigest.hash(bytes, from, column, result)
      if (withNumbers) result = XXH64.hashLong(numberBits(bytes, column, isDouble(floatOrdinals(i))), result)
      from = column + 8
      i += 1
    }
    if (bytes.length > from) RowDigest.hash(bytes, from, bytes.length, result) else result
  }

  /**
   * The bits of a number, which are equal for equal numbers. Null counts as zero, because the null bits are hashed
   * apart.
   */
  private def numberBits(bytes: Array[Byte], at: Int, double: Boolean): Long =
    if (double) {
      val value = Platform.getDouble(bytes, Platform.BYTE_ARRAY_OFFSET + at)
      if (value == 0.0) 0L else java.lang.Double.doubleToLongBits(value) // doubleToLongBits maps all NaNs to one
    } else {
      val value = Platform.getFloat(bytes, Platform.BYTE_ARRAY_OFFSET + at)
      if (value == 0.0f) 0L else java.lang.Float.floatToIntBits(value).toLong
    }
}

/**
 * How a digest treats top-level columns of floating-point numbers. New commits have `OfNumbers`; old ones have the
 * others.
 */
private[cec] object DigestKind extends Enumeration {
  val OfBytes, WithoutNumbers, OfNumbers = Value
}

private[cec] object RowDigest {
  private val Seed = 42L

  /** Hashes the bytes in [from, to). */
  def hash(bytes: Array[Byte], from: Int, to: Int, seed: Long): Long =
    XXH64.hashUnsafeBytes(bytes, Platform.BYTE_ARRAY_OFFSET + from, to - from, seed)
}
