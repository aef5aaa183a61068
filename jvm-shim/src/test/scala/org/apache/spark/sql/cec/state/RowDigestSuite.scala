package org.apache.spark.sql.cec.state

import org.apache.spark.sql.catalyst.expressions.{UnsafeRow, XXH64}
import org.apache.spark.sql.cec.CecSuite
import org.apache.spark.sql.types._
import org.apache.spark.unsafe.Platform

class RowDigestSuite extends CecSuite {
  import Rows._

  private def schema(types: DataType*): StructType = StructType(types.zipWithIndex.map { case (kind, i) => StructField(s"c$i", kind) })

  private def hash(digest: RowDigest, values: Any*): Long = digest.hash(row(values: _*), 1L)

  private def hash(digest: RowDigest, bytes: Array[Byte], from: Int, size: Int, seed: Long): Long =
    digest.hash(bytes, Platform.BYTE_ARRAY_OFFSET + from, size, seed)

  private val nans = Seq(0x7ff8000000000000L, 0x7ff0000000000001L, 0xfff8000000000000L, 0x7fffffffffffffffL).map(java.lang.Double.longBitsToDouble)

  /** A double with these very bits. The writer of rows makes one NaN of all. */
  private def withBits(bits: Long): UnsafeRow = {
    val made = row(1L, 0.0, 2L)
    made.setLong(1, bits)
    made
  }

  test("equal numbers of other bytes have one hash") {
    val digest = new RowDigest(schema(LongType, DoubleType, LongType))
    def of(bits: Long) = digest.hash(withBits(bits), 1L)
    assert(of(0L) == of(java.lang.Double.doubleToRawLongBits(-0.0)))
    assert(nans.map(nan => of(java.lang.Double.doubleToRawLongBits(nan))).distinct.size == 1)
    val floats = new RowDigest(schema(FloatType))
    assert(hash(floats, 0.0f) == hash(floats, -0.0f))
    assert(hash(floats, Float.NaN) == hash(floats, java.lang.Float.intBitsToFloat(0xffc00001)))
  }

  test("other numbers have other hashes, and null is not zero") {
    val digest = new RowDigest(schema(DoubleType))
    val numbers = Seq[Any](null, 0.0, Double.MinPositiveValue, -Double.MinPositiveValue, 1.0, -1.0, Math.nextUp(1.0), Double.PositiveInfinity,
      Double.NegativeInfinity, Double.NaN)
    assert(numbers.map(hash(digest, _)).distinct.size == numbers.size)
    val floats = new RowDigest(schema(FloatType))
    val few = Seq[Any](null, 0.0f, Float.MinPositiveValue, 1.0f, Math.nextUp(1.0f), Float.NaN, Float.NegativeInfinity)
    assert(few.map(hash(floats, _)).distinct.size == few.size)
  }

  test("columns of numbers do not stand for one another") {
    for (types <- Seq(Seq(DoubleType, DoubleType), Seq(DoubleType, LongType, DoubleType))) {
      val digest = new RowDigest(schema(types: _*))
      val (a, b) = if (types.size == 2) (Seq(1.0, 2.0), Seq(2.0, 1.0)) else (Seq(1.0, 7L, 2.0), Seq(2.0, 7L, 1.0))
      assert(hash(digest, a: _*) != hash(digest, b: _*))
    }
  }

  test("a long that has the bits of -0.0 is exact") {
    val digest = new RowDigest(schema(LongType, DoubleType))
    assert(hash(digest, 0L, 1.0) != hash(digest, Long.MinValue, 1.0))
    val plain = new RowDigest(schema(LongType))
    assert(hash(plain, 0L) != hash(plain, Long.MinValue))
    assert(plain.kind == DigestKind.OfBytes && digest.kind == DigestKind.OfNumbers)
  }

