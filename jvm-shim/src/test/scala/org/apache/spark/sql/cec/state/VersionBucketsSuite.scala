package org.apache.spark.sql.cec.state

import org.apache.spark.sql.cec.CecSuite

class VersionBucketsSuite extends CecSuite {
  import Stamps.list

  /** Buckets of windows 0, 1 and so on, which are closed until they enter. */
  private final class Setup(count: Int) {
    val versions: Array[Long] = Array.fill(count)(LiveWindows.Never)
    val books = new VersionBuckets(versions(_))

    /** Enters windows at a version, and counts them. */
    def enter(version: Long, windows: Int*): Unit = {
      windows.foreach(versions(_) = version)
      books.enter(version, list(windows: _*))
      books.count(tally(version -> windows.size))
    }

    def close(window: Int): Unit = versions(window) = LiveWindows.Never
  }

  private def tally(changes: (Long, Int)*): Tally = {
    val made = new Tally
    changes.foreach { case (version, count) => made.add(version, count) }
    made
  }

  test("a version is below another one, not below itself") {
    val setup = new Setup(1)
    import setup._
    enter(5, 0)
    assert(books.below(5).isEmpty)
    assert(books.below(6).toSeq == Seq(0))
    assert(books.counts.toSeq == Seq(5L -> 1))
    assert(books.size == 1)
    assertThrows[NoSuchElementException](books.below(5).next())
  }

  test("windows come oldest first, whatever the order of their entry") {
    val setup = new Setup(6)
    import setup._
    Seq(7L, 3L, 5L, 3L, 9L, 0L).zipWithIndex.foreach { case (version, window) => enter(version, window) }
    assert(books.below(9).map(versions(_)).toSeq == Seq(0, 3, 3, 5, 7))
    assert(books.below(9).toSeq == Seq(5, 1, 3, 2, 0))
  }

  test("one window enters as a list of one does") {
    val setup = new Setup(2)
    import setup._
    enter(4, 0)
    versions(1) = 4
    books.enter(4, 1)
    books.count(tally(4L -> 1))
    assert(books.below(5).toSeq == Seq(0, 1))
    assert(books.counts.toSeq == Seq(4L -> 2))
    books.enter(3, new IntList) // no windows, no version
    assert(books.counts.toSeq == Seq(4L -> 2))
  }

  test("closed windows, and windows of another version by now, are passed over") {
    val setup = new Setup(3)
    import setup._
    enter(1, 0, 1, 2)
    close(0)
    versions(1) = 2
    assert(books.below(10).toSeq == Seq(2))
  }

  test("a version that lost all its windows begins anew") {
    val setup = new Setup(2)
    import setup._
    enter(4, 0)
    close(0)
    books.count(tally(4L -> -1))
    assert(books.size == 0 && books.counts.isEmpty)
    enter(4, 1)
    assert(books.below(5).toSeq == Seq(1))
    assert(books.counts.toSeq == Seq(4L -> 1))
  }

  test("a window that leaves a version and returns at once changes nothing") {
    val setup = new Setup(1)
    import setup._
    enter(4, 0)
    books.count(tally(4L -> 1, 4L -> -1, 9L -> 0))
    assert(books.counts.toSeq == Seq(4L -> 1))
  }

  test("a sweep of stale entries leaves the live ones") {
    val setup = new Setup(10)
    import setup._
    val windows = 0 until 10
    enter(0, windows: _*)
    (0L until 2000L).foreach { version => // each window but two moves on: far more entries than windows
      val moving = windows.drop(2)
      moving.foreach(versions(_) = version + 1)
      books.enter(version + 1, list(moving: _*))
      books.count(tally(version -> -8, version + 1 -> 8))
    }
    assert(books.below(Long.MaxValue).toSeq == windows)
    assert(books.counts.toSeq == Seq(0L -> 2, 2000L -> 8))
    assert(books.below(2000).toSeq == windows.take(2))
  }

  test("stale entries of a version that stays are swept, and take no memory for ever") {
    val setup = new Setup(1001)
    import setup._
    (0 until 20).foreach { round => // the last window keeps version 0, so that its entries do not go with their version
      if (round == 0) enter(0, 1000)
      enter(0, 0 until 1000: _*)
      (0 until 1000).foreach(close)
      books.count(tally(0L -> -1000))
    }
    assert(books.below(1).toSeq == Seq(1000))
    assert(books.size == 1 && books.counts.toSeq == Seq(0L -> 1))
    assert(books.bytes < 4L * 8000, "20,000 entries came, and one of them lives")
  }

  test("cleared buckets are empty, and take windows again") {
    val setup = new Setup(4)
    import setup._
    (0 until 4).foreach(window => enter(10 + window % 3, window))
    books.clear()
    assert(books.size == 0 && books.below(Long.MaxValue).isEmpty && books.counts.isEmpty && books.bytes == 0)
    enter(10, 0)
    assert(books.below(11).toSeq == Seq(0))
    assert(books.size == 1 && books.counts.toSeq == Seq(10L -> 1))
  }

  testSeeds("windows that move, close and open behave as a sorted list") { random =>
    val setup = new Setup(60)
    import setup._
    val windows = 0 until 60
    (1L to 150L).foreach { version =>
      val changes = new Tally
      val entered = new IntList
      random.shuffle(windows.toVector).take(random.nextInt(12)).foreach { window =>
        if (versions(window) >= 0) changes.add(versions(window), -1)
        if (random.nextInt(4) == 0) close(window)
        else {
          versions(window) = version
          entered.add(window)
          changes.add(version, 1)
        }
      }
      books.enter(version, entered)
      books.count(changes)
      val open = windows.filter(versions(_) >= 0)
      val before = random.nextInt(version.toInt + 2).toLong
      assert(books.size == open.size)
      val found = books.below(before).toVector
      assert(found.map(versions(_)) == open.map(versions(_)).filter(_ < before).sorted)
      assert(found.distinct.size == found.size)
      assert(books.counts.toMap == open.groupBy(versions(_)).map { case (at, some) => at -> some.size })
    }
  }
}

class TallySuite extends CecSuite {
  testSeeds("a tally is a map of sums") { random =>
    val (tally, more) = (new Tally, new Tally)
    val added = Seq.fill(200)((random.nextInt(6).toLong - 2, random.nextInt(7) - 3))
    added.foreach { case (at, count) => tally.add(at, count) }
    val sums = added.groupMapReduce(_._1)(_._2)(_ + _)
    assert(tally.nonZero.toMap == sums.filter(_._2 != 0))
    assert(tally.total == sums.values.sum)
    val both = tally ++ sums.iterator.map { case (at, count) => at -> -count }
    assert(both.nonZero.isEmpty && both.total == 0)
    assert(tally.nonZero.toMap == sums.filter(_._2 != 0))
    assert((more ++ Iterator(1L -> 2, 1L -> 3)).nonZero.toSeq == Seq(1L -> 5))
  }
}
