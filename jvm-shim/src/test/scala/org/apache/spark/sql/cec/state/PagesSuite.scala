package org.apache.spark.sql.cec.state

import java.nio.file.Files

import scala.collection.mutable
import scala.util.Random

import org.apache.spark.sql.catalyst.expressions.UnsafeRow
import org.apache.spark.sql.cec.CecSuite
import org.apache.spark.sql.cec.agent.CecException

class PagesSuite extends CecSuite {
  import Rows._

  private def file(): PageFile = PageFile.in(Files.createTempDirectory("cec").toFile)

  private def pages(limit: Long = Long.MaxValue) = new Pages(PageMemory.apart(limit), () => file())

  private def value(words: Int, number: Long): UnsafeRow = row(number, "v" * (8 * words))

  private def read(pages: Pages, place: Int): (UnsafeRow, UnsafeRow) =
    (pages.pointToKey(new UnsafeRow(1), place).copy(), pages.pointToValue(new UnsafeRow(2), place).copy())

  for (limit <- Seq(0L, 3L << 20, Long.MaxValue)) testSeeds(s"records behave as a map, with at most $limit bytes on the heap", 4) { random =>
    val store = pages(limit)
    val (model, places) = (mutable.Map.empty[Int, (UnsafeRow, UnsafeRow)], mutable.Map.empty[Int, Int])
    def mover: RecordMover = (owner, place) => if (places.get(owner).contains(place)) {
      places(owner) = store.copy(owner, place)
      store.freeLater(place)
    }
    try (0 until 40).foreach { round =>
      val shrinks = round % 10 > 6
      (0 until 2000).foreach { i =>
        val owner = random.nextInt(4000)
        places.remove(owner).foreach(store.free(_))
        model.remove(owner)
        if (!shrinks) {
          val (key, content) = (row(owner.toLong), value(if (i == 1) 40000 else random.nextInt(60), random.nextLong()))
          places(owner) = store.add(owner, key, content)
          model(owner) = (key, content)
        }
      }
      store.tidy(mover)
      store.endBatch()
      model.foreach { case (owner, rows) =>
        assert(read(store, places(owner)) == rows)
        assert(store.hasKey(places(owner), rows._1) && !store.hasKey(places(owner), row(owner + 1L)))
        assert(store.keyBytes(places(owner)) == rows._1.getSizeInBytes && store.valueBytes(places(owner)) == rows._2.getSizeInBytes)
      }
    } finally store.close()
  }

  test("the space of free records is used again, and a store that shrinks gives memory back") {
    val store = pages()
    val places = mutable.ArrayBuffer.from((0 until 40000).map(i => store.add(i, row(i.toLong), value(6, i))))
    val full = store.heapBytes
    val live = 40000L * 8 * (1 + 2 + 3 + 6) // with the heads of record and rows
    assert(full < live * 11 / 10)
    (0 until 30).foreach { round => // each round replaces a third of them
      val old = places.indices.filter(_ % 3 == round % 3).map { i =>
        val before = places(i)
        places(i) = store.add(i, row(i.toLong), value(6, i))
        before
      }
      store.tidy((_, _) => ())
      old.foreach(store.free(_))
    }
    assert(store.heapBytes < full * 3 / 2, "a third is twice there, and a part of each page is free")
    places.indices.foreach(i => if (i % 100 != 0) store.free(places(i)))
    (0 until 100).foreach { _ =>
      store.tidy { (owner, place) =>
        if (places(owner) == place) {
          places(owner) = store.copy(owner, place)
          store.freeLater(place)
        }
      }
      store.endBatch()
    }
    assert(store.heapBytes < 4L * 8 * Pages.PageWords && full > 12L * 8 * Pages.PageWords)
    places.indices.by(100).foreach(i => assert(read(store, places(i)) == ((row(i.toLong), value(6, i)))))
    store.close()
  }

  test("the work of pages is counted: what is dead, moved, written to the file and read there") {
    val store = pages(0L)
    def words(places: Iterable[Int]) = places.iterator.map(place => 1 + (store.keyBytes(place) + store.valueBytes(place)) / 8).sum
    val places = mutable.ArrayBuffer.from((0 until 20000).map(i => store.add(i, row(i.toLong), value(6, i))))
    assert(store.work.spilledBytes == store.fileBytes && store.fileBytes > 5L * 8 * Pages.PageWords)
    assert(store.deadBytes == store.heapBytes + store.fileBytes - 8L * words(places))
    assert(store.work.fileReads == 0 && store.work.movedBytes == 0)
    assert(store.hasKey(places(100), row(100L)) && store.work.fileReads == 1)
    assert(store.hasKey(places.last, row(19999L)) && store.work.fileReads == 1, "the last page is on the heap")
    val (dead, gone) = (store.deadBytes, places.indices.filter(_ % 3 > 0))
    val freed = 8L * words(gone.map(places))
    gone.foreach(i => store.free(places(i)))
    assert(store.deadBytes == dead + freed)
    var moved = 0L
    gone.foreach(i => places(i) = 0)
    store.tidy { (owner, place) =>
      if (places(owner) == place) {
        moved += 8L * words(Seq(place))
        places(owner) = store.copy(owner, place)
        store.freeLater(place)
      }
    }
    store.endBatch()
    assert(store.work.movedBytes == moved && moved > 0)
    assert(store.deadBytes < dead + freed - 100000)
    store.close()
  }

