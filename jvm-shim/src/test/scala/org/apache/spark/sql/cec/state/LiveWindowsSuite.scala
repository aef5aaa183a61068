package org.apache.spark.sql.cec.state

import java.nio.file.Files

import scala.util.Random

import org.apache.spark.sql.catalyst.expressions.UnsafeRow
import org.apache.spark.sql.cec.CecSuite
import org.apache.spark.sql.types._

class LiveWindowsSuite extends CecSuite {
  import Rows._

  private val digest = new RowDigest(new StructType().add("v", LongType))

  private def keys(order: Option[RangeOrder] = None): KeyWindows =
    new KeyWindows(if (order.isEmpty) 1 else 2, 1, order, digest, pages())

  private def groups(): GroupWindows = groupWindows(digest)

  private def scan(windows: LiveWindows): Map[Long, Long] = windows.iterator.map(pair => long(pair.key) -> long(pair.value)).toMap

  for (grouped <- Seq(false, true); onDisk <- Seq(false, true); floats <- Seq(false, true)) {
    val kind = s"${if (grouped) "grouped" else "single"} windows${if (onDisk) " on disk" else ""}, ${if (floats) "doubles" else "longs"}"
    testSeeds(s"$kind: batches, rollbacks, undone and redone commits behave as maps", 25) { random =>
      val store = new StoreModel(grouped, onDisk, floats)
      try (0 until 30).foreach(_ => runBatch(random, store, windows = 12, changes = 25)) finally store.close()
    }
    testSeeds(s"$kind: the same in many pages, which fill, lose records and end", 2) { random =>
      val store = new StoreModel(grouped, onDisk, floats, padding = 60)
      try (0 until 12).foreach { i =>
        runBatch(random, store, windows = 500, changes = if (i % 4 == 0) 2000 else 1 + random.nextInt(400))
      } finally store.close()
    }
  }

  for (grouped <- Seq(false, true)) test(s"a full disk ends a batch, and leaves ${if (grouped) "grouped" else "single"} windows as they were") {
    var isFull = true
    val store = new StoreModel(grouped, onDisk = true, floats = false, padding = 40, () => if (isFull) throw new IllegalStateException("no space"))
    val random = new Random(7)
    try {
      (0L until 4L).foreach(i => store.put(i, 0L, i)) // in the first page
      store.commit(random)
      var failures = 0
      (0 until 5).foreach { run =>
        try (0L until 50L).foreach(i => store.put(i % 9, if (store.grouped) i % 3 else 0L, i + run)) catch { case _: IllegalStateException => failures += 1 }
        store.rollback()
        store.checkRows()
        store.checkBooks()
      }
      assert(failures == 5)
      isFull = false
      (0L until 500L).foreach(i => store.put(i % 100, 0L, i))
      store.commit(random)
      store.checkRows()
      store.checkBooks()
    } finally store.close()
  }

  private def runBatch(random: Random, store: StoreModel, windows: Int, changes: Int): Unit = {
    val removesMost = random.nextInt(6) == 0
    (0 until random.nextInt(changes)).foreach { i =>
      val (window, key) = (random.nextInt(windows).toLong, random.nextInt(3).toLong)
      if (removesMost && random.nextInt(10) > 0) store.remove(window, if (store.grouped) key else 0L) else change(random, store, window, key)
      if (i == changes / 3) store.handOut()
    }
    store.checkRows()
    store.checkHandedOut()
    random.nextInt(8) match {
      case 0 => store.rollback()
      case 1 => store.undo()
      case 2 => store.redo()
      case _ => store.commit(random)
    }
    store.checkRows()
    store.checkBooks()
    store.checkHandedOut()
  }

  private def change(random: Random, store: StoreModel, window: Long, key: Long): Unit = {
    val k = if (store.grouped) key else 0L
    random.nextInt(5) match {
      case 0 => store.remove(window, k)
      case 1 => assert(store.get(window, k) == store.rows.get((window, k)))
      case _ => // an aggregation reads, then writes in the same order
        if (random.nextBoolean()) store.get(window, k)
        store.put(window, k, random.nextInt(4).toLong - 1)
    }
  }

