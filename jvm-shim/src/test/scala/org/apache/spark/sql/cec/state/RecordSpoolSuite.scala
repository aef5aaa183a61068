package org.apache.spark.sql.cec.state

import java.nio.channels.FileChannel
import java.nio.file.{Files, Path}

import scala.jdk.CollectionConverters._

import org.apache.arrow.vector.{BigIntVector, TinyIntVector, VarBinaryVector, VectorSchemaRoot}
import org.apache.arrow.vector.ipc.{ArrowStreamReader, ArrowStreamWriter}
import org.apache.arrow.vector.types.pojo.{ArrowType, Field, FieldType, Schema}

import org.apache.spark.sql.cec.CecSuite
import org.apache.spark.sql.cec.agent.SpoolPath
import org.apache.spark.sql.util.ArrowUtils

class RecordSpoolSuite extends CecSuite {
  import Rows._
  import Stamps.Longs

  private def file(): Path = Files.createTempDirectory("cec").resolve("spool")

  private def oneWindow: LiveWindows = Stamps.stamped(Stamp(1, 0))

  /** Kind, window, key and value of each record, and the number of batches. */
  private def read(file: Path, grouped: Boolean): (Seq[(Byte, Seq[Byte], Seq[Byte], Option[Seq[Byte]])], Int) = {
    val allocator = ArrowUtils.rootAllocator.newChildAllocator("test", 0, Long.MaxValue)
    val reader = new ArrowStreamReader(FileChannel.open(file), allocator)
    val records = Seq.newBuilder[(Byte, Seq[Byte], Seq[Byte], Option[Seq[Byte]])]
    var batches = 0
    try while (reader.loadNextBatch()) {
      val root = reader.getVectorSchemaRoot
      batches += 1
      def bytes(name: String) = root.getVector(name).asInstanceOf[VarBinaryVector]
      (0 until root.getRowCount).foreach { i =>
        records += ((root.getVector("kind").asInstanceOf[TinyIntVector].get(i), bytes("window").get(i).toSeq,
          if (grouped) bytes("key").get(i).toSeq else Nil, Option(bytes("value").getObject(i)).map(_.toSeq)))
      }
    } finally {
      reader.close()
      allocator.close()
    }
    (records.result(), batches)
  }

  test("no record, no file") {
    val spool = new RecordSpool(grouped = false, () => fail("a file is made"))
    assert(spool.finish().isEmpty && spool.records == 0)
    spool.close()
  }

  test("single windows: the kinds, the bytes of key and value, and no value of a closed window") {
    val (path, live) = (file(), keyWindows(Longs))
    live.put(row("key"), row("value"))
    live.put(row(2L), row(0L))
    val (one, two) = (windowOf(live, row("key")), windowOf(live, row(2L)))
    val spool = new RecordSpool(grouped = false, () => SpoolPath(path))
    spool.open(live, one)
    spool.check(live, two)
    live.remove(row("key"))
    spool.close(live, one)
    assert(spool.finish().contains(path))
    assert((spool.opened, spool.checked, spool.closed, spool.records) == ((1L, 1L, 1L, 3L)))
    assert(read(path, grouped = false) == ((Seq(
      (RecordKind.Open, row("key").getBytes.toSeq, Nil, Some(row("value").getBytes.toSeq)),
      (RecordKind.Check, row(2L).getBytes.toSeq, Nil, Some(row(0L).getBytes.toSeq)),
      (RecordKind.Close, row("key").getBytes.toSeq, Nil, None)), 1)))
    spool.close()
    assert(!Files.exists(path))
  }

  test("a group has a record for each row, and one for its end") {
    val path = file()
    val live = groupWindows(Longs)
    (1L to 3L).foreach(k => live.put(row(1L, k), row(10 * k)))
    live.put(row(2L, 1L), row(7L)) // not of that window
    val group = windowOf(live, row(1L))
    val spool = new RecordSpool(grouped = true, () => SpoolPath(path))
    spool.open(live, group)
    (1L to 3L).foreach(k => live.remove(row(1L, k)))
    spool.close(live, group)
    spool.finish()
    assert((spool.opened, spool.closed) == ((3L, 1L)))
    val (id, records) = (row(1L).getBytes.toSeq, read(path, grouped = true)._1)
    assert(records == (1L to 3L).map(k => (RecordKind.Open, id, row(1L, k).getBytes.toSeq, Some(row(10 * k).getBytes.toSeq))) :+
      ((RecordKind.Close, id, id, None)))
    spool.close()
  }

  test("many records go in several batches, and none is lost") {
    val path = file()
    val spool = new RecordSpool(grouped = false, () => SpoolPath(path))
    val count = 2 * RecordStream.BatchRows + 1
    (0 until count).foreach(i => spool.close(row(i.toLong)))
    spool.finish()
    val (records, batches) = read(path, grouped = false)
    assert(batches == 3 && records.size == count)
    assert(records.map(record => long(LiveWindows.row(record._2.toArray, 1))) == (0L until count.toLong))
    spool.close()
  }

