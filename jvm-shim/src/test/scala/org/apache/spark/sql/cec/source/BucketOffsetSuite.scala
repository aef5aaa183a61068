package org.apache.spark.sql.cec.source

import org.apache.spark.sql.cec.CecSuite

/** Offsets of streams: one that reads in another way than its query has read so far would lose rows, or double them. */
final class BucketOffsetSuite extends CecSuite {
  private val offsets = Seq(
    BucketOffset(1, -1, 0, "time"), BucketOffset(-5, 7, 3, "time"), BucketOffset(1795867200000L, 12, 13, "a \"b\"", Some("0123abcd-89abcdef")))

  test("an offset is parsed as it was written") {
    for (offset <- offsets) assert(BucketOffset.parse(offset.json(), offset.by) == offset)
  }

  test("equal offsets have equal JSON, by which Spark compares them") {
    for (a <- offsets; b <- offsets) assert((a == b) == (a.json() == b.json()))
  }

  test("a stream by buckets refuses an offset of whole batches, and of another column") {
    for (json <- Seq("7", """{"batch":7,"of":"0123abcd-89abcdef"}""")) {
      assert(intercept[IllegalArgumentException](BucketOffset.parse(json, "time")).getMessage.contains("has read whole batches so far"))
    }
    val other = intercept[IllegalArgumentException](BucketOffset.parse(offsets(1).json(), "day"))
    assert(other.getMessage.contains("by buckets of time so far") && other.getMessage.contains("by those of day now"))
  }

  test("a stream of whole batches refuses an offset of buckets") {
    for (offset <- offsets) {
      assert(intercept[IllegalArgumentException](BatchOffset.parse(offset.json())).getMessage.contains("has read by buckets so far"))
    }
    assert(BatchOffset.parse("7") == BatchOffset(7))
    assert(BatchOffset.parse("""{"batch":7,"of":"0123abcd-89abcdef"}""") == BatchOffset(7, Some("0123abcd-89abcdef")))
  }
}