  test("a scan goes on while a batch removes and adds rows, and shows no row twice") {
    val windows = keys()
    (0L until 100L).foreach(k => windows.put(row(k), row(k)))
    windows.advance()
    val seen = Seq.newBuilder[Long]
    windows.iterator.foreach { pair =>
      val k = long(pair.key)
      seen += k
      windows.remove(row(k))
      windows.put(row(k + 1000), row(k))
    }
    val keysSeen = seen.result()
    assert(keysSeen.distinct.size == keysSeen.size)
    assert((0L until 100L).forall(keysSeen.contains))
    assertThrows[NoSuchElementException](keys().iterator.next())
  }

  test("a group that loses a row during its scan shows the rows of its start") {
    val windows = groups()
    (0L until 5L).foreach(k => windows.put(row(1L, k), row(k)))
    val seen = windows.prefixScan(row(1L)).map { pair =>
      val k = pair.key.getLong(1)
      (0L until 5L).foreach(other => windows.remove(row(1L, other)))
      k
    }.toSeq
    assert(seen.sorted == (0L until 5L))
    assert(windows.sums == StateTotals())
  }

  /** Windows whose pages go to a file, which is broken from some time on. */
  private def onDisk(grouped: Boolean): (LiveWindows, () => Unit) = {
    val file = PageFile.in(java.nio.file.Files.createTempDirectory("cec").toFile)
    val pages = new Pages(PageMemory.apart(0L), () => file)
    val schema = new RowDigest(new StructType().add("v", LongType).add("p", StringType))
    val windows =
      if (grouped) new GroupWindows(2, 2, 1, key => row(key.getLong(0)), schema, pages) else new KeyWindows(1, 2, None, schema, pages)
    // The channel alone is closed, because the pages in the file must be readable.
    val channel = classOf[PageFile].getDeclaredFields.find(_.getType == classOf[java.nio.channels.FileChannel]).get
    channel.setAccessible(true)
    (windows, () => channel.get(file).asInstanceOf[java.nio.channels.FileChannel].close())
  }

  for (grouped <- Seq(false, true)) test(s"a batch is taken back whose put failed on a full disk, ${if (grouped) "grouped" else "single"} windows") {
    val (windows, breakDisk) = onDisk(grouped)
    def key(i: Long) = if (grouped) row(i, i) else row(i)
    (0L until 10L).foreach(i => windows.put(key(i), row(i, "x" * 800)))
    windows.advance()
    val before = windows.sums
    breakDisk()
    intercept[org.apache.spark.sql.cec.agent.CecException]((5L until 10000L).foreach(i => windows.put(key(i), row(-i, "y" * 800))))
    windows.rollback()
    assert(windows.sums == before)
    assert(scan(windows) == (0L until 10L).map(i => i -> i).toMap)
  }

  for (grouped <- Seq(false, true)) test(s"a batch ends although the disk is too full to empty pages, ${if (grouped) "grouped" else "single"} windows") {
    val (windows, breakDisk) = onDisk(grouped)
    def key(i: Long) = if (grouped) row(i, i) else row(i)
    (0L until 20000L).foreach(i => windows.put(key(i), row(i, "x" * 800)))
    var last: Option[UndoLog] = Some(windows.advance())
    breakDisk()
    val left = (0L until 20000L by 4).map(i => i -> i).toMap
    (0L until 20000L).foreach(i => if (i % 4 != 0) windows.remove(key(i)))
    (0 until 20).foreach { _ =>
      val at = windows.version
      last.foreach(windows.forgetBefore)
      last = Some(windows.advance())
      assert(windows.version == at + 1 && windows.touched.size == 0 && windows.sums.rows == left.size)
    }
    assert(scan(windows) == left)
  }