  test("windows whose rows are in the file of pages have records as the others") {
    val path = file()
    val made = new Pages(PageMemory.apart(0L), () => PageFile.in(Files.createTempDirectory("cec").toFile))
    val live = new KeyWindows(1, 1, None, Longs, made)
    try {
      val count = 30000
      (0 until count).foreach(k => live.put(row(k.toLong), row(3L * k)))
      live.advance()
      assert(live.fileBytes > 0)
      val (inFile, onHeap) = live.windows.partition(window => live.id(window).getBaseObject == null)
      assert(inFile.nonEmpty && onHeap.nonEmpty)
      val spool = new RecordSpool(grouped = false, () => SpoolPath(path))
      live.windows.foreach(window => if (window % 2 == 0) spool.check(live, window) else spool.close(live, window))
      spool.finish()
      assert((spool.checked, spool.closed) == ((count / 2L, count / 2L)))
      val records = read(path, grouped = false)._1
      assert(records.map(record => long(LiveWindows.row(record._2.toArray, 1))) == (0L until count.toLong))
      assert(records.zipWithIndex.forall { case ((kind, _, _, value), k) =>
        if (k % 2 == 0) kind == RecordKind.Check && value.contains(row(3L * k).getBytes.toSeq) else kind == RecordKind.Close && value.isEmpty
      })
      spool.close()
    } finally live.close()
  }

  test("large records end a batch before its bytes are too many") {
    val path = file()
    val spool = new RecordSpool(grouped = false, () => SpoolPath(path))
    val (live, large) = (keyWindows(Longs), row("x" * (33 << 20)))
    live.put(row(1L), large)
    (0 until 2).foreach(_ => spool.check(live, windowOf(live, row(1L))))
    spool.finish()
    val (records, batches) = read(path, grouped = false)
    assert(batches == 2 && records.map(_._4.get.size).distinct == Seq(large.getSizeInBytes))
    spool.close()
  }

  test("a spool that is closed before its end leaves no file and no memory") {
    val path = file()
    val before = ArrowUtils.rootAllocator.getAllocatedMemory
    val spool = new RecordSpool(grouped = false, () => SpoolPath(path))
    spool.open(oneWindow, 0)
    assert(Files.exists(path))
    spool.close()
    assert(!Files.exists(path) && ArrowUtils.rootAllocator.getAllocatedMemory == before)
  }

  test("a file that cannot be made leaves no memory") {
    val before = ArrowUtils.rootAllocator.getAllocatedMemory
    val path = file()
    Files.createFile(path)
    val spool = new RecordSpool(grouped = false, () => SpoolPath(path))
    assertThrows[java.nio.file.FileAlreadyExistsException](spool.open(oneWindow, 0))
    assert(ArrowUtils.rootAllocator.getAllocatedMemory == before)
  }

  test("a kept file outlives its spool") {
    val path = file()
    val spool = new RecordSpool(grouped = false, () => SpoolPath(path))
    spool.open(oneWindow, 0)
    spool.finish()
    spool.keep()
    spool.close()
    assert(read(path, grouped = false)._1.size == 1)
    Files.delete(path)
  }

  test("an eventual checkpoint is read to its end, and its file goes") {
    val path = file()
    val rows = (0L until 1000L).map(k => (row(k), row("v" * (k % 30).toInt), k * 3))
    write(path, rows.map { case (key, value, at) => (key.getBytes, key.getBytes, value.getBytes, at) })
    val (live, written) = (keyWindows(Longs), keyWindows(Longs))
    CheckpointSpool.loadKeys(path, live)
    live.loaded()
    var found = Seq.empty[(Long, Seq[Byte], Long)]
    live.windows.foreach(window => live.foreachRow(window, (key, value) => found :+= ((long(key), value.getBytes.toSeq, live.footprint(window)))))
    assert(found == rows.map { case (key, value, at) => (long(key), value.getBytes.toSeq, at) })
    rows.foreach { case (key, value, _) =>
      written.put(key, value)
      assert(live.get(key) == value)
    }
    assert(live.sums == written.sums && live.sums.rows == 1000)
    assert(live.windows.forall(window => !live.isDirty(window) && !live.isTouched(window)))
    assert(!Files.exists(path))
  }

  test("the rows of an eventual checkpoint go to their windows, in their order") {
    val path = file()
    val rows = for (k <- 0L until 300L; id <- Seq(1L, 2L + k / 100)) yield (id, k, "v" * (k % 30).toInt)
    write(path, rows.map { case (id, k, value) => (row(id).getBytes, row(id, k).getBytes, row(value).getBytes, id * 3) })
    val (live, written) = (groupWindows(Longs), groupWindows(Longs))
    CheckpointSpool.loadGroups(path, live)
    live.loaded()
    var found = Map.empty[Long, Seq[(Long, Long, String)]]
    live.windows.foreach { window =>
      val id = long(live.id(window))
      assert(live.footprint(window) == id * 3 && !live.isDirty(window) && !live.isTouched(window))
      live.foreachRow(window, (key, value) => found += id -> (found.getOrElse(id, Nil) :+ ((key.getLong(0), key.getLong(1), value.getString(0)))))
    }
    assert(found == rows.groupBy(_._1))
    rows.foreach { case (id, k, value) => written.put(row(id, k), row(value)) }
    assert(live.sums == written.sums && live.sums.rows == 600)
    assert(!Files.exists(path))
  }

