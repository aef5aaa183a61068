package org.apache.spark.sql.cec.state

import java.nio.file.Files

import org.apache.spark.sql.cec.CecSuite
import org.apache.spark.sql.cec.agent.{CommitPlan, ExtentStep, ReplayStep, SpoolPath}

class CommitRecordChooserSuite extends CecSuite {
  import Plans.plan
  import Rows._
  import Stamps._

  private val Version = 20L
  private val generous = (_: CommitPlan).copy(share = 1.0, floorMs = 60000.0)

  /** Windows, and a chooser over them. */
  private final class Setup(deferred: Boolean, live: LiveWindows) {
    live.version = Version
    val records = new CommitRecordChooser(new CheckpointTimeBudget, deferred)

    /** The ids of the windows that the chooser checks. */
    def choose(asked: Option[CheckpointPlan], changes: BatchDelta = new BatchDelta, inputs: Long = 0, taskNs: Long = 1000000000L): Seq[Long] = {
      val file = Files.createTempDirectory("cec").resolve("spool")
      val spool = new RecordSpool(live.isGrouped, () => SpoolPath(file))
      try {
        val chosen = records.spoolTo(live, changes, asked, inputs, taskNs, spool).toArray.toSeq
        assert(spool.checked == chosen.map(live.rowCount).sum)
        assert(spool.opened == changes.opened.toArray.map(live.rowCount).sum && spool.closed == changes.closed.size)
        assert(chosen.distinct.size == chosen.size, "a window is checked twice")
        chosen.map(window => long(live.id(window)))
      } finally spool.close()
    }
  }

  private val a = 1L; private val b = 2L; private val c = 3L; private val d = 4L

  /** The changes of a batch that puts a key of one window. */
  private def touched(live: LiveWindows, key: Long): BatchDelta = {
    live.put(row(key), row(1L))
    changesOf(live)
  }

  test("an eager commit checks all dirty windows, also those of this batch, without a plan") {
    val live = stamped(Stamp(a, 5, dirtySince = 9), Stamp(b, 3), Stamp(c, 2, dirtySince = 6), Stamp(d, 1))
    val changes = touched(live, d)
    (0 until 2).foreach(_ => assert(new Setup(deferred = false, live).choose(None, changes) == Seq(c, a, d), "a commit that failed comes again"))
  }

  test("a deferred commit without a plan checks nothing but rounded averages") {
    val live = stamped(Stamp(a, 5, dirtySince = 9), Stamp(b, 3))
    assert(new Setup(deferred = true, live).choose(None).isEmpty)
    val changes = touched(live, b)
    assert(new Setup(deferred = true, live).choose(None, changes).isEmpty)
    changes.rounded.add(windowOf(live, row(b)))
    assert(new Setup(deferred = true, live).choose(None, changes) == Seq(b))
  }

  test("windows that opened or closed have their own records, and no check") {
    for (deferred <- Seq(false, true)) {
      val live = stamped(Stamp(a, 5, dirtySince = 9), Stamp(b, 3, dirtySince = 8))
      live.remove(row(a))
      val changes = touched(live, c)
      assert((changes.opened.size, changes.closed.size) == ((1, 1)))
      assert(new Setup(deferred, live).choose(Some(plan(_.copy(forcedBefore = Version + 1, rewriteWindows = 9))), changes) == Seq(b))
    }
  }

  test("a forced check needs no budget, and takes windows of versions below the given one") {
    val live = stamped(Stamp(a, 1, dirtySince = 9), Stamp(b, 2, dirtySince = 10), Stamp(c, 3, dirtySince = 11))
    assert(new Setup(deferred = true, live).choose(Some(plan(_.copy(forcedBefore = 10)))) == Seq(a))
    assert(new Setup(deferred = true, live).choose(Some(plan(_.copy(forcedBefore = 12)))) == Seq(a, b, c))
  }

