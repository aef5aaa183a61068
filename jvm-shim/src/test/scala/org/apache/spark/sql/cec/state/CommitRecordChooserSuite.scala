package org.apache.spark.sql.cec.state

import java.nio.file.Files
import java.util.ArrayList

import scala.jdk.CollectionConverters._

import org.apache.spark.sql.cec.CecSuite
import org.apache.spark.sql.cec.agent.{CommitPlan, ExtentStep, ReplayStep}

class CommitRecordChooserSuite extends CecSuite {
  import Plans.plan
  import Rows._

  private val Version = 20L
  private val generous = (_: CommitPlan).copy(share = 1.0, floorMs = 60000.0)

  /** Books with these windows, and a chooser over them. */
  private final class Setup(deferred: Boolean, windows: Seq[Window], grouped: Boolean = false) {
    val books = new CheckpointIndex(null, _ => ())
    books.rebuild(windows.iterator)
    windows.foreach(_.checkRound = -1L) // an earlier chooser's rounds are not those of this one
    val records = new CommitRecordChooser(books, new CheckpointTimeBudget, deferred, grouped)

    def choose(
        asked: Option[CheckpointPlan], changes: BatchDelta = new BatchDelta, inputs: Long = 0, taskNs: Long = 1000000000L, rows: Long = 0): Seq[Window] = {
      val file = Files.createTempDirectory("cec").resolve("spool")
      val spool = new RecordSpool(grouped, () => file)
      try {
        val chosen = records.spoolTo(Version, changes, asked, inputs, taskNs, rows, spool).asScala.toSeq
        assert(spool.checked == chosen.map(_.rowCount).sum)
        assert(chosen.distinct.size == chosen.size, "a window is checked twice")
        chosen
      } finally spool.close()
    }
  }

  private val a = 1L; private val b = 2L; private val c = 3L; private val d = 4L

  private def touched(window: Window): BatchDelta = {
    window.isTouched = true
    val changes = new BatchDelta
    changes.newlyDirty.add(window)
    changes.kept = 1
    changes
  }

  test("an eager commit checks all dirty windows, also those of this batch, without a plan") {
    val windows = Seq(stamped(a, 5, dirtySince = 9), stamped(b, 3), stamped(c, 2, dirtySince = 6))
    val now = stamped(d, 1)
    assert(new Setup(deferred = false, windows :+ now).choose(None, touched(now)) == Seq(windows(2), windows(0), now))
  }

  test("a deferred commit without a plan checks nothing but rounded averages") {
    val windows = Seq(stamped(a, 5, dirtySince = 9), stamped(b, 3))
    assert(new Setup(deferred = true, windows).choose(None).isEmpty)
    val changes = touched(windows(1))
    changes.rounded.add(windows(1))
    assert(new Setup(deferred = true, windows).choose(None, changes) == Seq(windows(1)))
  }

  test("a forced check needs no budget, and takes windows of versions below the given one") {
    val windows = Seq(stamped(a, 1, dirtySince = 9), stamped(b, 2, dirtySince = 10), stamped(c, 3, dirtySince = 11))
    assert(new Setup(deferred = true, windows).choose(Some(plan(_.copy(forcedBefore = 10)))) == Seq(windows(0)))
    assert(new Setup(deferred = true, windows).choose(Some(plan(_.copy(forcedBefore = 12)))) == windows)
  }

  test("the batch's own dirty windows are asked for only by a version behind it") {
    val now = stamped(a, 1)
    assert(new Setup(deferred = true, Seq(now)).choose(Some(plan(_.copy(forcedBefore = Version))), touched(now)).isEmpty)
    assert(new Setup(deferred = true, Seq(now)).choose(Some(plan(_.copy(forcedBefore = Version + 1))), touched(now)) == Seq(now))
  }

  test("the oldest footprints are written again, as many as the plan says, dirty or not") {
    val windows = Seq(stamped(a, 7), stamped(b, 3, dirtySince = 8), stamped(c, 5), stamped(d, 9))
    assert(new Setup(deferred = true, windows).choose(Some(plan(_.copy(rewriteWindows = 2)))) == Seq(windows(1), windows(2)))
    assert(new Setup(deferred = true, windows).choose(Some(plan(_.copy(rewriteWindows = 99)))).size == 4)
  }

