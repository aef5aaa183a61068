package org.apache.spark.sql.cec.state

import java.nio.channels.FileChannel
import java.nio.file.{Files, Path}

import scala.jdk.CollectionConverters._

import org.apache.arrow.vector.{BigIntVector, TinyIntVector, VarBinaryVector, VectorSchemaRoot}
import org.apache.arrow.vector.ipc.{ArrowStreamReader, ArrowStreamWriter}
import org.apache.arrow.vector.types.pojo.{ArrowType, Field, FieldType, Schema}

import org.apache.spark.sql.cec.CecSuite
import org.apache.spark.sql.util.ArrowUtils

class RecordSpoolSuite extends CecSuite {
  import Rows._

  private def file(): Path = Files.createTempDirectory("cec").resolve("spool")

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
    val (path, one, two) = (file(), window(row("key"), 0, row("value")), window(2L))
    val spool = new RecordSpool(grouped = false, () => path)
    spool.open(one)
    spool.check(two)
    spool.close(one)
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
    val group = new GroupWindow(row(1L).getBytes, 0)
    (1L to 3L).foreach(k => group.rows.put(row(1L, k), row(10 * k)))
    val spool = new RecordSpool(grouped = true, () => path)
    spool.open(group)
    spool.close(group)
    spool.finish()
    assert((spool.opened, spool.closed) == ((3L, 1L)))
    val (id, records) = (row(1L).getBytes.toSeq, read(path, grouped = true)._1)
    assert(records == (1L to 3L).map(k => (RecordKind.Open, id, row(1L, k).getBytes.toSeq, Some(row(10 * k).getBytes.toSeq))) :+
      ((RecordKind.Close, id, id, None)))
    spool.close()
  }

  test("many records go in several batches, and none is lost") {
    val path = file()
    val spool = new RecordSpool(grouped = false, () => path)
    val count = 2 * RecordStream.BatchRows + 1
    (0 until count).foreach(i => spool.close(row(i.toLong).getBytes))
    spool.finish()
    val (records, batches) = read(path, grouped = false)
    assert(batches == 3 && records.size == count)
    assert(records.map(record => long(Window.row(record._2.toArray, 1))) == (0L until count.toLong))
    spool.close()
  }

  test("large records end a batch before its bytes are too many") {
    val path = file()
    val spool = new RecordSpool(grouped = false, () => path)
    val large = window(row(1L), 0, row("x" * (33 << 20)))
    (0 until 2).foreach(_ => spool.check(large))
    spool.finish()
    val (records, batches) = read(path, grouped = false)
    assert(batches == 2 && records.map(_._4.get.size).distinct == Seq(large.valueSize))
    spool.close()
  }

  test("a spool that is closed before its end leaves no file and no memory") {
    val path = file()
    val before = ArrowUtils.rootAllocator.getAllocatedMemory
    val spool = new RecordSpool(grouped = false, () => path)
    spool.open(window(1L))
    assert(Files.exists(path))
    spool.close()
    assert(!Files.exists(path) && ArrowUtils.rootAllocator.getAllocatedMemory == before)
  }

  test("a file that cannot be made leaves no memory") {
    val before = ArrowUtils.rootAllocator.getAllocatedMemory
    val path = file()
    Files.createFile(path)
    val spool = new RecordSpool(grouped = false, () => path)
    assertThrows[java.nio.file.FileAlreadyExistsException](spool.open(window(1L)))
    assert(ArrowUtils.rootAllocator.getAllocatedMemory == before)
  }

  test("an eventual checkpoint is read to its end, and its file goes") {
    val path = file()
    val rows = (0L until 1000L).map(k => (row(k), row("v" * (k % 30).toInt), k * 3))
    write(path, rows.map { case (key, value, at) => (key.getBytes, key.getBytes, value.getBytes, at) })
    var found = Seq.empty[(Long, Seq[Byte], Long)]
    CheckpointSpool.foreachKey(path)((size, both, at) => found :+= ((long(Window.row(both.take(size), 1)), both.drop(size).toSeq, at)))
    assert(found == rows.map { case (key, value, at) => (long(key), value.getBytes.toSeq, at) })
    assert(!Files.exists(path))
  }

  test("a reader that fails removes the file, too") {
    val before = ArrowUtils.rootAllocator.getAllocatedMemory
    val path = file()
    write(path, Seq((row(1L).getBytes, row(1L, 2L).getBytes, row(3L).getBytes, 4L)))
    assertThrows[IllegalStateException](CheckpointSpool.foreachRow(path) { (id, key, value, at) =>
      assert((long(Window.row(id, 1)), Window.row(key, 2).getLong(1), long(Window.row(value, 1)), at) == ((1L, 2L, 3L, 4L)))
      throw new IllegalStateException("no")
    })
    assert(!Files.exists(path) && ArrowUtils.rootAllocator.getAllocatedMemory == before)
    assertThrows[java.nio.file.NoSuchFileException](CheckpointSpool.foreachRow(path)((_, _, _, _) => ()))
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
