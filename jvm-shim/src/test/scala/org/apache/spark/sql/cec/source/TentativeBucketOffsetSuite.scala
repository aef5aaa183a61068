package org.apache.spark.sql.cec.source

import org.apache.spark.sql.cec.CecSuite
import org.apache.spark.sql.cec.agent.EpochReading

/** Offsets of streams by buckets with tentative rows: what a batch reads of an epoch, and what it takes back. */
final class TentativeBucketOffsetSuite extends CecSuite {
  private val stable = BucketOffset(1795867200000L, 12, 13, "time", Some("0123abcd-89abcdef"), Some("a"))
  private val reading = EpochReading("a", 3, 1795867200000L, 13, 1795867203000L, 17, 18, Some("89abcdef-0123abcd"))
  private val offsets = Seq(
    TentativeBucketOffset(BucketOffset(1, -1, 0, "time"), None), TentativeBucketOffset(stable, None), TentativeBucketOffset(stable, Some(reading)),
    TentativeBucketOffset(stable, Some(reading.copy(replica = "", of = None))))

  test("an offset is parsed as it was written, and equal ones have equal JSON") {
    for (offset <- offsets) assert(TentativeBucketOffset.parse(offset.json(), "time") == offset)
    for (a <- offsets; b <- offsets) assert((a == b) == (a.json() == b.json()))
  }

  test("a stream of stable rows may read tentative ones from now on, and the other way only without an epoch") {
    assert(TentativeBucketOffset.parse(stable.json(), "time") == TentativeBucketOffset(stable, None))
    assert(BucketOffset.parse(offsets(1).json(), "time") == stable)
    assert(intercept[IllegalArgumentException](BucketOffset.parse(offsets(2).json(), "time")).getMessage.contains("has read tentative rows"))
    for (json <- Seq("7", """{"batch":7,"epoch":{"number":3,"begin":1,"batch":2}}""")) {
      assert(intercept[IllegalArgumentException](TentativeBucketOffset.parse(json, "time")).getMessage.contains("has read whole batches so far"))
    }
  }

  test("a batch reads what its end says, and takes back what its end does not have") {
    val (none, some) = (offsets(1), offsets(2))
    val further = TentativeBucketOffset(stable, Some(reading.copy(afterMs = reading.untilMs, untilMs = reading.untilMs + 1000, since = 18, batch = 19)))
    assert(none.readBy(some).contains(reading) && none.undoneBy(some).isEmpty)
    assert(some.readBy(some).isEmpty && some.undoneBy(some).isEmpty)
    assert(some.readBy(further) == further.epoch && some.undoneBy(further).isEmpty)
    assert(some.readBy(none).isEmpty && some.undoneBy(none).contains(reading))
    for (other <- Seq(reading.copy(replica = "b"), reading.copy(number = 4))) {
      val next = TentativeBucketOffset(stable, Some(other))
      assert(some.readBy(next).contains(other) && some.undoneBy(next).contains(reading), "another epoch takes its place")
    }
  }
}