  test("replay and extent are brought down within the budget only") {
    val windows = Seq(stamped(a, 7, dirtySince = 8), stamped(b, 3, dirtySince = 12), stamped(c, 5))
    val replay = (_: CommitPlan).copy(replaySteps = Seq(ReplayStep(10, 500)), replayBound = 600)
    val extent = (_: CommitPlan).copy(extentSteps = Seq(ExtentStep(6, 0, 0)))
    assert(new Setup(deferred = true, windows).choose(Some(plan(replay andThen generous))) == Seq(windows(0)))
    assert(new Setup(deferred = true, windows).choose(Some(plan(replay))).isEmpty)
    assert(new Setup(deferred = true, windows).choose(Some(plan(extent andThen generous))) == Seq(windows(1), windows(2)))
    assert(new Setup(deferred = true, windows).choose(Some(plan(extent))).isEmpty)
    assert(new Setup(deferred = true, windows).choose(Some(plan(extent andThen replay andThen generous))) == Seq(windows(0), windows(1), windows(2)))
  }

  test("a store without task time has no budget") {
    val windows = Seq(stamped(a, 3))
    val asked = plan(generous(_).copy(extentSteps = Seq(ExtentStep(6, 0, 0))))
    assert(new Setup(deferred = true, windows).choose(Some(asked), taskNs = 0L).isEmpty)
  }

  test("a window that two reasons ask for is checked once, and again in the next commit") {
    val windows = Seq(stamped(a, 3, dirtySince = 4))
    val setup = new Setup(deferred = true, windows)
    val asked = plan(generous(_).copy(forcedBefore = 12, rewriteWindows = 5, extentSteps = Seq(ExtentStep(6, 0, 0))))
    assert(setup.choose(Some(asked)) == windows)
    assert(setup.choose(Some(asked)) == windows)
  }

  test("the extent of a grouped store counts rows, not windows") {
    def group(id: Long, footprint: Long, rows: Int): GroupWindow = {
      val made = new GroupWindow(row(id).getBytes, row(id).hashCode)
      (0 until rows).foreach(k => made.rows.put(row(id, k.toLong), row(0L)))
      made.footprint = footprint
      made
    }
    val windows = Seq(group(1, 1, rows = 10), group(2, 4, rows = 1))
    def limited(records: Long) = plan(generous(_).copy(
      extentSteps = Seq(ExtentStep(2, 10, 1), ExtentStep(5, 0, 0)), extentPerWindow = 0.0, extentRecords = records))
    // 10 - 1 + 10 = 19 records
    assert(new Setup(deferred = true, windows, grouped = true).choose(Some(limited(19))) == windows.take(1))
    assert(new Setup(deferred = true, windows, grouped = true).choose(Some(limited(18))) == windows)
  }

  testSeeds("without a limit of time, a plan's thresholds are kept exactly") { random =>
    val windows = (0L until 40L).map { key =>
      val footprint = random.nextInt(19).toLong
      stamped(key, footprint, if (random.nextBoolean()) Window.Clean else footprint + random.nextInt(19 - footprint.toInt + 1))
    }
    val (forced, rewrite) = (random.nextInt(22).toLong, random.nextInt(6))
    val chosen = new Setup(deferred = true, windows).choose(Some(plan(_.copy(forcedBefore = forced, rewriteWindows = rewrite)))).toSet
    val due = windows.filter(_.dirtySince < forced).toSet[Window]
    assert(due.subsetOf(chosen))
    val oldest = windows.map(_.footprint).sorted.take(rewrite)
    assert((chosen -- due).size <= rewrite)
    assert((chosen -- due).forall(_.footprint <= oldest.lastOption.getOrElse(-1L)))
    assert(windows.map(_.footprint).sorted.take(rewrite) == chosen.toSeq.map(_.footprint).sorted.filter(_ <= oldest.lastOption.getOrElse(-1L)).take(rewrite))
  }
}

class CheckpointIndexSuite extends CecSuite {
  import Rows._

  private def books(windows: Window*): CheckpointIndex = {
    val made = new CheckpointIndex(null, _ => ())
    made.rebuild(windows.iterator)
    made
  }

  private def list(windows: Window*) = new ArrayList[Window](windows.asJava)

  test("the numbers after a commit change nothing before it") {
    val (closing, dirty, kept) = (stamped(1, 3, dirtySince = 4), stamped(2, 5, dirtySince = 6), stamped(3, 5))
    val index = books(closing, dirty, kept)
    val changes = new BatchDelta
    closing.close()
    changes.closed.add(closing)
    changes.opened.add(window(4L))
    changes.newlyDirty.add(kept)
    changes.kept = 1
    kept.isTouched = true
    val next = index.after(10, changes, list(dirty))
    assert((next.openWindows, next.dirtyWindows, next.dirtyFrom) == ((3L, 1L, 10L)))
    assert(next.footprints.nonZero.toMap == Map(3L -> -1, 5L -> -1, 11L -> 2))
    assert(next.dirty.nonZero.toMap == Map(4L -> -1, 6L -> -1, 10L -> 1))
    assert(next.live(true).toMap == Map(5L -> 1, 11L -> 2))
    assert(next.live(false).toMap == Map(3L -> -1, 5L -> -1, 11L -> 2))
    assert((index.openWindows, index.dirtyWindows) == ((3L, 2L)))
    assert((dirty.footprint, dirty.dirtySince, kept.dirtySince) == ((5L, 6L, Window.Clean)))
  }