  test("the batch's own dirty windows are asked for only by a version behind it") {
    val live = stamped(Stamp(a, 1))
    val changes = touched(live, a)
    assert(new Setup(deferred = true, live).choose(Some(plan(_.copy(forcedBefore = Version))), changes).isEmpty)
    assert(new Setup(deferred = true, live).choose(Some(plan(_.copy(forcedBefore = Version + 1))), changes) == Seq(a))
  }

  test("the oldest footprints are written again, as many as the plan says, dirty or not") {
    val live = stamped(Stamp(a, 7), Stamp(b, 3, dirtySince = 8), Stamp(c, 5), Stamp(d, 9))
    assert(new Setup(deferred = true, live).choose(Some(plan(_.copy(rewriteWindows = 2)))) == Seq(b, c))
    assert(new Setup(deferred = true, live).choose(Some(plan(_.copy(rewriteWindows = 99)))).size == 4)
  }

  test("replay and extent are brought down within the budget only") {
    val live = stamped(Stamp(a, 7, dirtySince = 8), Stamp(b, 3, dirtySince = 12), Stamp(c, 5))
    val replay = (_: CommitPlan).copy(replaySteps = Seq(ReplayStep(10, 500)), replayBound = 600)
    val extent = (_: CommitPlan).copy(extentSteps = Seq(ExtentStep(6, 0, 0)))
    assert(new Setup(deferred = true, live).choose(Some(plan(replay andThen generous))) == Seq(a))
    assert(new Setup(deferred = true, live).choose(Some(plan(replay))).isEmpty)
    assert(new Setup(deferred = true, live).choose(Some(plan(extent andThen generous))) == Seq(b, c))
    assert(new Setup(deferred = true, live).choose(Some(plan(extent))).isEmpty)
    assert(new Setup(deferred = true, live).choose(Some(plan(extent andThen replay andThen generous))) == Seq(a, b, c))
  }

  test("a store without task time has no budget") {
    val live = stamped(Stamp(a, 3))
    val asked = plan(generous(_).copy(extentSteps = Seq(ExtentStep(6, 0, 0))))
    assert(new Setup(deferred = true, live).choose(Some(asked), taskNs = 0L).isEmpty)
  }

  test("a window that two reasons ask for is checked once, and again in the next commit") {
    val live = stamped(Stamp(a, 3, dirtySince = 4))
    val setup = new Setup(deferred = true, live)
    val asked = plan(generous(_).copy(forcedBefore = 12, rewriteWindows = 5, extentSteps = Seq(ExtentStep(6, 0, 0))))
    assert(setup.choose(Some(asked)) == Seq(a))
    assert(setup.choose(Some(asked)) == Seq(a))
  }

  test("a commit that fails leaves no window chosen") {
    val live = stamped(Stamp(a, 3, dirtySince = 4), Stamp(b, 3, dirtySince = 5))
    val setup = new Setup(deferred = false, live)
    val spool = new RecordSpool(grouped = false, () => throw new IllegalStateException("no disk"))
    assertThrows[IllegalStateException](setup.records.spoolTo(live, new BatchDelta, None, 0, 0, spool))
    assert(setup.choose(None) == Seq(a, b))
    assert(Seq(a, b).map(key => live.dirtySince(windowOf(live, row(key)))) == Seq(4L, 5L))
  }

  test("the extent of a grouped store counts rows, not windows") {
    val live = groupWindows(Longs)
    for ((id, footprint, rows) <- Seq((a, 1L, 10), (b, 4L, 1)); k <- 0 until rows) load(live, row(id), row(id, k.toLong), row(0L), footprint)
    live.loaded()
    def limited(records: Long) = plan(generous(_).copy(
      extentSteps = Seq(ExtentStep(2, 10, 1), ExtentStep(5, 0, 0)), extentPerWindow = 0.0, extentRecords = records))
    // 10 - 1 + 10 = 19 records
    assert(new Setup(deferred = true, live).choose(Some(limited(19))) == Seq(a))
    assert(new Setup(deferred = true, live).choose(Some(limited(18))) == Seq(a, b))
  }

