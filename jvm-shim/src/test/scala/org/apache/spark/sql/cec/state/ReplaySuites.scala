package org.apache.spark.sql.cec.state

import org.apache.spark.sql.cec.CecSuite
import org.apache.spark.sql.execution.streaming.state.StateStoreId
import org.apache.spark.sql.types._

class ReplayVisibilitySuite extends CecSuite {
  test("a window is visible from D on, and from the batch after its footprint on") {
    val rule = new ReplayVisibility(4)
    for (footprint <- 0L to 8L; batch <- 0L to 8L) {
      assert(rule.visible(footprint, batch) == (batch >= 4 && batch >= footprint), s"footprint $footprint, batch $batch")
    }
    assert(rule.held == 0)
  }

  test("what the rule ignores is counted: a window that is not there, too") {
    val rule = new ReplayVisibility(4)
    assert(!rule.accepts(isKnown = false, 0, 9))
    assert(!rule.accepts(isKnown = true, 3, 3))
    assert(!rule.accepts(isKnown = true, 6, 5))
    assert(rule.held == 3)
    assert(rule.accepts(isKnown = true, 4, 4))
    assert(rule.held == 3)
  }
}

class ReplayCheckSuite extends CecSuite {
  import Rows._

  private val id = StateStoreId("/checkpoint/state", 1L, 2)

  private def check(counted: Boolean = true, accept: Boolean = false, digest: RowDigest = longs) =
    new ReplayCheck(id, Recovery(10, 8, counted, accept), digest)

  private val longs = new RowDigest(new StructType().add("v", LongType))
  private val doubles = new RowDigest(new StructType().add("v", DoubleType))

  private def windows(digest: RowDigest, rows: (Long, Any)*): LiveWindows = {
    val made = keyWindows(digest)
    rows.foreach { case (key, value) => made.put(row(key), row(value)) }
    made.version = 9
    made
  }

  private def footer(of: LiveWindows, open: Long, change: Long = 0, kind: DigestKind.Value = DigestKind.OfBytes) =
    Footer("id", open, of.sums.digest + change, kind)

  test("equal windows are a proof of the version") {
    val (checked, found) = (check(), windows(longs, 1L -> 1L, 2L -> 2L))
    checked.compare(found, 2, footer(found, 2), Some((1L, 1L)))
    assert(checked.end(10).map(_.version) == Right(10L))
    assert(checked.end(10).map(_.next.version) == Right(11L))
  }

  test("another digest, another number of windows or of dirty windows is refused") {
    val found = windows(longs, 1L -> 1L)
    assert(refused("Divergence")(check().compare(found, 1, footer(found, 1, change = 1), None)).contains("onDivergence=accept"))
    assert(refused("Divergence")(check().compare(found, 1, footer(found, 2), None)).contains("1 windows for 2"))
    assert(refused("Divergence")(check().compare(found, 1, footer(found, 1), Some((3L, 4L)))).contains("3 dirty windows for 4"))
  }

  test("the end of a replay reports a difference that the user accepts, and a new replay forgets it") {
    val (checked, found) = (check(accept = true), windows(longs, 1L -> 1L))
    checked.compare(found, 1, footer(found, 2), None)
    checked.compare(found, 1, footer(found, 1), None)
    checked.compare(found, 1, footer(found, 3), None)
    val told = checked.end(10).swap.getOrElse("")
    assert(told.contains("1 windows for 2") && told.contains("; ") && told.contains("1 windows for 3"))
    checked.reset()
    assert(checked.end(10).isRight)
  }

  test("another number of rows is refused where the number is certain") {
    assert(refused("Divergence")(check().inputs(7, brought = 3, expected = Some(4))).contains("batch 7 brought store"))
    check().inputs(7, brought = 4, expected = Some(4))
    check().inputs(7, brought = 4, expected = None)
    check().inputs(7, brought = 0, expected = Some(4)) // a part of a union that this store has nothing of
    check(counted = false).inputs(7, brought = 3, expected = Some(4))
    check(accept = true).inputs(7, brought = 3, expected = Some(4))
  }

  test("an uncertain number of rows is no difference by itself, and a report of another digest has it") {
    val (checked, found) = (check(counted = false), windows(longs, 1L -> 1L))
    checked.inputs(7, brought = 3, expected = Some(4))
    assert(checked.end(10).isRight)
    assert(refused("Divergence")(checked.compare(found, 1, footer(found, 1, change = 1), None)).contains("brought store"))
  }

  test("a replay that would close a window of the end is refused") {
    check().closes(7, 0)
    assert(refused("Divergence")(check().closes(7, 2)).contains("would close 2 windows"))
    check(accept = true).closes(7, 2)
  }

