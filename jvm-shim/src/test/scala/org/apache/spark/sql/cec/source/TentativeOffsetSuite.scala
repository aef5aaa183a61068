package org.apache.spark.sql.cec.source

import scala.util.Random

import org.apache.spark.sql.cec.CecSuite
import org.apache.spark.sql.cec.agent.EpochAnswer

/** Offsets of streams with tentative rows: which rows of an epoch a stream reads, and when it takes them back. */
final class TentativeOffsetSuite extends CecSuite {
  private val place = EpochPlace(3, 10, 14)
  private val offsets = Seq(
    TentativeOffset(-1, None, None), TentativeOffset(10, Some("0123abcd-89abcdef"), None), TentativeOffset(10, Some("0123abcd-89abcdef"), Some(place)))
  private val none = EpochAnswer(None, -1, -1, -1, false, None, false)
  private def open(number: Long, newest: Long, follows: Long = 10) = EpochAnswer(Some(number), 10, follows, newest, newest > 10, None, false)
  private def closed(number: Long, after: Long) = EpochAnswer(Some(number), 10, 10, 10, false, Some(after), false)

  test("an offset is parsed as it was written") {
    for (offset <- offsets) assert(TentativeOffset.parse(offset.json()) == offset)
    for (a <- offsets; b <- offsets) assert((a == b) == (a.json() == b.json()))
  }

  test("a stream of stable rows may read tentative ones from now on, and the other way only without an open epoch") {
    for (json <- Seq("7", """{"batch":7,"of":"0123abcd-89abcdef"}""")) assert(TentativeOffset.parse(json).batch == 7)
    assert(BatchOffset.parse(offsets(1).json()) == BatchOffset(10, Some("0123abcd-89abcdef")))
    assert(intercept[IllegalArgumentException](BatchOffset.parse(offsets(2).json())).getMessage.contains("has read tentative rows"))
    val byBuckets = BucketOffset(1, 2, 3, "time").json()
    assert(intercept[IllegalArgumentException](TentativeOffset.parse(byBuckets)).getMessage.contains("has read by buckets so far"))
  }

  test("an epoch is read from its begin, and goes on") {
    val from = TentativeOffset(10, None, None)
    assert(from.next(10, None, none) == from)
    assert(from.next(11, Some("x"), open(3, 12)) == TentativeOffset(11, Some("x"), Some(EpochPlace(3, 10, 12))))
    assert(offsets(2).next(10, None, open(3, 16)).epoch.contains(EpochPlace(3, 10, 16)))
    assert(offsets(2).next(10, None, open(3, 12)).epoch.contains(place), "a listing that is behind takes nothing back")
  }

  test("an epoch is begun after the stable rows before it") {
    val from = TentativeOffset(4, None, None)
    assert(from.next(9, None, open(3, 12)).epoch.isEmpty)
    assert(from.next(10, None, open(3, 12)).epoch.contains(EpochPlace(3, 10, 12)))
    assert(from.next(9, None, open(3, 12, follows = 9)).epoch.contains(EpochPlace(3, 10, 12)), "batch 10 has no rows, and may be left for later")
  }

  test("a stream that is behind keeps an epoch until it has what replaces it, also if there is another one by then") {
    assert(offsets(2).next(19, None, open(4, 22, follows = 20)).epoch.contains(place))
    assert(offsets(2).next(20, None, open(4, 22, follows = 20)).epoch.contains(EpochPlace(4, 10, 22)))
    assert(offsets(2).next(20, None, open(4, 10, follows = 20)).epoch.contains(place), "the other one has no row yet")
    val passed = open(4, 10, follows = 20).copy(hasPassed = true)
    assert(offsets(2).next(19, None, passed).epoch.contains(place))
    assert(offsets(2).next(20, None, passed).epoch.contains(EpochPlace(4, 10, 10)), "and no row of it has to come")
    assert(offsets(2).next(29, None, closed(4, 30).copy(follows = 20)).epoch.contains(place))
    assert(offsets(2).next(30, None, closed(4, 30).copy(follows = 20)).epoch.isEmpty)
  }

  test("the rows of an epoch stay until the rows are there that replace them") {
    assert(offsets(2).next(19, None, closed(3, 20)).epoch.contains(place))
    assert(offsets(2).next(20, None, closed(3, 20)).epoch.isEmpty)
    assert(offsets(2).next(10, None, none).epoch.isEmpty, "its note is gone")
    assert(offsets(2).next(10, None, open(4, 11)).epoch.contains(EpochPlace(4, 10, 11)), "another one takes its place")
    assert(offsets(1).next(10, None, closed(3, 20)).epoch.isEmpty, "a closed one is not begun")
  }

  test("of random epochs each is taken back once, and none stays when all are closed") {
    val chance = new Random(42)
    for (_ <- 0 until 200) {
      var (offset, number, stable) = (TentativeOffset(0, None, None), 0L, 0L)
      var (begun, undone) = (Seq.empty[Long], Seq.empty[Long])
      def step(answer: EpochAnswer): Unit = {
        val next = offset.next(stable, None, answer)
        if (next.epoch.map(_.number) != offset.epoch.map(_.number)) {
          undone ++= offset.epoch.map(_.number)
          begun ++= next.epoch.map(_.number)
        }
        offset = next
      }
      for (_ <- 0 until 20) {
        number += 1
        for (batch <- 0 until chance.nextInt(3)) step(EpochAnswer(Some(number), stable, stable, stable + batch, true, None, chance.nextBoolean()))
        val after = stable + chance.nextInt(3)
        for (_ <- 0 until chance.nextInt(4)) {
          stable += chance.nextInt(2)
          step(EpochAnswer(Some(number), stable, stable, stable, true, Some(after), false))
        }
      }
      stable += 10
      step(EpochAnswer(Some(number), 0, 0, 0, true, Some(stable), false))
      assert(offset.epoch.isEmpty && begun == undone && begun.distinct == begun)
    }
  }
}
