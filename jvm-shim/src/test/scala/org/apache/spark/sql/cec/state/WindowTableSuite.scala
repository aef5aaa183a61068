package org.apache.spark.sql.cec.state

import java.util.ArrayList

import scala.collection.mutable
import scala.jdk.CollectionConverters._
import scala.util.Random

import org.apache.spark.sql.cec.CecSuite

class WindowTableSuite extends CecSuite {
  import Rows._

  /** The slot that a table of so many slots looks at first, as `WindowTable` computes it. */
  private def home(hash: Int, slots: Int): Int = {
    val mixed = hash * 0x9E3779B9
    (mixed ^ (mixed >>> 15)) & (slots - 1)
  }

  /** Hashes whose windows go to the last slots of a new table, so that runs wrap around its end. */
  private val atTheEnd: Seq[Int] = (0 until 10000).filter(hash => home(hash, 64) >= 62).take(8)

  private def find(table: WindowTable, window: KeyWindow): Window = table.get(window.key(1), window.hash)

  test("an empty table has no window, whatever its hash") {
    val table = new WindowTable
    assert(table.size == 0)
    assert(!table.iterator.hasNext)
    for (hash <- Seq(0, -1, Int.MinValue, Int.MaxValue)) assert(table.get(row(1L), hash) == null)
  }

  test("equal hashes of other ids, and equal ids of other hashes, are other windows") {
    val table = new WindowTable
    val (one, two) = (window(row(1L), 7), window(row(2L), 7))
    Seq(one, two).foreach(table.add)
    assert(table.get(row(1L), 7) eq one)
    assert(table.get(row(2L), 7) eq two)
    assert(table.get(row(3L), 7) == null)
    assert(table.get(row(1L), 8) == null)
  }

  test("an id that is the beginning of another id is another window") {
    val table = new WindowTable
    val (short, long) = (window(row("a"), 7), window(row("a" * 9), 7))
    table.add(long)
    assert(table.get(row("a"), 7) == null)
    table.add(short)
    assert(table.get(row("a"), 7) eq short)
    assert(table.get(row("a" * 9), 7) eq long)
  }

  test("every order of removals from a run that wraps around the end leaves the others to be found") {
    val ids = 0L until 5L
    ids.permutations.foreach { order =>
      val table = new WindowTable
      val windows = ids.map(id => window(row(id), atTheEnd(id.toInt % 2)))
      windows.foreach(table.add)
      order.indices.foreach { removed =>
        table.remove(windows(order(removed).toInt))
        val left = order.drop(removed + 1)
        ids.foreach { id =>
          val expected = if (left.contains(id)) windows(id.toInt) else null
          assert(find(table, windows(id.toInt)) eq expected, s"after ${order.take(removed + 1)}")
        }
        assert(table.iterator.toSet == left.map(id => windows(id.toInt)).toSet)
      }
      assert(table.size == 0)
    }
  }

  test("an addition returns the window that is there, and counts it once") {
    val table = new WindowTable
    val (first, second) = (window(row(1L), 3), window(row(1L), 3))
    assert(table.addIfAbsent(first) eq first)
    assert(table.addIfAbsent(second) eq first)
    assert(table.size == 1)
    val (group, same) = (new GroupWindow(row(9L).getBytes, 3), new GroupWindow(row(9L).getBytes, 3))
    assert(table.addIfAbsent(group) eq group)
    assert(table.addIfAbsent(same) eq group)
    assert(table.size == 2)
  }

  test("an iterator shows each window of its start once, though the table grows meanwhile") {
    val table = new WindowTable
    val before = (0L until 30L).map(window(_))
    before.foreach(table.add)
    val seen = mutable.ArrayBuffer.empty[Window]
    var next = 100L
    val iterator = table.iterator
    while (iterator.hasNext) {
      seen += iterator.next()
      (0 until 20).foreach { _ =>
        table.add(window(next))
        next += 1
      }
    }
    before.foreach(window => assert(seen.count(_ eq window) == 1))
    assert(seen.distinct.size == seen.size)
    assertThrows[NoSuchElementException](iterator.next())
    assert(table.size == 30 + next - 100)
  }

  test("room that is reserved keeps the windows") {
    for (room <- Seq(0L, 1L, 63L, 64L, 5000L)) {
      val table = new WindowTable
      val windows = (0L until 40L).map(window(_))
      windows.foreach(table.add)
      table.reserve(room)
      windows.foreach(window => assert(find(table, window) eq window))
      assert(table.size == 40)
    }
  }

  test("many windows are added at once beside others") {
    val table = new WindowTable
    val (old, more) = ((0L until 100L).map(window(_)), (100L until 20000L).map(window(_)))
    old.foreach(table.add)
    table.addAll(new ArrayList[Window](more.asJava))
    table.addAll(new ArrayList[Window]())
    (old ++ more).foreach(window => assert(find(table, window) eq window))
    assert(table.size == 20000)
    assert(table.iterator.size == 20000)
  }

  testSeeds("a table of colliding windows behaves as a map") { random =>
    val hashes = if (random.nextBoolean()) atTheEnd else Seq.fill(1 + random.nextInt(6))(random.nextInt())
    val table = new WindowTable
    val model = mutable.Map.empty[Long, KeyWindow]
    def hashOf(id: Long): Int = hashes((id % hashes.size).toInt)
    def make(id: Long) = window(row(id), hashOf(id))
    (0 until 600).foreach(_ => step(random, table, model, make))
    (0L until 300L).foreach(id => assert(table.get(row(id), hashOf(id)) eq model.getOrElse(id, null)))
    assert(table.size == model.size)
    assert(table.iterator.toSet == model.values.toSet)
    assert(table.iterator.size == model.size)
  }

  private def step(random: Random, table: WindowTable, model: mutable.Map[Long, KeyWindow], make: Long => KeyWindow): Unit = {
    val id = random.nextInt(300).toLong
    random.nextInt(10) match {
      case 0 | 1 | 2 => model.remove(id).foreach(table.remove)
      case 3 =>
        val made = make(id)
        assert(table.addIfAbsent(made) eq model.getOrElseUpdate(id, made))
      case 4 =>
        val made = Seq.fill(random.nextInt(20))(random.nextInt(300).toLong).distinct.filterNot(model.contains).map(id => id -> make(id))
        table.addAll(new ArrayList[Window](made.map(_._2).asJava))
        model ++= made
      case 5 => table.reserve(random.nextInt(200))
      case _ => if (!model.contains(id)) {
        val made = make(id)
        table.add(made)
        model(id) = made
      }
    }
    assert(table.size == model.size)
  }
}
