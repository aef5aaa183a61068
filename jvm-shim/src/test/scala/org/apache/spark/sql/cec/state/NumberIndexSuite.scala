package org.apache.spark.sql.cec.state

import scala.collection.mutable

import org.apache.spark.sql.catalyst.expressions.UnsafeRow
import org.apache.spark.sql.cec.CecSuite

class NumberIndexSuite extends CecSuite {
  import Rows._

  /** An index of numbers that stand for rows with a column of that number. */
  private final class Numbers extends NumberIndex {
    override protected def isSame(number: Int, row: UnsafeRow): Boolean = row.getLong(0) == number
    def find(number: Int, hash: Int): Int = find(row(number.toLong), hash)
  }

  for ((kind, hashOf) <- Seq[(String, Int => Int)](
      "spread" -> (_ * 0x9E3779B9), "small" -> (n => n), "multiples of the partitions" -> (_ * 200), "of eight values" -> (_ % 8), "one" -> (_ => 7)))
    testSeeds(s"hashes that are $kind: the index behaves as a map", 3) { random =>
      val (index, model) = (new Numbers, mutable.Set.empty[Int])
      val many = if (kind == "one" || kind == "of eight values") 600 else 40000
      if (random.nextBoolean()) index.reserve(random.nextInt(2 * many))
      (0 until 2 * many).foreach { _ =>
        val number = random.nextInt(many)
        val isKnown = model(number)
        assert(index.find(number, hashOf(number)) == (if (isKnown) number else -1))
        if (!isKnown) {
          index.add(hashOf(number), number)
          model += number
        } else if (random.nextInt(3) == 0) {
          index.remove(hashOf(number), number)
          model -= number
        }
      }
      assert(index.size == model.size)
      (0 until many).foreach(number => assert(index.find(number, hashOf(number)) == (if (model(number)) number else -1)))
    }

  test("an index grows in small steps, and a number takes less than 14 bytes") {
    val index = new Numbers
    (0 until 1000000).foreach { number =>
      val before = index.bytes
      index.add(number * 0x9E3779B9, number)
      assert(index.bytes - before <= 8 * 8192 + 8 * 512)
    }
    assert(index.bytes < 14L * 1000000)
  }

  test("an index with room for its numbers does not grow, and a number takes less than 14 bytes") {
    for (many <- Seq(100000, 1000000)) {
      val index = new Numbers
      index.reserve(many)
      val before = index.bytes
      (0 until many).foreach(number => index.add(number * 0x9E3779B9, number))
      assert(index.bytes == before && before < 14L * many)
    }
  }

  for (room <- Seq(0L, 5000L, 600000L, 5000000L)) test(s"a load of 600000 numbers, with room for $room, is found") {
    val index = new Numbers
    index.reserve(room)
    def hash(number: Int): Int = (number / 3) * 0x9E3779B9 // some have one hash
    (0 until 600000 by 60000).foreach(first => index.addAll(Array.tabulate(60000)(i => hash(first + i)), first))
    assert(index.size == 600000)
    (0 until 600000).foreach(number => assert(index.find(number, hash(number)) == number))
    assert(index.find(600000, hash(600000)) == -1)
    (0 until 600000 by 2).foreach(number => index.remove(hash(number), number))
    (0 until 600000).foreach(number => assert(index.find(number, hash(number)) == (if (number % 2 == 0) -1 else number)))
  }

  test("thousands of rows with one hash fill one segment, not memory") {
    val index = new Numbers
    (0 until 7000).foreach(index.add(1, _))
    assert(index.bytes < (1 << 20))
    assert(index.find(6999, 1) == 6999 && index.find(7000, 1) == -1)
  }

  test("a number that is not there cannot be removed") {
    val index = new Numbers
    index.add(1, 1)
    assertThrows[IllegalStateException](index.remove(1, 2))
    assertThrows[IllegalStateException](index.remove(2, 1))
  }
}
