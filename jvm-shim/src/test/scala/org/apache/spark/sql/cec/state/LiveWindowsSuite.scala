package org.apache.spark.sql.cec.state

import scala.util.Random

import org.apache.spark.sql.catalyst.expressions.UnsafeRow
import org.apache.spark.sql.cec.CecSuite
import org.apache.spark.sql.types._

class LiveWindowsSuite extends CecSuite {
  import Rows._

  private val digest = new RowDigest(new StructType().add("v", LongType))

  private def keys(order: Option[RangeOrder] = None): LiveWindows =
    new LiveWindows(if (order.isEmpty) 1 else 2, 1, None, order, digest, null, new CheckpointIndex(null, _ => ()))

  private def groups(): LiveWindows =
    new LiveWindows(2, 1, Some(key => row(key.getLong(0))), None, digest, null, new CheckpointIndex(null, _ => ()))

  private def scan(windows: LiveWindows): Map[Long, Long] = windows.iterator.map(pair => long(pair.key) -> long(pair.value)).toMap

  for (grouped <- Seq(false, true); onDisk <- Seq(false, true); floats <- Seq(false, true)) {
    val kind = s"${if (grouped) "grouped" else "single"} windows${if (onDisk) " on disk" else ""}, ${if (floats) "doubles" else "longs"}"
    testSeeds(s"$kind: batches, rollbacks, undone and redone commits behave as maps", if (onDisk) 4 else 25) { random =>
      val store = new StoreModel(grouped, onDisk, floats)
      try (0 until 30).foreach(_ => runBatch(random, store)) finally if (onDisk) store.cold.clear()
    }
  }

  private def runBatch(random: Random, store: StoreModel): Unit = {
    if (random.nextInt(3) == 0) store.cool()
    (0 until random.nextInt(25)).foreach { _ =>
      val (window, key) = (random.nextInt(12).toLong, random.nextInt(3).toLong)
      change(random, store, window, key)
    }
    store.checkRows()
    random.nextInt(8) match {
      case 0 => store.rollback()
      case 1 => store.undo()
      case 2 => store.redo()
      case _ => store.commit(random)
    }
    store.checkRows()
    store.checkBooks()
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

  test("a window that was read after the commit and went to the disk takes the next write") {
    val store = new StoreModel(grouped = false, onDisk = true, floats = false)
    try {
      store.put(1, 0, 10)
      store.commit(new Random(0))
      store.put(2, 0, 20)
      store.commit(new Random(0))
      assert(store.get(1, 0).contains(10))
      store.cool()
      store.put(1, 0, 11)
      store.checkRows()
    } finally store.cold.clear()
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

  test("a window that opens and closes in one batch leaves nothing") {
    for (windows <- Seq(keys(), keys())) {
      windows.put(row(1L), row(1L))
      windows.remove(row(1L))
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
    windows.loadKey(16, row(1L).getBytes ++ row(10L).getBytes, 3L)
    windows.loadKey(16, row(2L).getBytes ++ row(20L).getBytes, 6L)
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
    windows.expect(3)
    for (id <- 1L to 3L; k <- 1L to id) windows.loadRow(row(id), row(id, k).getBytes, row(k).getBytes, 10 + id)
    windows.loaded()
    assert(model.books.openWindows == 3 && model.books.dirtyWindows == 0)
    assert(model.books.withFootprintBefore(13).map(_.footprint).toSeq == Seq(11, 12))
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
}