  test("an old commit's digest is computed anew, as that commit did") {
    val found = windows(doubles, 1L -> 1.0, 2L -> -0.0)
    val old = Seq((1L, 1.0), (2L, -0.0)).map { case (key, value) =>
      doubles.hash(row(value), doubles.seed(row(key)), DigestKind.WithoutNumbers)
    }.sum
    assert(old != found.sums.digest)
    check(digest = doubles).compare(found, 2, Footer("id", 2, old, DigestKind.WithoutNumbers), None)
    check(digest = doubles).compare(found, 2, footer(found, 2, kind = DigestKind.OfNumbers), None)
    refused("Divergence")(check(digest = doubles).compare(found, 2, Footer("id", 2, old, DigestKind.OfNumbers), None))
  }

  test("a loaded checkpoint of another digest is damage") {
    val found = windows(longs, 1L -> 1L)
    def answer(change: Long) = CheckpointAnswer(9, footer(found, 1, change), None, 0, 9, 0, Map.empty, 0, Plans.plan())
    assert(check().loaded(found, answer(0)).version == 9)
    assert(refused("DamagedLog")(check().loaded(found, answer(1))).contains("`cec verify`"))
  }
}

class StoreVersionSuite extends CecSuite {
  import Rows._
  import Stamps._

  test("the next version names the one before it as its base, and keeps plan, rule and changes") {
    val first = StoreVersion.unloaded.copy(
      checkpointId = Some("a"), baseCheckpointId = Some("0"), plan = Some(Plans.plan()), hold = Some(new ReplayVisibility(1)),
      unlogged = UnloggedChanges.since(3, "f"))
    val next = first.next(Verified.empty(5), StateTotals(1, 2, 3), Some("b"), inputs = 7)
    assert((next.checkpointId, next.baseCheckpointId, next.inputs, next.totals) == ((Some("b"), Some("a"), 7L, StateTotals(1, 2, 3))))
    assert((next.plan, next.hold, next.unlogged) == ((first.plan, first.hold, first.unlogged)))
    assert(next.standing.asInstanceOf[Verified].version == 5)
  }

  test("a store that loaded nothing has no version") {
    assert(StoreVersion.unloaded.standing == Standing.Unloaded)
    assert(StoreVersion.unloaded.checkpointId.isEmpty && StoreVersion.unloaded.totals == StateTotals())
  }

  test("the images of a version have its touched and its renewed windows as they are now") {
    val live = stamped(Stamp(1, 3), Stamp(2, 4, dirtySince = 5))
    val (changed, renewed) = (windowOf(live, row(1L)), windowOf(live, row(2L)))
    val (touched, only) = (new UndoLog(live, 0), new UndoStamps(live, 0))
    touched.add(changed)
    only.add(renewed)
    live.setFootprint(changed, 9)
    live.remove(row(1L))
    live.setFootprint(renewed, 9)
    live.setDirtySince(renewed, LiveWindows.Clean)
    val images = new PreviousVersion(StoreVersion.unloaded, touched, only).imagesNow(live)
    assert(images.size == 2 && images.window(0) == changed && images.window(1) == renewed)
    assert(!images.wasOpen(0) && images.wasOpen(1))
    assert(touched.wasOpen(0))
    Seq(changed, renewed).foreach(live.setFootprint(_, 1))
    live.setDirtySince(renewed, 6)
    (0 until 2).foreach(images.restamp)
    assert((live.footprint(changed), live.footprint(renewed), live.isDirty(renewed)) == ((9L, 9L, false)))
  }

  test("the images of windows of several keys have the places of all rows") {
    val live = groupWindows(Longs)
    for (id <- 1L to 2L; k <- 1L to 3L) load(live, row(id), row(id, k), row(k), id)
    live.loaded()
    val (touched, renewed) = (new UndoLog(live, 0), new UndoStamps(live, 0))
    (0 to 1).foreach(touched.add)
    (1L to 3L).foreach(k => live.remove(row(1L, k)))
    live.remove(row(2L, 2L))
    val images = new PreviousVersion(StoreVersion.unloaded, touched, renewed).imagesNow(live)
    assert((0 to 1).map(touched.wasOpen) == Seq(true, true) && (0 to 1).map(touched.places(_).length) == Seq(3, 3))
    assert((0 to 1).map(images.wasOpen) == Seq(false, true))
    assert(images.places(1).toSeq == Seq(0, 2).map(touched.places(1)(_)))
  }
}

class UnloggedChangesSuite extends CecSuite {
  import Rows._
  import Stamps._

  /** Closes windows in a batch of their own. */
  private def closing(live: LiveWindows, keys: Long*): BatchDelta = {
    keys.foreach(key => live.remove(row(key)))
    val changes = changesOf(live)
    assert(changes.closed.size == keys.size)
    live.advance()
    changes
  }

  private def ids(changes: UnloggedChanges): Seq[Long] = changes.closedIds.map(id => long(LiveWindows.row(id, 1)))

