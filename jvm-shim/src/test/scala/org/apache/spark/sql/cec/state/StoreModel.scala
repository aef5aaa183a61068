package org.apache.spark.sql.cec.state

import java.nio.file.Files

import scala.collection.mutable
import scala.util.Random

import org.scalatest.Assertions

import org.apache.spark.sql.catalyst.expressions.UnsafeRow
import org.apache.spark.sql.types._

/** What a store should hold at one version: rows by window and key, and the stamps of each open window. */
private[state] final case class ModelState(rows: Map[(Long, Long), Long], stamps: Map[Long, (Long, Long)], version: Long) {
  def open: Set[Long] = rows.keySet.map(_._1)
}

/**
 * The windows and books of one store, beside a model in plain maps. The steps are those of `StoreState`, without an
 * agent.
 *
 * @param grouped whether a window has several keys
 * @param onDisk whether all pages that can go to a file do so
 * @param floats whether values are doubles
 * @param padding words that each value has beside its number, so that pages are filled and emptied
 * @param beforeFile what happens before the file for pages is made
 */
private[state] final class StoreModel(
    val grouped: Boolean, onDisk: Boolean, floats: Boolean, padding: Int = 0, beforeFile: () => Unit = () => ()) extends Assertions {
  import Rows._

  private val keyFields = if (grouped) 2 else 1
  private val valueFields = if (padding == 0) 1 else 2
  private val directory = Files.createTempDirectory("cec").toFile
  private val valueType: DataType = if (floats) DoubleType else LongType
  val rowDigest = new RowDigest(if (padding == 0) new StructType().add("v", valueType) else new StructType().add("v", valueType).add("p", StringType))
  val windows: LiveWindows = LiveWindows.make(
    keyFields, valueFields, if (grouped) Some((1, key => row(key.getLong(0)))) else None, None, rowDigest,
    new Pages(PageMemory.apart(if (onDisk) 0L else Long.MaxValue), () => makeFile()))

  private def makeFile(): PageFile = {
    beforeFile()
    PageFile.in(Files.createTempDirectory(directory.toPath, "pages").toFile)
  }

  def books: CheckpointIndex = windows.books

  def close(): Unit = windows.close()

  /** The model of the last commit, and of the batch under way. */
  var committed: ModelState = ModelState(Map.empty, Map.empty, 0L)
  var rows: Map[(Long, Long), Long] = Map.empty
  private var touched = Set.empty[Long]
  private var previous: Option[(PreviousVersion, ModelState)] = None
  private var reverted: Option[(RevertedVersion, ModelState)] = None

  private def key(window: Long, key: Long): UnsafeRow = if (grouped) row(window, key) else row(window)
  private def value(number: Long): UnsafeRow = {
    val plain: Any = if (floats) number.toDouble else number
    if (padding == 0) row(plain) else row(plain, "x" * (8 * padding))
  }
  private def number(value: UnsafeRow): Long = if (floats) value.getDouble(0).toLong else value.getLong(0)

  /** Writes a row, and then uses the memory of its key and value for something else, as Spark does. */
  def put(window: Long, k: Long, v: Long): Unit = {
    val (keyRow, valueRow) = (key(window, k), value(v))
    windows.put(keyRow, valueRow)
    scribble(keyRow)
    scribble(valueRow)
    rows += (window, k) -> v
    touched += window
  }

  def remove(window: Long, k: Long): Unit = {
    val keyRow = key(window, k)
    windows.remove(keyRow)
    scribble(keyRow)
    if (rows.contains((window, k))) touched += window
    rows -= ((window, k))
  }

  def get(window: Long, k: Long): Option[Long] = Option(windows.get(key(window, k))).map { found =>
    handedOut += found -> found.copy()
    number(found)
  }

  private def scribble(row: UnsafeRow): Unit = (0 until row.numFields).foreach(row.setLong(_, -77L))

  /** Rows that were handed out in the batch under way, with copies of what they said then. */
  private val handedOut = mutable.ArrayBuffer.empty[(UnsafeRow, UnsafeRow)]

  /** Reads all rows, and keeps them until the batch ends. */
  def handOut(): Unit = windows.iterator.foreach(pair => handedOut ++= Seq(pair.key -> pair.key.copy(), pair.value -> pair.value.copy()))

  /** A row handed out stays as it is until the batch ends. */
  def checkHandedOut(): Unit = {
    handedOut.foreach { case (row, before) => assert(row == before) }
    handedOut.clear()
  }

  /** Commits the batch, and checks some windows that were open before it. */
  def commit(random: Random): Unit = {
    val changes = BatchDelta.of(windows, None)
    val open = rows.keySet.map(_._1)
    val (opened, kept) = (open -- committed.open, open & committed.open)
    val checkedIds = kept.filter(_ => random.nextInt(3) == 0)
    val checks = new IntList
    checkedIds.foreach(id => checks.add(windowOf(windows, row(id))))
    val version = committed.version
    val next = books.after(version, changes, checks)
    val renewed = books.apply(version, changes, checks, next)
    val known = StoreVersion.unloaded.copy(totals = totals(committed.rows))
    reverted.foreach { case (later, _) => windows.forgetAfter(later.previous.touched) }
    reverted = None
    previous.foreach { case (before, _) => windows.forgetBefore(before.touched) }
    previous = Some((new PreviousVersion(known, windows.advance(), renewed), committed))
    val stamps = open.map { id =>
      val (footprint, dirty) = committed.stamps.getOrElse(id, (version + 1, LiveWindows.Clean))
      id -> (if (opened(id) || checkedIds(id)) (version + 1, LiveWindows.Clean)
        else (footprint, if (touched(id) && dirty == LiveWindows.Clean) version else dirty))
    }.toMap
    committed = ModelState(rows, stamps, version + 1)
    touched = Set.empty
    checkNumbers(next)
  }

  def rollback(): Unit = {
    windows.rollback()
    rows = committed.rows
    touched = Set.empty
  }

  /** Takes back the batch under way, and the last commit if the store still can. */
  def undo(): Unit = if (previous.isEmpty) rollback() else previous.foreach { case (before, model) =>
    windows.rollback()
    val known = StoreVersion.unloaded.copy(totals = totals(committed.rows))
    reverted = Some((new RevertedVersion(known, before.imagesNow(windows), before), committed))
    (0 until before.renewed.size).foreach(before.renewed.restamp)
    windows.restore(before.touched, before.known.totals, committed.version - 1)
    previous = None
    switchTo(model)
  }

  /** Takes back the batch under way, and brings back the version that was taken back last, if there is one. */
  def redo(): Unit = if (reverted.isEmpty) rollback() else reverted.foreach { case (later, model) =>
    windows.rollback()
    windows.restore(later.images, later.known.totals, committed.version + 1)
    previous = Some((later.previous, committed))
    reverted = None
    switchTo(model)
  }

  private def switchTo(model: ModelState): Unit = {
    committed = model
    rows = model.rows
    touched = Set.empty
    books.rebuild()
  }

  def totals(rows: Map[(Long, Long), Long]): StateTotals = rows.foldLeft(StateTotals()) { case (sum, ((window, k), v)) =>
    val (keyRow, valueRow) = (key(window, k), value(v))
    StateTotals(sum.rows + 1, sum.bytes + keyRow.getSizeInBytes + valueRow.getSizeInBytes, sum.digest + rowDigest.hash(valueRow, rowDigest.seed(keyRow)))
  }

  /** Compares all that can be read, in the midst of a batch, too. */
  def checkRows(): Unit = {
    val found = mutable.Map.empty[(Long, Long), Long]
    windows.iterator.foreach { pair =>
      val at = (pair.key.getLong(0), if (grouped) pair.key.getLong(1) else 0L)
      assert(!found.contains(at), s"the scan shows $at twice")
      found(at) = number(pair.value)
    }
    assert(found.toMap == rows)
    assert(windows.sums == totals(rows))
    rows.foreach { case ((window, k), v) => assert(get(window, k).contains(v)) }
    Seq(-5L, 1000000L).foreach(absent => assert(get(absent, 0L).isEmpty))
    if (grouped) committed.open.union(rows.keySet.map(_._1)).foreach { id =>
      val scanned = windows.prefixScan(row(id)).map(pair => pair.key.getLong(1) -> number(pair.value)).toMap
      assert(scanned == rows.collect { case ((`id`, k), v) => k -> v })
    }
  }

  /** Compares the books with the stamps of the model. Call it between batches. */
  def checkBooks(): Unit = {
    val (footprints, dirty) = (committed.stamps.values.map(_._1).toSeq, committed.stamps.values.map(_._2).filter(_ != LiveWindows.Clean).toSeq)
    assert(windows.version == committed.version)
    assert(books.openWindows == committed.stamps.size)
    assert(books.dirtyWindows == dirty.size)
    val stamped = windows.windows.map(w => windows.id(w).getLong(0) -> ((windows.footprint(w), windows.dirtySince(w)))).toMap
    assert(stamped == committed.stamps)
    for (before <- Seq(0L, committed.version / 2, committed.version + 1, Long.MaxValue)) {
      assert(books.windowsBefore(before) == footprints.count(_ < before))
      assert(oldestFirst(books.withFootprintBefore(before), windows.footprint) == footprints.filter(_ < before).sorted)
      assert(oldestFirst(books.dirtyBefore(before), windows.dirtySince) == dirty.filter(_ < before).sorted)
    }
  }

  private def oldestFirst(found: Iterator[Int], version: Int => Long): Seq[Long] = {
    val all = found.toVector
    assert(all.distinct.size == all.size, "the books show a window twice")
    all.map(version)
  }

  private def checkNumbers(next: NextBooks): Unit = {
    val dirty = committed.stamps.values.map(_._2).filter(_ != LiveWindows.Clean)
    assert(next.openWindows == committed.stamps.size)
    assert(next.dirtyWindows == dirty.size)
    assert(next.dirtyFrom == dirty.minOption.getOrElse(committed.version))
    val live = committed.stamps.values.groupBy(_._1).map { case (footprint, some) => footprint -> some.size }
    // `live(true)` adds the books to the changes, which they have by now: so ask the books alone.
    assert(books.after(committed.version, BatchDelta.None, new IntList).live(true).toMap == live)
  }
}
