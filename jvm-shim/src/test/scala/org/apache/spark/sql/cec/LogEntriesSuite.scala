package org.apache.spark.sql.cec

import scala.collection.mutable

class LogEntriesSuite extends CecSuite {
  /** A store of entries that counts the requests. */
  private final class Store extends EntryRequests {
    val there = mutable.SortedSet.empty[Long]
    var requests = 0
    var fails = false

    private def count(): Unit = {
      requests += 1
      if (fails) throw new IllegalStateException("the store does not answer")
    }

    override def create(number: Long, content: Array[Byte], overwrites: Boolean): Unit = {
      count()
      if (!there.add(number) && !overwrites) throw new IllegalArgumentException(s"$number exists already")
    }

    override def read(number: Long): Option[Array[Byte]] = {
      count()
      Option.when(there(number))(Array(number.toByte))
    }

    override def list(): Seq[String] = {
      count()
      ".1.tmp" +: there.toSeq.map(_.toString)
    }

    override def delete(numbers: Seq[Long]): Unit = {
      count()
      there --= numbers
    }
  }

  /** Spark's calls in one batch. */
  private def runBatch(entries: LogEntries, batch: Long, retained: Long): Unit = {
    assert(!entries.exists(batch))
    entries.create(batch, Array.empty, overwrites = false)
    if (batch >= retained) entries.delete(batch - retained)
  }

  test("a batch makes one request, and each twentieth one more") {
    val store = new Store
    val entries = new LogEntries(store, 10)
    (0L until 210L).foreach(runBatch(entries, _, 10))
    assert(store.requests == 210 + 1 + 10, "one look for the first entry, and ten deletions of twenty entries")
    assert(store.there == (200L until 210L).to(mutable.SortedSet))
  }

  test("an entry that another driver wrote is not created again") {
    val store = new Store
    val entries = new LogEntries(store, 10)
    runBatch(entries, 0, 10)
    store.there += 1L
    intercept[IllegalArgumentException](runBatch(entries, 1, 10))
    assert(entries.exists(0) && store.there == mutable.SortedSet(0L, 1L))
  }

  test("an entry is read once, until it is deleted") {
    val store = new Store
    store.there ++= Seq(5L, 6L)
    val entries = new LogEntries(store, 10)
    for (_ <- 0 until 3) assert(entries.exists(6) && entries.read(6).exists(_.sameElements(Array(6.toByte))))
    assert(store.requests == 1)
    entries.delete(6)
    assert(!entries.exists(6) && entries.read(6).isEmpty)
    for (_ <- 0 until 2) assert(entries.read(7).isEmpty)
    store.there += 7L // another driver writes it
    assert(entries.exists(7), "an entry that was not there is asked for again")
  }

  test("only the last entries are kept, and no long one") {
    val store = new Store
    val entries = new LogEntries(store, 100)
    (0L to LogEntries.Known.toLong).foreach(entries.create(_, Array(1), overwrites = false))
    val before = store.requests
    assert(entries.read(1).isDefined && store.requests == before)
    assert(entries.read(0).isDefined && store.requests == before + 1)
    entries.create(50, new Array(LogEntries.KnownBytes + 1), overwrites = false)
    assert(entries.read(50).isDefined && store.requests == before + 3)
  }

  test("the log of an earlier run is asked") {
    val store = new Store
    store.there ++= Seq(5L, 6L)
    val entries = new LogEntries(store, 10)
    assert(entries.exists(6) && !entries.exists(7))
    entries.create(7, Array.empty, overwrites = false)
    assert(entries.exists(5) && entries.exists(7) && !entries.exists(9))
  }

  test("the first deletion of a run finds the old entries by a listing, and deletes them together") {
    val store = new Store
    store.there ++= (0L until 70L)
    val entries = new LogEntries(store, 10)
    assert(entries.list().size == 71)
    (0L until 60L).foreach(entries.delete)
    assert(store.requests == 1 + 3 && store.there == (60L until 70L).to(mutable.SortedSet))
    (69L until 71L).foreach(entries.delete)
    assert(store.there == (60L until 69L).to(mutable.SortedSet), "a new entry goes at once, and the waiting ones before it")
  }

  test("a log that is taken back loses its old entries first, and at once") {
    val store = new Store
    val entries = new LogEntries(store, 3)
    (0L until 10L).foreach(entries.create(_, Array.empty, overwrites = false))
    (4L until 10L).foreach(entries.delete(_)) // 4 to 6 are old ones
    assert(store.there == (0L until 4L).to(mutable.SortedSet))
    assert(!entries.exists(9), "asked again, because the newest entry is gone")
    assert(!entries.exists(10) && entries.exists(3))
  }

  test("a store that does not answer for a deletion ends no batch") {
    val store = new Store
    val entries = new LogEntries(store, 10)
    (0L until 69L).foreach(runBatch(entries, _, 10))
    entries.create(69, Array.empty, overwrites = false)
    store.fails = true
    entries.delete(59)
    store.fails = false
    entries.create(70, Array.empty, overwrites = false)
    entries.delete(60)
    assert(store.there == (61L to 70L).to(mutable.SortedSet))
  }
}