  test("an executor whose windows nearly fill the heap says so, and what it has stays right") {
    val store = new Pages(PageMemory.apart(1L << 20, 2L << 20), () => file())
    val first = store.add(0, row(0L), value(6, 0))
    store.noteBeside(2L << 20) // columns and indexes cannot go to the file
    val failure = intercept[CecException]((1 to 100000).foreach(i => store.add(i, row(i.toLong), value(6, i))))
    assert(failure.isA("LiveStore") && failure.getMessage.contains("raise spark.executor.memory"))
    assert(read(store, first) == ((row(0L), value(6, 0))))
    store.noteBeside(0L)
    assert(read(store, store.add(1, row(1L), value(6, 1))) == ((row(1L), value(6, 1))))
    store.close()
  }

  test("more than two billion bytes that are free in the file are counted, moved out and used again") {
    val store = pages(0L)
    val content = value(4000, 7)
    val perRecord = 8L * (1 + 2 + content.getSizeInBytes / 8)
    val places = mutable.ArrayBuffer.empty[Int]
    while (places.size * perRecord * 7 / 8 < Int.MaxValue + 100000000L) places += store.add(places.size, row(places.size.toLong), content)
    store.noteBeside(64L << 20) // beyond the limit, for good
    store.tidy((_, _) => ())
    places.indices.foreach(i => if (i % 8 != 0) {
      store.free(places(i))
      places(i) = 0
    })
    assert(store.deadBytes > Int.MaxValue)
    val held = store.fileBytes
    var rounds = 0
    while (store.fileBytes > held / 4 && rounds < 2000) {
      (0 until 16).foreach(i => store.free(store.add(places.size, row(i.toLong), content))) // they make room
      store.tidy { (owner, place) =>
        if (owner < places.size && places(owner) == place) {
          places(owner) = store.copy(owner, place)
          store.freeLater(place)
        }
      }
      store.endBatch()
      rounds += 1
      assert(store.heapBytes < (6L << 20), "what is moved comes to the heap first")
    }
    assert(rounds < 1500 && store.work.movedBytes > held / 10)
    places.indices.by(8).foreach { i =>
      val (key, found) = read(store, places(i))
      assert(key == row(i.toLong) && found == content)
    }
    store.close()
  }

  test("stores that share memory are not refused while pages can go to files") {
    val memory = PageMemory.apart(1L << 20, 1L << 20)
    val stores = (0 until 3).map(_ => new Pages(memory, () => file()))
    stores.foreach(store => (0 until 20000).foreach(i => store.add(i, row(i.toLong), value(6, i))))
    assert(stores.tail.forall(_.fileBytes > 0) && memory.usedBytes < (2L << 20))
    stores.foreach(_.close())
    assert(memory.usedBytes == 0)
  }

  test("rows of all sizes have their own bytes") {
    val store = pages()
    val rows = for (key <- Seq(1, 1022, 1023, 1024, 5000); words <- Seq(0, 1, 4000, 4093, 4096, 32760, 32770, 2100000 / 8))
      yield (row("k" * (8 * key)), value(words, words))
    val places = rows.zipWithIndex.map { case ((key, content), i) => store.add(i, key, content) }
    rows.zip(places).foreach { case ((key, content), place) =>
      assert(store.pointToKey(new UnsafeRow(1), place) == key && store.pointToValue(new UnsafeRow(2), place) == content)
    }
    places.foreach(store.free(_))
    assert(store.heapBytes <= 8L * Pages.PageWords)
    assertThrows[IllegalArgumentException](store.add(1, null, 0, 12, null, 0, 8))
    store.close()
  }