  test("a reader that fails removes the file, too") {
    val before = ArrowUtils.rootAllocator.getAllocatedMemory
    val path = file()
    val rows = (0L until 1000L).map(k => (row(k).getBytes, row(k, 2L).getBytes, row(3L).getBytes, 4L))
    def check(): Unit = {
      assert(!Files.exists(path) && ArrowUtils.rootAllocator.getAllocatedMemory == before)
      assertThrows[java.nio.file.NoSuchFileException](CheckpointSpool.loadKeys(path, keyWindows(Longs)))
      assertThrows[java.nio.file.NoSuchFileException](CheckpointSpool.loadGroups(path, groupWindows(Longs)))
    }
    write(path, rows :+ ((row(1L).getBytes, row(1L).getBytes, new Array[Byte](5), 4L))) // no row has five bytes
    assertThrows[IllegalArgumentException](CheckpointSpool.loadKeys(path, keyWindows(Longs)))
    check()
    for (load <- Seq[() => Unit](() => CheckpointSpool.loadKeys(path, keyWindows(Longs)), () => CheckpointSpool.loadGroups(path, groupWindows(Longs)))) {
      write(path, rows)
      Files.write(path, Files.readAllBytes(path).dropRight(5000))
      assertThrows[java.io.IOException](load())
      check()
    }
  }

  test("two thousand loads leave no memory, no mapping and no file behind") {
    val path = file()
    write(path, (0L until 600L).map(k => (row(k).getBytes, row(k).getBytes, row(k).getBytes, k)))
    val checkpoint = Files.readAllBytes(path)
    def cycle(): Unit = {
      Files.write(path, checkpoint)
      val pages = new Pages(PageMemory.apart(0L), () => PageFile.in(Files.createTempDirectory("cec").toFile))
      val live = new KeyWindows(1, 1, None, Longs, pages)
      CheckpointSpool.loadKeys(path, live)
      live.loaded()
      assert(live.fileBytes > 0 && live.get(row(599L)) == row(599L) && live.get(row(1L)) == row(1L))
      live.close()
    }
    def resources = {
      val mappings = Files.readAllLines(Path.of("/proc/self/maps")).asScala.count(_.contains("deleted"))
      (Files.list(Path.of("/proc/self/fd")).count, mappings, ArrowUtils.rootAllocator.getAllocatedMemory)
    }
    def resident = Files.readAllLines(Path.of("/proc/self/status")).asScala.find(_.startsWith("VmRSS:")).get.split("\\s+")(1).toLong / 1024
    (0 until 500).foreach(_ => cycle())
    val (before, residentBefore) = (resources, resident)
    (0 until 1500).foreach(_ => cycle())
    info(s"resident: $residentBefore MiB, then $resident MiB")
    val (files, mappings, bytes) = resources
    assert(files < before._1 + 100 && (mappings, bytes) == ((before._2, before._3)), "other threads may open some files")
    assert(resident < residentBefore + 100, "a leak of 70 KB at each load")
  }

  /** A file as the agent writes it: windows, keys, values and footprints, in two batches. */
  private def write(path: Path, rows: Seq[(Array[Byte], Array[Byte], Array[Byte], Long)]): Unit = {
    def field(name: String, kind: ArrowType) = new Field(name, new FieldType(false, kind, null), null)
    val binary = new ArrowType.Binary
    val schema = new Schema(Seq(
      field("window", binary), field("key", binary), field("value", binary), field("footprint", new ArrowType.Int(64, true))).asJava)
    val allocator = ArrowUtils.rootAllocator.newChildAllocator("test", 0, Long.MaxValue)
    val root = VectorSchemaRoot.create(schema, allocator)
    val channel = Files.newByteChannel(path, java.nio.file.StandardOpenOption.CREATE_NEW, java.nio.file.StandardOpenOption.WRITE)
    val writer = new ArrowStreamWriter(root, null, channel)
    try {
      rows.grouped(rows.size / 2 + 1).foreach { some =>
        some.zipWithIndex.foreach { case ((window, key, value, at), i) =>
          for ((name, bytes) <- Seq("window" -> window, "key" -> key, "value" -> value))
            root.getVector(name).asInstanceOf[VarBinaryVector].setSafe(i, bytes)
          root.getVector("footprint").asInstanceOf[BigIntVector].setSafe(i, at)
        }
        root.setRowCount(some.size)
        writer.writeBatch()
        root.clear()
      }
      writer.end()
    } finally {
      root.close()
      channel.close()
      allocator.close()
    }
  }
}
