package org.apache.spark.sql.cec.state

import org.apache.spark.sql.catalyst.expressions.{UnsafeRow, XXH64}
import org.apache.spark.sql.types.{DoubleType, FloatType, StructType}
import org.apache.spark.unsafe.Platform

/**
 * A row's part of a store's digest, which is the sum over all rows.
 *
 * The digest is exact: a replay that leaves one other number is found. Only what Spark itself holds to be one number is one here: 0.0
 * and -0.0, and all NaNs. Of these a minimum or maximum keeps the first that comes, and a shuffle keeps no order.
 *
 * @param valueSchema of the store; numbers inside structs, arrays and binary columns count as they are
 */
private[cec] final class RowDigest(valueSchema: StructType) {
  private val isDouble: Array[Boolean] = valueSchema.fields.map(_.dataType == DoubleType)
  private val floats: Array[Int] = valueSchema.fields.zipWithIndex.collect { case (f, i) if f.dataType == DoubleType || f.dataType == FloatType => i }
  private val fixedFrom = UnsafeRow.calculateBitSetWidthInBytes(valueSchema.length)

  /** How the digests are made that a commit of today has. */
  val kind: DigestKind.Value = if (floats.length == 0) DigestKind.OfBytes else DigestKind.OfNumbers

  /** The hash that a value is seeded with. */
  def seed(key: UnsafeRow): Long = XXH64.hashUnsafeBytes(key.getBaseObject, key.getBaseOffset, key.getSizeInBytes, RowDigest.Seed)

  /** The hash of a value: the bytes from `start` to the end. */
  def hash(bytes: Array[Byte], start: Int, seed: Long): Long =
    if (floats.length == 0) RowDigest.hash(bytes, start, bytes.length, seed) else inPieces(bytes, start, seed, withNumbers = true)

  /** The hash as commits of an earlier kind have it. */
  def hash(bytes: Array[Byte], seed: Long, as: DigestKind.Value): Long = as match {
    case _ if floats.length == 0 => hash(bytes, 0, seed)
    case DigestKind.OfNumbers => hash(bytes, 0, seed)
    case DigestKind.WithoutNumbers => inPieces(bytes, 0, seed, withNumbers = false)
    case DigestKind.OfBytes => RowDigest.hash(bytes, 0, bytes.length, seed)
  }

  private def inPieces(bytes: Array[Byte], start: Int, seed: Long, withNumbers: Boolean): Long = {
    var (from, result, i) = (start, seed, 0)
    while (i < floats.length) {
      val column = start + fixedFrom + 8 * floats(i)
      if (column > from) result = RowDigest.hash(bytes, from, column, result)
      if (withNumbers) result = XXH64.hashLong(number(bytes, column, isDouble(floats(i))), result)
      from = column + 8
      i += 1
    }
    if (bytes.length > from) RowDigest.hash(bytes, from, bytes.length, result) else result
  }

  /** The bits of a number, which are the same for all that are equal. Null is zero, and its bit is hashed apart. */
  private def number(bytes: Array[Byte], at: Int, double: Boolean): Long =
    if (double) {
      val value = Platform.getDouble(bytes, Platform.BYTE_ARRAY_OFFSET + at)
      if (value == 0.0) 0L else java.lang.Double.doubleToLongBits(value) // which knows one NaN
    } else {
      val value = Platform.getFloat(bytes, Platform.BYTE_ARRAY_OFFSET + at)
      if (value == 0.0f) 0L else java.lang.Float.floatToIntBits(value).toLong
    }
}

/** How a digest treats top-level floating-point columns: `OfNumbers` today; the others are of earlier commits. */
private[cec] object DigestKind extends Enumeration {
  val OfBytes, WithoutNumbers, OfNumbers = Value
}

private[cec] object RowDigest {
  private val Seed = 42L

  /** The hash of the bytes in [from, to). */
  def hash(bytes: Array[Byte], from: Int, to: Int, seed: Long): Long =
    XXH64.hashUnsafeBytes(bytes, Platform.BYTE_ARRAY_OFFSET + from, to - from, seed)
}