  test("only windows that the log has open count as closed") {
    val live = stamped(Stamp(1, 4), Stamp(2, 5), Stamp(3, 6))
    val since = UnloggedChanges.since(5, "frame")
    val after = since.after(live, closing(live, 1, 2, 3))
    assert(ids(after).toSet == Set(1L, 2L))
    assert((after.version, after.checkpointId) == ((5L, Some("frame"))))
    assert(since.closedIds.isEmpty)
  }

  test("closed windows of several commits add up, until a frame has them") {
    val live = stamped(Stamp(1, 4), Stamp(2, 4))
    val after = UnloggedChanges.since(5, "frame").after(live, closing(live, 1)).after(live, new BatchDelta).after(live, closing(live, 2))
    assert(ids(after).toSet == Set(1L, 2L))
    assert(UnloggedChanges.since(8, "next").closedIds.isEmpty)
  }

  test("the ids of closed windows stay when the memory of the windows is used again") {
    val live = stamped(Stamp(1, 4), Stamp(2, 4))
    live.remove(row(1L))
    val after = UnloggedChanges.since(5, "frame").after(live, changesOf(live))
    live.forgetBefore(live.advance())
    (0L until 200L).foreach { k => // each batch replaces the row, and frees the one before
      live.put(row(2L), row(k))
      live.put(row(1000 + k), row(k))
      live.forgetBefore(live.advance())
    }
    assert(ids(after) == Seq(1L))
  }

  test("a store without a frame has nothing to close") {
    val live = stamped(Stamp(1, 1))
    assert(UnloggedChanges.nothing.after(live, closing(live, 1)).closedIds.isEmpty)
    assert(UnloggedChanges.nothing.checkpointId.isEmpty)
  }
}

class ReadOrderCacheSuite extends CecSuite {
  import Rows._
  import Stamps.Longs

  /** A cache of windows with the keys 0, 1 and so on, which have the same numbers. */
  private final class Setup(count: Int) {
    val live: KeyWindows = Stamps.stamped((0 until count).map(key => Stamp(key.toLong, 0)): _*)
    val cache = new ReadOrderCache(live)
    assert((0 until count).forall(window => long(live.id(window)) == window))
  }

  test("writes in the order of the reads find their windows") {
    val setup = new Setup(100)
    import setup._
    (0 until 100).foreach(cache.add)
    (0 until 100).foreach(window => assert(cache.next(live.id(window)) == window))
    assert(cache.next(row(0L)) == -1)
  }

  test("another id is no hit, and does not lose the place") {
    val setup = new Setup(3)
    import setup._
    (0 until 3).foreach(cache.add)
    assert(cache.next(row(9L)) == -1)
    assert(cache.next(row(1L)) == -1)
    assert(cache.next(row(0L)) == 0)
  }

  test("a write that passes over some reads goes on behind its window, if that is near") {
    val setup = new Setup(41)
    import setup._
    (0 until 40).foreach(cache.add)
    cache.goOnAfter(7)
    assert(cache.next(row(8L)) == 8)
    cache.goOnAfter(18) // too far behind the place
    assert(cache.next(row(9L)) == 9)
    cache.goOnAfter(-1)
    cache.goOnAfter(40) // not a window that was read
    assert(cache.next(row(10L)) == 10)
    (11 until 40).foreach(k => assert(cache.next(row(k.toLong)) == k))
    cache.goOnAfter(39)
    assert(cache.next(row(39L)) == -1)
  }

  test("the end of a batch forgets its windows") {
    val setup = new Setup(3)
    import setup._
    cache.add(1)
    assert(cache.next(row(1L)) == 1)
    cache.add(1)
    cache.clear()
    assert(cache.next(row(1L)) == -1)
    cache.add(2)
    assert(cache.next(row(2L)) == 2)
  }

  test("a row that has gone is no hit, nor is another row with its number") {
    val live = groupWindows(Longs)
    (1L to 2L).foreach(k => live.put(row(1L, k), row(k)))
    val cache = new ReadOrderCache(live)
    assert(live.hasId(0, row(1L, 1L)))
    cache.add(0)
    live.remove(row(1L, 1L))
    assert(cache.next(row(1L, 1L)) == -1)
    live.put(row(1L, 3L), row(3L))
    assert(live.hasId(0, row(1L, 3L)), "the number is used again")
    assert(cache.next(row(1L, 1L)) == -1)
    assert(cache.next(row(1L, 3L)) == 0)
  }