  test("a commit that leaves nothing dirty says so with its new version") {
    val dirty = stamped(1, 3, dirtySince = 4)
    val index = books(dirty)
    val next = index.after(10, new BatchDelta, list(dirty))
    assert((next.dirtyWindows, next.dirtyFrom) == ((0L, 11L)))
    val renewed = index.apply(10, new BatchDelta, list(dirty), next)
    assert((dirty.footprint, dirty.isDirty, index.dirtyWindows) == ((11L, false, 0L)))
    assert(renewed.size == 1)
    renewed.restamp(0)
    assert((dirty.footprint, dirty.dirtySince) == ((3L, 4L)))
  }

  test("a touched window that is checked is clean, and is not among the renewed ones") {
    val touched = stamped(1, 3)
    touched.isTouched = true
    val index = books(touched)
    val changes = new BatchDelta
    changes.newlyDirty.add(touched)
    changes.kept = 1
    val next = index.after(10, changes, list(touched))
    assert((next.dirtyWindows, next.dirtyFrom) == ((0L, 11L)))
    assert(index.apply(10, changes, list(touched), next).size == 0)
    assert((touched.footprint, touched.isDirty) == ((11L, false)))
    assert(index.dirtyBefore(Long.MaxValue).isEmpty)
    assert(index.withFootprintBefore(12).toSeq == Seq(touched))
  }

  test("a touched window that is checked stays clean, though another one becomes dirty") {
    val (checked, other) = (stamped(1, 3), stamped(2, 3))
    val index = books(checked, other)
    val changes = new BatchDelta
    Seq(checked, other).foreach { window =>
      window.isTouched = true
      changes.newlyDirty.add(window)
    }
    changes.kept = 2
    index.apply(10, changes, list(checked), index.after(10, changes, list(checked)))
    assert((checked.isDirty, other.dirtySince, index.dirtyWindows) == ((false, 10L, 1L)))
    assert(index.dirtyBefore(Long.MaxValue).toSeq == Seq(other))
  }

  test("D is that of the oldest window that stays dirty") {
    val (old, young) = (stamped(1, 3, dirtySince = 4), stamped(2, 3, dirtySince = 7))
    assert(books(old, young).after(10, new BatchDelta, list()).dirtyFrom == 4)
    assert(books(old, young).after(10, new BatchDelta, list(old)).dirtyFrom == 7)
    val index = books(old, young)
    old.close()
    val changes = new BatchDelta
    changes.closed.add(old)
    assert(index.after(10, changes, list()).dirtyFrom == 7)
  }

  test("a silent commit leaves the windows that it opens dirty") {
    val (opened, kept) = (window(1L), stamped(2, 3))
    kept.isTouched = true
    val index = books(kept)
    val changes = new BatchDelta
    changes.opened.add(opened)
    changes.newlyDirty.add(kept)
    changes.kept = 1
    index.apply(10, changes, writes = false)
    assert((index.openWindows, index.dirtyWindows) == ((2L, 2L)))
    assert((opened.footprint, opened.dirtySince) == ((11L, 10L)))
    assert((kept.footprint, kept.dirtySince) == ((3L, 10L)))
    assert(index.dirtyBefore(11).toSet == Set(opened, kept))
  }

  test("the books keep the windows in memory, and count the others, too") {
    val windows = (0L until 5L).map(key => stamped(key, key, if (key % 2 == 0) Window.Clean else key + 10))
    val index = books(windows: _*)
    index.keep(windows.take(2).iterator)
    assert((index.openWindows, index.dirtyWindows, index.windowsBefore(3)) == ((5L, 2L, 3L)))
    assert(index.withFootprintBefore(Long.MaxValue).toSeq == windows.take(2))
    assert(index.dirtyBefore(Long.MaxValue).toSeq == Seq(windows(1)))
    index.enter(windows(3))
    assert(index.withFootprintBefore(Long.MaxValue).toSeq == Seq(windows(0), windows(1), windows(3)))
    assert(index.dirtyBefore(Long.MaxValue).toSeq == Seq(windows(1), windows(3)))
    assert(index.openWindows == 5)
  }
}