  testSeeds("rows larger than a page go to the file, too, and its slots are used again", 3) { random =>
    val (limit, most) = (4L << 20, 1 << 21)
    val memory = PageMemory.apart(limit)
    val store = new Pages(memory, () => file())
    val (model, places) = (mutable.Map.empty[Int, UnsafeRow], mutable.Map.empty[Int, Int])
    (0 until 600).foreach { i =>
      val owner = random.nextInt(40)
      places.remove(owner).foreach(store.free(_))
      val content = value((random.nextInt(most) >> random.nextInt(8)) / 8, i)
      places(owner) = store.add(owner, row(owner.toLong), content)
      model(owner) = content
      assert(memory.usedBytes <= limit + 2L * most && memory.usedBytes == store.heapBytes)
      // What is in use follows the rows that are there, and not what was ever written. How many there are is chance.
      val liveBytes = model.values.map(_.getSizeInBytes.toLong).sum
      assert(store.fileBytes <= liveBytes + 2L * most, s"after $i of 600, $liveBytes live")
    }
    model.foreach { case (owner, content) => assert(read(store, places(owner)) == ((row(owner.toLong), content))) }
    assert(store.work.spilledBytes > (20L << 20))
    places.values.foreach(store.free(_))
    assert(store.fileBytes == 0 && store.deadBytes == store.heapBytes)
    store.close()
    assert(memory.usedBytes == 0)
  }

  test("rows of tens of kilobytes share pages, and a store without pages left names the mend") {
    val store = new Pages(PageMemory.apart(Long.MaxValue), () => file(), mostPages = 24)
    val places = (0 until 100).map(i => store.add(i, row(i.toLong), value(33000 / 8, i)))
    assert(places.map(_ >>> 15).distinct.size <= 20 && store.heapBytes < 100L * 33000 * 5 / 4)
    val failure = intercept[CecException]((0 until 100).foreach(i => store.add(i, row(i.toLong), value(33000 / 8, i))))
    assert(failure.getMessage.contains("has 24 pages with 4 MiB") && failure.getMessage.contains("cec rescale"))
    places.indices.foreach(i => assert(read(store, places(i)) == ((row(i.toLong), value(33000 / 8, i)))))
    store.close()
  }

  test("a row that was handed out stays when its page goes to the file, and the file's pages are used again") {
    val memory = PageMemory.apart(1L << 20)
    val store = new Pages(memory, () => file())
    val places = (0 until 50000).map(i => store.add(i, row(i.toLong), value(8, i)))
    assert(memory.usedBytes <= (1L << 20) + 8L * Pages.PageWords && memory.usedBytes == store.heapBytes)
    val inFile = store.fileBytes
    assert(inFile > (3L << 20))
    val inTheFile = store.pointToValue(new UnsafeRow(2), places(5000))
    assert(Option(inTheFile.getBaseObject).isEmpty && inTheFile == value(8, 5000))
    val onHeap = store.pointToValue(new UnsafeRow(2), places.last)
    (0 until 50000).foreach(i => store.add(i, row(i.toLong), value(8, -i)))
    assert(onHeap == value(8, 49999) && store.fileBytes > inFile)
    places.foreach(store.free(_))
    val left = store.fileBytes
    (0 until 50000).foreach(i => store.add(i, row(i.toLong), value(8, i)))
    assert(store.fileBytes > left)
    store.close()
    assert(memory.usedBytes == 0)
  }

  test("a store begins with little memory") {
    val store = pages()
    store.add(0, row(1L), row(1L, "a"))
    assert(store.heapBytes <= 2048)
    store.close()
  }

  test("a task that is killed while it writes to the file leaves the file in order") {
    val shared = file()
    val page = Array.tabulate[Byte](8 * Pages.PageWords)(_.toByte)
    Thread.currentThread.interrupt()
    val first = try shared.write(page) finally assert(Thread.interrupted())
    val second = shared.write(page)
    assert(first != second && org.apache.spark.unsafe.Platform.getByte(null, second + 100) == 100)
    shared.close()
  }

  test("a page file has slots for pages of all sizes, and a freed slot takes the next page of its size") {
    val shared = file()
    def byteAt(address: Long): Byte = org.apache.spark.unsafe.Platform.getByte(null, address)
    val sizes = Seq(8, 4096, 4104, 1 << 18, (1 << 18) + 8, 3 << 20, (64 << 20) + 8, 100 << 20)
    val pages = sizes.zipWithIndex.map { case (size, i) =>
      val page = new Array[Byte](size)
      java.util.Arrays.fill(page, (i + 1).toByte)
      (shared.write(page), size, (i + 1).toByte)
    }
    pages.foreach { case (address, size, mark) => assert(byteAt(address) == mark && byteAt(address + size - 1) == mark) }
    pages.foreach { case (address, size, _) =>
      shared.free(address)
      assert(shared.write(new Array[Byte](size)) == address && byteAt(address) == 0)
    }
    shared.close()
  }

  test("a page file that cannot be written names the cause and the mend") {
    val broken = PageFile.in(Files.createTempDirectory("cec").toFile)
    broken.close()
    val store = new Pages(PageMemory.apart(0L), () => broken)
    val failure = intercept[org.apache.spark.sql.cec.agent.CecException]((0 until 200000).foreach(i => store.add(i, row(i.toLong), value(20, i))))
    assert(failure.getMessage.contains("spark.local.dir"))
  }
}