  testSeeds("a hit is always the window with the id, in the order of the reads") { random =>
    val setup = new Setup(20)
    import setup._
    val windows = 0 until 20
    val reads = Seq.fill(random.nextInt(60))(pick(random, windows))
    reads.foreach(cache.add)
    var position = 0
    (0 until 200).foreach { _ =>
      val wanted = pick(random, windows)
      val hit = cache.next(live.id(wanted))
      if (position < reads.size && reads(position) == wanted) {
        assert(hit == wanted)
        position += 1
      } else {
        assert(hit == -1)
        cache.goOnAfter(wanted)
        val near = reads.indexOf(wanted, position)
        if (near >= 0 && near <= position + 8) position = near + 1
      }
    }
  }
}

class RowLimitSuite extends CecSuite {
  import org.apache.spark.sql.catalyst.expressions.UnsafeRow

  private def sized(bytes: Int): UnsafeRow = { // the bytes are not there, and nobody may read them
    val made = new UnsafeRow(1)
    made.pointTo(null, 0L, bytes)
    made
  }

  test("keys and values up to the limit are taken, and larger ones are refused with both sizes") {
    val (id, small, most, over) = (StateStoreId("/c", 0L, 0), sized(16), sized(RowLimit.Bytes), sized(RowLimit.Bytes + 8))
    RowLimit.check(id, most, sized(RowLimit.Bytes - 64))
    assert(refused("TooLarge")(RowLimit.check(id, most, sized(RowLimit.Bytes - 56))).contains("together"))
    assert(refused("TooLarge")(RowLimit.check(id, small, over)).contains(s"a value of ${RowLimit.Bytes + 8} bytes (its key has 16)"))
    refused("TooLarge")(RowLimit.check(id, over, small))
  }
}

class ExactAveragesSuite extends CecSuite {
  import Rows._

  private val average = new StructType().add("sum", DoubleType).add("count", LongType)

  test("averages are known by their columns") {
    assert(ExactAverages.of(average).isDefined)
    assert(ExactAverages.of(new StructType().add("count", LongType).add("sum", DoubleType)).isEmpty)
    assert(ExactAverages.of(new StructType().add("sum", LongType).add("count", LongType)).isEmpty)
    assert(ExactAverages.of(new StructType().add("sum", DoubleType).add("count", IntegerType)).isEmpty)
    assert(ExactAverages.of(new StructType().add("sum", DoubleType)).isEmpty)
    assert(ExactAverages.of(new StructType()).isEmpty)
  }

  test("a window is exact up to the number of rows whose sum a double holds") {
    val exact = ExactAverages.of(average).get
    def of(count: Long) = {
      val live = keyWindows(new RowDigest(average))
      live.put(row("a long key"), row(1.0, count))
      exact.areExact(live, windowOf(live, row("a long key")))
    }
    assert(of(0) && of(ExactAverages.MostRows) && !of(ExactAverages.MostRows + 1))
    assert(ExactAverages.MostRows == (1L << 53) / (1L << 31))
  }

  test("each average of a value, and each row of a group, counts") {
    val two = new StructType().add("max", LongType).add("sum", DoubleType).add("count", LongType).add("sum", DoubleType).add("count", LongType)
    val exact = ExactAverages.of(two).get
    val many = ExactAverages.MostRows + 1
    def of(value: Any*) = {
      val live = keyWindows(new RowDigest(two))
      live.put(row(1L), row(value: _*))
      exact.areExact(live, windowOf(live, row(1L)))
    }
    assert(of(many, 1.0, 1L, 1.0, 1L))
    assert(!of(1L, 1.0, many, 1.0, 1L))
    assert(!of(1L, 1.0, 1L, 1.0, many))
    val live = groupWindows(new RowDigest(two))
    live.put(row(1L, 1L), row(1L, 1.0, 1L, 1.0, 1L))
    live.put(row(2L, 1L), row(1L, 1.0, many, 1.0, 1L))
    val (group, other) = (windowOf(live, row(1L)), windowOf(live, row(2L)))
    assert(exact.areExact(live, group) && !exact.areExact(live, other))
    live.put(row(1L, 2L), row(1L, 1.0, many, 1.0, 1L))
    live.put(row(1L, 3L), row(1L, 1.0, 1L, 1.0, 1L))
    assert(!exact.areExact(live, group))
  }

  test("a batch that keeps a window with too many rows has it among the rounded ones") {
    val exact = ExactAverages.of(average)
    val live = keyWindows(new RowDigest(average))
    for (key <- 1L to 3L) live.put(row(key), row(1.0, ExactAverages.MostRows + 1))
    live.advance()
    live.put(row(1L), row(2.0, ExactAverages.MostRows + 2))
    live.put(row(2L), row(2.0, ExactAverages.MostRows))
    live.put(row(4L), row(1.0, ExactAverages.MostRows + 1)) // its record opens it
    assert(BatchDelta.of(live, exact).rounded.toArray.toSeq == Seq(windowOf(live, row(1L))))
    assert(BatchDelta.of(live, None).rounded.isEmpty)
  }
}