  test("a window that opens and closes in one batch leaves nothing") {
    for ((windows, key) <- Seq(keys() -> row(1L), groups() -> row(1L, 2L))) {
      windows.put(key, row(1L))
      windows.remove(key)
      val changes = BatchDelta.of(windows, None)
      assert(changes.opened.isEmpty && changes.closed.isEmpty && changes.newlyDirty.isEmpty && changes.kept == 0)
      windows.advance()
      assert(!windows.windows.hasNext && windows.sums == StateTotals())
    }
  }

  test("a window that closes and opens again in one batch is kept, and dirty") {
    val windows = keys()
    windows.put(row(1L), row(1L))
    windows.advance()
    windows.remove(row(1L))
    windows.put(row(1L), row(2L))
    val changes = BatchDelta.of(windows, None)
    assert((changes.opened.size, changes.closed.size, changes.kept, changes.newlyDirty.size) == ((0, 0, 1, 1)))
    windows.rollback()
    assert(scan(windows) == Map(1L -> 1L))
  }

  test("a removal of a row that is not there touches nothing") {
    val (single, grouped) = (keys(), groups())
    single.put(row(1L), row(1L))
    grouped.put(row(1L, 1L), row(1L))
    Seq(single, grouped).foreach(_.advance())
    single.remove(row(2L))
    grouped.remove(row(1L, 2L))
    assert(single.touched.size == 0 && grouped.touched.size == 0)
    single.remove(row(1L))
    single.remove(row(1L))
    assert(single.touched.size == 1 && single.sums == StateTotals())
  }

  test("the hold rule hides and holds what a replay may not change, and counts that") {
    val windows = keys()
    load(windows, row(1L), row(10L), 3L)
    load(windows, row(2L), row(20L), 6L)
    windows.loaded()
    val before = windows.sums
    val hold = new ReplayVisibility(4)
    windows.hold = Some(hold)
    windows.version = 3
    windows.put(row(1L), row(11L)) // before D
    assert(windows.get(row(1L)) == null && scan(windows).isEmpty && hold.held == 1)
    windows.version = 5
    windows.put(row(1L), row(11L))
    windows.put(row(2L), row(21L)) // its footprint is of a later version
    windows.put(row(3L), row(31L)) // not open at the end
    windows.remove(row(2L))
    assert(scan(windows) == Map(1L -> 11L) && windows.get(row(2L)) == null && windows.get(row(3L)) == null)
    assert(hold.held == 4)
    assert(windows.touched.size == 1)
    windows.rollback()
    windows.hold = None
    assert(scan(windows) == Map(1L -> 10L, 2L -> 20L) && windows.sums == before)
  }

  test("windows that a replay closed come back, and only they") {
    val single = keys()
    (1L to 3L).foreach(k => single.put(row(k), row(k)))
    single.advance()
    single.put(row(1L), row(11L))
    single.put(row(2L), row(22L))
    single.remove(row(2L))
    single.put(row(4L), row(4L))
    single.remove(row(4L))
    single.reopen()
    assert(scan(single) == Map(1L -> 11L, 2L -> 2L, 3L -> 3L))
    single.advance()
    assert(single.sums.rows == 3)

    val grouped = groups()
    for (id <- 1L to 2L; k <- 1L to 2L) grouped.put(row(id, k), row(k))
    grouped.advance()
    val before = grouped.sums
    for (k <- 1L to 2L) grouped.remove(row(1L, k))
    grouped.remove(row(2L, 1L))
    grouped.reopen()
    assert(grouped.prefixScan(row(1L)).size == 2 && grouped.prefixScan(row(2L)).size == 1)
    assert(grouped.sums.rows == 3)
    grouped.put(row(2L, 1L), row(1L))
    assert(grouped.sums == before)
  }