  test("a value between other bytes, or in memory without an array, has the hash of the value alone") {
    for (types <- Seq(Seq(LongType), Seq(LongType, DoubleType, StringType), Seq(FloatType))) {
      val digest = new RowDigest(schema(types: _*))
      val made = row(types.map { case LongType => 3L; case DoubleType => -0.0; case FloatType => -0.0f; case _ => "text" }: _*)
      val value = made.getBytes
      val alone = digest.hash(made, 5L)
      assert(hash(digest, value, 0, value.length, 5L) == alone)
      for (before <- Seq(0, 8, 16, 24); after <- Seq(0, 8)) {
        val all = Array.fill(before)(7.toByte) ++ value ++ Array.fill(after)(9.toByte)
        assert(hash(digest, all, before, value.length, 5L) == alone)
        val inArray = new UnsafeRow(types.size)
        inArray.pointTo(all, Platform.BYTE_ARRAY_OFFSET + before, value.length)
        assert(digest.hash(inArray, 5L) == alone)
        assert(DigestKind.values.forall(kind => digest.hash(inArray, 5L, kind) == digest.hash(made, 5L, kind)))
      }
      val address = Platform.allocateMemory(value.length)
      try {
        Platform.copyMemory(value, Platform.BYTE_ARRAY_OFFSET, null, address, value.length)
        assert(digest.hash(null, address, value.length, 5L) == alone)
        assert(digest.seed(null, address, value.length) == digest.seed(made))
      } finally Platform.freeMemory(address)
    }
  }

  test("a key is a part of the hash, and so is its order of columns") {
    val digest = new RowDigest(schema(LongType))
    val value = row(1L)
    val keys = Seq(row(1L), row(2L), row(1L, 2L), row(2L, 1L), row("a"), row("b"), row(null))
    assert(keys.map(key => digest.hash(value, digest.seed(key))).distinct.size == keys.size)
  }

  test("an old commit's digest is computed as that commit did") {
    val digest = new RowDigest(schema(LongType, DoubleType, LongType))
    def of(kind: DigestKind.Value, values: Any*) = digest.hash(row(values: _*), 1L, kind)
    assert(of(DigestKind.OfNumbers, 1L, 2.0, 3L) == hash(digest, 1L, 2.0, 3L))
    assert(of(DigestKind.WithoutNumbers, 1L, 2.0, 3L) == of(DigestKind.WithoutNumbers, 1L, 9.0, 3L))
    assert(of(DigestKind.WithoutNumbers, 1L, 2.0, 3L) != of(DigestKind.WithoutNumbers, 1L, 2.0, 4L))
    assert(of(DigestKind.WithoutNumbers, 1L, 2.0, 3L) != of(DigestKind.WithoutNumbers, 1L, null, 3L))
    val (plus, minus) = (withBits(0L), withBits(Long.MinValue))
    assert(digest.hash(plus, 1L, DigestKind.OfBytes) != digest.hash(minus, 1L, DigestKind.OfBytes))
    assert(digest.hash(plus, 1L, DigestKind.OfBytes) == XXH64.hashUnsafeBytes(plus.getBaseObject, plus.getBaseOffset, plus.getSizeInBytes, 1L))
    val plain = new RowDigest(schema(LongType))
    assert(DigestKind.values.toSeq.map(plain.hash(row(5L), 1L, _)).distinct.size == 1)
  }

  testSeeds("one other bit is another hash, unless both are the same number", 20) { random =>
    val types = Seq.fill(1 + random.nextInt(5))(pick(random, Seq[DataType](LongType, DoubleType, FloatType, StringType)))
    val digest = new RowDigest(schema(types: _*))
    val value = row(types.map {
      case LongType => random.nextLong()
      case DoubleType => random.nextDouble() + 1
      case FloatType => random.nextFloat() + 1
      case _ => random.alphanumeric.take(random.nextInt(20)).mkString
    }: _*).getBytes
    val fieldsFrom = UnsafeRow.calculateBitSetWidthInBytes(types.size)
    val before = hash(digest, value, 0, value.length, 1L)
    for (byte <- value.indices; bit <- 0 until 8) {
      val changed = value.clone
      changed(byte) = (changed(byte) ^ (1 << bit)).toByte
      val column = (byte - fieldsFrom) / 8
      val padding = byte >= fieldsFrom && column < types.size && types(column) == FloatType && (byte - fieldsFrom) % 8 >= 4
      val isNan = byte >= fieldsFrom && column < types.size && (types(column) match {
        case DoubleType => java.nio.ByteBuffer.wrap(changed).order(java.nio.ByteOrder.nativeOrder()).getDouble(fieldsFrom + 8 * column).isNaN
        case _ => false
      })
      assert((hash(digest, changed, 0, changed.length, 1L) == before) == padding || isNan, s"byte $byte, bit $bit of $types")
    }
  }
}