  test("the extent may be as large as the state, whose rows the batch under way has changed") {
    val live = stamped((a to 10L).map(key => Stamp(key, if (key == a) 1 else 4)): _*)
    def chosen = new Setup(deferred = true, live).choose(
      Some(plan(generous(_).copy(extentSteps = Seq(ExtentStep(2, 12, 1), ExtentStep(5, 0, 0)), extentPerWindow = 0.0))))
    assert(chosen.size == 10) // 12 - 1 + 1 records for 10 rows
    live.put(row(11L), row(0L))
    assert(chosen.size == 10)
    live.put(row(12L), row(0L))
    assert(chosen == Seq(a))
  }

  testSeeds("without a limit of time, a plan's thresholds are kept exactly") { random =>
    val stamps = (0L until 40L).map { key =>
      val footprint = random.nextInt(19).toLong
      Stamp(key, footprint, if (random.nextBoolean()) LiveWindows.Clean else footprint + random.nextInt(19 - footprint.toInt + 1))
    }
    val (forced, rewrite) = (random.nextInt(22).toLong, random.nextInt(6))
    val ids = new Setup(deferred = true, stamped(stamps: _*)).choose(Some(plan(_.copy(forcedBefore = forced, rewriteWindows = rewrite)))).toSet
    val chosen = stamps.filter(stamp => ids(stamp.key)).toSet
    assert(chosen.size == ids.size)
    val due = stamps.filter(_.dirtySince < forced).toSet
    assert(due.subsetOf(chosen))
    val oldest = stamps.map(_.footprint).sorted.take(rewrite)
    assert((chosen -- due).size <= rewrite)
    assert((chosen -- due).forall(_.footprint <= oldest.lastOption.getOrElse(-1L)))
    assert(stamps.map(_.footprint).sorted.take(rewrite) == chosen.toSeq.map(_.footprint).sorted.filter(_ <= oldest.lastOption.getOrElse(-1L)).take(rewrite))
  }
}

class CheckpointIndexSuite extends CecSuite {
  import Rows._
  import Stamps._

  /** Windows at version 10, with a look at the one of a key. */
  private final class Setup(stamps: Stamp*) {
    val live: KeyWindows = stamped(stamps: _*)
    live.version = 10
    val index: CheckpointIndex = live.books

    def touch(keys: Long*): Unit = keys.foreach(key => live.put(row(key), row(1L)))
    def window(key: Long): Int = windowOf(live, row(key))
    def footprint(key: Long): Long = live.footprint(window(key))
    def dirtySince(key: Long): Long = live.dirtySince(window(key))
    def isDirty(key: Long): Boolean = live.isDirty(window(key))
    def keys(windows: Iterator[Int]): Seq[Long] = windows.map(window => long(live.id(window))).toSeq
  }

  test("the numbers after a commit change nothing before it") {
    val setup = new Setup(Stamp(1, 3, dirtySince = 4), Stamp(2, 5, dirtySince = 6), Stamp(3, 5))
    import setup._
    live.remove(row(1L))
    touch(4, 3)
    val next = index.after(10, changesOf(live), list(window(2)))
    assert((next.openWindows, next.dirtyWindows, next.dirtyFrom) == ((3L, 1L, 10L)))
    assert(next.footprints.nonZero.toMap == Map(3L -> -1, 5L -> -1, 11L -> 2))
    assert(next.dirty.nonZero.toMap == Map(4L -> -1, 6L -> -1, 10L -> 1))
    assert(next.live(true).toMap == Map(5L -> 1, 11L -> 2))
    assert(next.live(false).toMap == Map(3L -> -1, 5L -> -1, 11L -> 2))
    assert((index.openWindows, index.dirtyWindows) == ((3L, 2L)))
    assert((footprint(2), dirtySince(2), dirtySince(3)) == ((5L, 6L, LiveWindows.Clean)))
  }