  test("a load of rows fills the windows, their books and the sums") {
    val model = new StoreModel(grouped = true, onDisk = false, floats = false)
    val windows = model.windows
    for (id <- 1L to 3L; k <- 1L to id) load(windows.asInstanceOf[GroupWindows], row(id), row(id, k), row(k), 10 + id)
    windows.loaded()
    assert(model.books.openWindows == 3 && model.books.dirtyWindows == 0)
    assert(model.books.withFootprintBefore(13).map(windows.footprint(_)).toSeq == Seq(11, 12))
    assert(windows.sums == model.totals((for (id <- 1L to 3L; k <- 1L to id) yield (id, k) -> k).toMap))
    assert(windows.isOpen(row(3L)) && !windows.isOpen(row(4L)))
  }

  test("ranges are scanned in the order of their columns, nulls first") {
    val schema = new StructType().add("id", LongType).add("at", LongType)
    val windows = keys(Some(new RangeOrder(schema, Seq(1))))
    val times = Seq[Any](5L, null, -3L, 7L, 0L, Long.MinValue, Long.MaxValue)
    times.zipWithIndex.foreach { case (time, id) => windows.put(row(id.toLong, time), row(id.toLong)) }
    def values(found: Iterator[org.apache.spark.sql.execution.streaming.state.UnsafeRowPair]) =
      found.map(pair => if (pair.key.isNullAt(1)) null else pair.key.getLong(1)).toSeq
    assert(values(windows.iterator) == Seq(null, Long.MinValue, -3L, 0L, 5L, 7L, Long.MaxValue))
    assert(values(windows.rangeScan(Some(row(-3L)), Some(row(7L)))) == Seq(-3L, 0L, 5L))
    assert(values(windows.rangeScan(Some(row(99L, -3L)), None)) == Seq(-3L, 0L, 5L, 7L, Long.MaxValue))
    assert(values(windows.rangeScan(None, Some(row(Long.MinValue)))) == Seq(null))
    assert(values(windows.rangeScan(Some(row(8L)), Some(row(8L)))).isEmpty)
    assert(values(windows.prefixScan(row(5L))) == Seq(5L))
    assert(values(windows.prefixScan(row(6L))).isEmpty)
  }

  /** Commits a batch in which no window is checked. */
  private def commit(windows: LiveWindows, before: Option[UndoLog]): Option[UndoLog] = {
    windows.books.apply(windows.version, BatchDelta.of(windows, None), writes = true)
    before.foreach(windows.forgetBefore)
    Some(windows.advance())
  }

  for (grouped <- Seq(false, true); onDisk <- Seq(false, true)) {
    val kind = s"${if (grouped) "grouped" else "single"} windows${if (onDisk) " on disk" else ""}"
    def make(): (Pages, LiveWindows) = {
      val made = new Pages(PageMemory.apart(if (onDisk) 0L else Long.MaxValue), () => PageFile.in(Files.createTempDirectory("cec").toFile))
      (made, LiveWindows.make(if (grouped) 2 else 1, 1, if (grouped) Some((1, key => row(key.getLong(0)))) else None, None, digest, made))
    }
    def key(i: Long) = if (grouped) row(i / 4, i) else row(i)
    def numberOf(key: UnsafeRow) = key.getLong(if (grouped) 1 else 0)
    def all(windows: LiveWindows) = windows.iterator.map(pair => numberOf(pair.key) -> long(pair.value)).toMap

    test(s"$kind: a commit that empties pages can be taken back, and rows that were handed out stay as they are") {
      val (made, windows) = make()
      try {
        (0L until 60000L).foreach(i => windows.put(key(i), row(i)))
        var last = commit(windows, None)
        (0L until 60000L).foreach(i => if (i % (if (grouped) 20 else 5) != 0) windows.remove(key(i)))
        last = commit(windows, last)
        val (kept, sums, version) = (all(windows), windows.sums, windows.version)
        val handedOut = windows.iterator.map(pair => (pair.key, pair.value, pair.key.copy(), pair.value.copy())).toSeq
        (0L until 60000L by 400).foreach(i => windows.put(key(i), row(-i)))
        last = commit(windows, last)
        assert(made.work.movedBytes > 0)
        handedOut.foreach { case (key, value, sameKey, sameValue) => assert(key == sameKey && value == sameValue) }
        assert(all(windows) == kept.map { case (i, value) => i -> (if (i % 400 == 0) -i else value) })
        windows.restore(last.get, sums, version)
        windows.books.rebuild()
        windows.forgetAfter(last.get)
        last = None
        assert(all(windows) == kept && windows.sums == sums)
        (0 until 4).foreach { round =>
          (60000L until 80000L).foreach(i => if (round % 2 == 0) windows.put(key(i), row(i)) else windows.remove(key(i)))
          last = commit(windows, last)
          assert(all(windows).filter(_._1 < 60000) == kept)
        }
      } finally windows.close()
    }

    test(s"$kind: windows that a replay opens again have rows of their own") {
      val (_, windows) = make()
      try {
        (0L until 4000L).foreach(i => windows.put(key(i), row(i)))
        var last = commit(windows, None)
        val kept = all(windows)
        (0L until 4000L).foreach(i => windows.remove(key(i)))
        windows.reopen()
        last = commit(windows, last)
        (0 until 4).foreach { round => // these take the space of what is free now
          (10000L until 14000L).foreach(i => windows.put(key(i), row(round)))
          last = commit(windows, last)
          assert(all(windows).filter(_._1 < 4000) == kept)
        }
      } finally windows.close()
    }
  }

