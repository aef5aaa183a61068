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
  def seed(key: UnsafeRow): Long = seed(key.getBaseObject, key.getBaseOffset, key.getSizeInBytes)

  def seed(base: AnyRef, from: Long, size: Int): Long = XXH64.hashUnsafeWords(base, from, size, RowDigest.Seed)

  /** Hashes a value of so many bytes. */
  def hash(base: AnyRef, from: Long, size: Int, seed: Long): Long =
    if (floatOrdinals.length == 0) XXH64.hashUnsafeWords(base, from, size, seed) else hashColumns(base, from, size, seed, withNumbers = true)

  def hash(value: UnsafeRow, seed: Long): Long = hash(value.getBaseObject, value.getBaseOffset, value.getSizeInBytes, seed)

  /** Hashes a value as a commit of the given kind does. */
  def hash(value: UnsafeRow, seed: Long, as: DigestKind.Value): Long = {
    val (base, from, size) = (value.getBaseObject, value.getBaseOffset, value.getSizeInBytes)
    as match {
      case _ if floatOrdinals.length == 0 => hash(base, from, size, seed)
      case DigestKind.OfNumbers => hash(base, from, size, seed)
      case DigestKind.WithoutNumbers => hashColumns(base, from, size, seed, withNumbers = false)
      case DigestKind.OfBytes => XXH64.hashUnsafeBytes(base, from, size, seed)
    }
  }

  private def hashColumns(base: AnyRef, begin: Long, size: Int, seed: Long, withNumbers: Boolean): Long = {
    val end = begin + size
    var (from, result, i) = (begin, seed, 0)
    while (i < floatOrdinals.length) {
      val column = begin + fieldsFrom + 8L * floatOrdinals(i)
      if (column > from) result = XXH64.hashUnsafeBytes(base, from, (column - from).toInt, result)
      if (withNumbers) result = XXH64.hashLong(numberBits(base, column, isDouble(floatOrdinals(i))), result)
      from = column + 8
      i += 1
    }
    if (end > from) XXH64.hashUnsafeBytes(base, from, (end - from).toInt, result) else result
  }

  /**
   * The bits of a number, which are equal for equal numbers. Null counts as zero, because the null bits are hashed
   * apart.
   */
  private def numberBits(base: AnyRef, at: Long, double: Boolean): Long =
    if (double) {
      val value = Platform.getDouble(base, at)
      if (value == 0.0) 0L else java.lang.Double.doubleToLongBits(value) // doubleToLongBits maps all NaNs to one
    } else {
      val value = Platform.getFloat(base, at)
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
}