  test("a commit that leaves nothing dirty says so with its new version") {
    val setup = new Setup(Stamp(1, 3, dirtySince = 4))
    import setup._
    val checks = list(window(1))
    val next = index.after(10, new BatchDelta, checks)
    assert((next.dirtyWindows, next.dirtyFrom) == ((0L, 11L)))
    val renewed = index.apply(10, new BatchDelta, checks, next)
    assert((footprint(1), isDirty(1), index.dirtyWindows) == ((11L, false, 0L)))
    assert(renewed.size == 1 && renewed.window(0) == window(1))
    renewed.restamp(0)
    assert((footprint(1), dirtySince(1)) == ((3L, 4L)))
  }

  test("a touched window that is checked is clean, and is not among the renewed ones") {
    val setup = new Setup(Stamp(1, 3))
    import setup._
    touch(1)
    val (changes, checks) = (changesOf(live), list(window(1)))
    assert((changes.newlyDirty.toArray.toSeq, changes.kept) == ((Seq(window(1)), 1)))
    val next = index.after(10, changes, checks)
    assert((next.dirtyWindows, next.dirtyFrom) == ((0L, 11L)))
    assert(index.apply(10, changes, checks, next).size == 0)
    assert((footprint(1), isDirty(1)) == ((11L, false)))
    assert(live.isTouched(window(1)))
    assert(index.dirtyBefore(Long.MaxValue).isEmpty)
    assert(keys(index.withFootprintBefore(12)) == Seq(1L))
  }

  test("a touched window that is checked stays clean, though another one becomes dirty") {
    val setup = new Setup(Stamp(1, 3), Stamp(2, 3))
    import setup._
    touch(1, 2)
    val (changes, checks) = (changesOf(live), list(window(1)))
    assert((changes.newlyDirty.size, changes.kept) == ((2, 2)))
    index.apply(10, changes, checks, index.after(10, changes, checks))
    assert((isDirty(1), dirtySince(2), index.dirtyWindows) == ((false, 10L, 1L)))
    assert(keys(index.dirtyBefore(Long.MaxValue)) == Seq(2L))
  }

  test("D is that of the oldest window that stays dirty") {
    val setup = new Setup(Stamp(1, 3, dirtySince = 4), Stamp(2, 3, dirtySince = 7))
    import setup._
    assert(index.after(10, new BatchDelta, list()).dirtyFrom == 4)
    assert(index.after(10, new BatchDelta, list(window(1))).dirtyFrom == 7)
    live.remove(row(1L))
    assert(index.after(10, changesOf(live), list()).dirtyFrom == 7)
  }

  test("a silent commit leaves the windows that it opens dirty") {
    val setup = new Setup(Stamp(2, 3))
    import setup._
    touch(1, 2)
    index.apply(10, changesOf(live), writes = false)
    assert((index.openWindows, index.dirtyWindows) == ((2L, 2L)))
    assert((footprint(1), dirtySince(1)) == ((11L, 10L)))
    assert((footprint(2), dirtySince(2)) == ((3L, 10L)))
    assert(keys(index.dirtyBefore(11)).toSet == Set(1L, 2L))
  }

  test("the books are built anew from the open windows") {
    val setup = new Setup((0L until 5L).map(key => Stamp(key, key, if (key % 2 == 0) LiveWindows.Clean else key + 10)): _*)
    import setup._
    assert((index.openWindows, index.dirtyWindows, index.windowsBefore(3)) == ((5L, 2L, 3L)))
    assert(keys(index.withFootprintBefore(Long.MaxValue)) == (0L until 5L))
    assert(keys(index.dirtyBefore(Long.MaxValue)) == Seq(1L, 3L))
    live.setFootprint(window(0), 9)
    live.setDirtySince(window(3), LiveWindows.Clean)
    live.setDirtySince(window(4), 7)
    Seq(1L, 2L).foreach(key => live.remove(row(key)))
    index.rebuild()
    assert((index.openWindows, index.dirtyWindows, index.windowsBefore(4)) == ((3L, 1L, 1L)))
    assert(index.live.toSeq == Seq(3L -> 1, 4L -> 1, 9L -> 1))
    assert(keys(index.withFootprintBefore(Long.MaxValue)) == Seq(3L, 4L, 0L))
    assert(keys(index.dirtyBefore(Long.MaxValue)) == Seq(4L))
  }
}
