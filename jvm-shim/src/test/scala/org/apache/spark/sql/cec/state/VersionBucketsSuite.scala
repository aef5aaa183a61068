package org.apache.spark.sql.cec.state

import java.util.ArrayList

import scala.jdk.CollectionConverters._

import org.apache.spark.sql.cec.CecSuite

class VersionBucketsSuite extends CecSuite {
  import Rows._

  private def buckets(warmUp: Long => Iterator[Unit] = _ => Iterator.empty) = new VersionBuckets(_.footprint, warmUp)

  private def tally(changes: (Long, Int)*): Tally = {
    val made = new Tally
    changes.foreach { case (version, count) => made.add(version, count) }
    made
  }

  /** Enters windows at a version, and counts them. */
  private def enter(into: VersionBuckets, version: Long, windows: Window*): Unit = {
    windows.foreach(_.footprint = version)
    into.enter(version, new ArrayList[Window](windows.asJava))
    into.count(tally(version -> windows.size))
  }

  test("a version is below another one, not below itself") {
    val books = buckets()
    enter(books, 5, window(1L))
    assert(books.below(5).isEmpty)
    assert(books.below(6).size == 1)
    assert(books.counts.toSeq == Seq(5L -> 1))
    assert(books.size == 1)
    assertThrows[NoSuchElementException](books.below(5).next())
  }

  test("windows come oldest first, whatever the order of their entry") {
    val books = buckets()
    Seq(7L, 3L, 5L, 3L, 9L, -1L).foreach(version => enter(books, version, window(version)))
    assert(books.below(9).map(_.footprint).toSeq == Seq(-1, 3, 3, 5, 7))
  }

  test("closed windows, and windows of another version by now, are passed over") {
    val books = buckets()
    val (closed, moved, left) = (window(1L), window(2L), window(3L))
    enter(books, 1, closed, moved, left)
    closed.close()
    moved.footprint = 2
    assert(books.below(10).toSeq == Seq(left))
  }

  test("a version that lost all its windows begins anew") {
    val books = buckets()
    val (first, second) = (window(1L), window(2L))
    enter(books, 4, first)
    first.close()
    books.count(tally(4L -> -1))
    assert(books.size == 0 && books.counts.isEmpty)
    enter(books, 4, second)
    assert(books.below(5).toSeq == Seq(second))
    assert(books.counts.toSeq == Seq(4L -> 1))
  }

  test("a window that leaves a version and returns at once changes nothing") {
    val books = buckets()
    enter(books, 4, window(1L))
    books.count(tally(4L -> 1, 4L -> -1, 9L -> 0))
    assert(books.counts.toSeq == Seq(4L -> 1))
  }

  test("a sweep of stale entries leaves the live ones") {
    val books = buckets()
    val windows = (0L until 10L).map(window(_))
    enter(books, 0, windows: _*)
    (0L until 2000L).foreach { version => // each window but two moves on: far more entries than windows
      val moving = windows.drop(2)
      moving.foreach(_.footprint = version + 1)
      books.enter(version + 1, new ArrayList[Window](moving.asJava))
      books.count(tally(version -> -8, version + 1 -> 8))
    }
    assert(books.below(Long.MaxValue).toSeq == windows)
    assert(books.counts.toSeq == Seq(0L -> 2, 2000L -> 8))
    assert(books.below(2000).toSeq == windows.take(2))
  }

  test("cold windows become warm only when a reader comes to their version") {
    var warmed = Seq.empty[Long]
    lazy val books: VersionBuckets = buckets { version =>
      if (warmed.contains(version)) Iterator.empty
      else {
        warmed :+= version
        Iterator(()).map(_ => books.enter(version, stamped(version, version)))
      }
    }
    books.count(tally(1L -> 1, 2L -> 1, 3L -> 1))
    assert(books.size == 3)
    val found = books.below(3)
    assert(warmed.isEmpty)
    assert(found.next().footprint == 1)
    assert(warmed == Seq(1L))
    assert(found.next().footprint == 2)
    assert(!found.hasNext)
    assert(warmed == Seq(1L, 2L))
    assert(books.below(3).size == 2)
  }

  test("the buckets find each window that they keep, and the counts stay") {
    val books = buckets()
    val windows = (0L until 4L).map(window(_))
    windows.foreach(window => enter(books, 10 + window.hash.abs % 3, window))
    val counts = books.counts.toSeq
    windows(3).close()
    books.keep(windows.drop(1).iterator)
    assert(books.counts.toSeq == counts)
    assert(books.below(Long.MaxValue).toSet == windows.slice(1, 3).toSet)
    books.clear()
    assert(books.size == 0 && books.below(Long.MaxValue).isEmpty && books.counts.isEmpty)
    enter(books, 10, windows.head)
    assert(books.below(11).toSeq == Seq(windows.head))
  }

  testSeeds("windows that move, close and open behave as a sorted list") { random =>
    val books = buckets()
    val windows = (0L until 60L).map(window(_))
    windows.foreach(_.close())
    (1L to 150L).foreach { version =>
      val changes = new Tally
      val entered = new ArrayList[Window]
      random.shuffle(windows).take(random.nextInt(12)).foreach { window =>
        if (window.isOpen) changes.add(window.footprint, -1)
        if (random.nextInt(4) == 0) window.close()
        else {
          window.put(window.key(1), row(0L))
          window.footprint = version
          entered.add(window)
          changes.add(version, 1)
        }
      }
      books.enter(version, entered)
      books.count(changes)
      val open = windows.filter(_.isOpen)
      val before = random.nextInt(version.toInt + 2).toLong
      assert(books.size == open.size)
      val found = books.below(before).toVector
      assert(found.map(_.footprint) == open.map(_.footprint).filter(_ < before).sorted)
      assert(found.distinct.size == found.size)
      assert(books.counts.toMap == open.groupBy(_.footprint).map { case (at, some) => at -> some.size })
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