  /** Bytes of the objects that are in use. */
  private def usedHeap(): Long = {
    System.gc()
    System.gc()
    Runtime.getRuntime.totalMemory - Runtime.getRuntime.freeMemory
  }

  for ((kind, perKey, make) <- Seq[(String, Double, () => LiveWindows)](
      ("a window of one key", 48.0, () => keys()), ("a key of a window of four", 64.0, () => groups())))
    test(s"$kind takes at most $perKey bytes beside its row, as the docs say, while batches change a part of the windows") {
      val before = usedHeap()
      val (windows, many, few) = (make(), 1000000L, 20000)
      def key(i: Long) = if (windows.isGrouped) row(i / 4, i) else row(i)
      val random = new Random(1)
      (0L until many).foreach(i => windows.put(key(i), row(i)))
      var last = commit(windows, None)
      (0 until 40).foreach { _ =>
        (0 until few).foreach(_ => windows.put(key(random.nextInt(many.toInt)), row(random.nextLong())))
        last = commit(windows, last)
      }
      assert(windows.sums.rows == many)
      val rowBytes = windows.sums.bytes / many
      val allowed = many * (rowBytes + perKey) + 2 * few * (rowBytes + 38) // the formula of docs/operations.md
      val measured = usedHeap() - before
      info(s"the formula says ${allowed.toLong}, the store ${windows.heapBytes}, the JVM $measured bytes")
      assert(windows.heapBytes < allowed && measured < allowed * 1.05 + (12L << 20) && measured > windows.heapBytes * 0.9)
      assert(windows.sums.rows == many, "the windows are still needed")
    }

  for (grouped <- Seq(false, true)) test(s"${if (grouped) "grouped" else "single"} windows count all their memory, and give it back") {
    val memory = PageMemory.apart(Long.MaxValue)
    val made = new Pages(memory, () => throw new AssertionError("a file is made"))
    val windows = LiveWindows.make(if (grouped) 2 else 1, 1, if (grouped) Some((1, key => row(key.getLong(0)))) else None, None, digest, made)
    (0L until 100000L).foreach(i => windows.put(if (grouped) row(i / 3, i) else row(i), row(i)))
    assert(memory.usedBytes > windows.sums.bytes && memory.usedBytes > made.heapBytes, "in the midst of a batch, too")
    var last = commit(windows, None)
    assert(memory.usedBytes == windows.heapBytes)
    (0L until 100000L).foreach(i => windows.remove(if (grouped) row(i / 3, i) else row(i)))
    (0 until 4).foreach(_ => last = commit(windows, last))
    assert(memory.usedBytes == windows.heapBytes && made.heapBytes < 8L * 2 * Pages.PageWords)
    windows.close()
    assert(memory.usedBytes == 0)
  }
}
