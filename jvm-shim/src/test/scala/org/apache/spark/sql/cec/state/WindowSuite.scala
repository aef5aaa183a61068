package org.apache.spark.sql.cec.state

import scala.collection.mutable

import org.apache.spark.sql.cec.CecSuite

class WindowSuite extends CecSuite {
  import Rows._

  private def rowsOf(window: Window): Seq[(Seq[Byte], Seq[Byte])] = {
    val rows = mutable.ArrayBuffer.empty[(Seq[Byte], Seq[Byte])]
    window.foreachRow((key, value) => rows += key.toSeq -> value.toSeq)
    rows.toSeq
  }

  private def group(id: Long, rows: (Long, Long)*): GroupWindow = {
    val made = new GroupWindow(row(id).getBytes, 0)
    rows.foreach { case (key, value) => made.rows.put(row(id, key), row(value)) }
    made
  }

  test("a new window is clean, never written and untouched") {
    val made = window(1L)
    assert((made.footprint, made.dirtySince, made.isDirty, made.isTouched) == ((Window.Never, Window.Clean, false, false)))
  }

  test("a window keeps its own bytes of key and value") {
    val (key, value) = (row("key", 1L), row("a value", 2L))
    val made = window(key, key.hashCode, value)
    val (keyBefore, valueBefore) = (key.copy(), value.copy())
    key.setLong(1, 99L)
    value.setLong(1, 99L)
    assert(made.key(2) == keyBefore)
    assert(made.value(2) == valueBefore)
    assert(made.hasId(keyBefore) && !made.hasId(key))
    assert(made.id.toSeq == keyBefore.getBytes.toSeq)
    assert(made.valueFrom == keyBefore.getSizeInBytes && made.valueSize == valueBefore.getSizeInBytes)
  }

  test("a key window closes with its key, and opens again with its rows") {
    val made = window(row(1L), 5, row(10L))
    val rows = made.saved
    made.put(row(1L), row(11L))
    made.close()
    assert(!made.isOpen && made.rowCount == 0 && made.saved == null && rowsOf(made).isEmpty)
    assert(made.hasId(row(1L)))
    made.restore(rows)
    assert(made.isOpen && made.rowCount == 1 && made.value(1) == row(10L))
    made.restore(null)
    assert(!made.isOpen)
  }

  test("the saved rows of a key window outlive later puts") {
    val made = window(row(1L), 5, row(10L))
    val rows = made.saved
    (0 until 3).foreach { run =>
      made.put(row(1L), row(100L + run))
      made.restore(rows)
      assert(made.value(1) == row(10L))
    }
  }

  test("the saved rows of a group survive each run of a batch") {
    val made = group(1, 1L -> 10L, 2L -> 20L)
    val (rows, before) = (made.saved, rowsOf(made))
    (0 until 3).foreach { run =>
      made.rows.put(row(1L, 1L), row(99L + run))
      made.rows.remove(row(1L, 2L))
      made.rows.put(row(1L, 3L), row(30L))
      made.restore(rows)
      assert(rowsOf(made) == before, s"after run $run")
    }
    made.restore(null)
    assert(!made.isOpen && made.rowCount == 0 && made.saved == null)
  }

  test("windows of one id are the same, and others are not") {
    assert(window(1L).hasIdOf(window(1L)))
    assert(!window(1L).hasIdOf(window(2L)))
    assert(!window(row("a"), 0).hasIdOf(window(row("a" * 9), 0)))
    assert(group(1).hasIdOf(group(1)) && !group(1).hasIdOf(group(2)))
    assert(group(1).hasId(row(1L)) && !group(1).hasId(row(2L)) && !group(1).hasId(row(1L, 1L)))
  }

  test("an undo list keeps stamps and rows of more windows than it expects") {
    val undo = new UndoLog(0)
    val windows = (0L until 100L).map(i => stamped(i, i, if (i % 2 == 0) Window.Clean else i + 1000))
    windows.last.close()
    windows.foreach(undo.add)
    windows.foreach { window =>
      window.footprint = -7
      window.dirtySince = -7
      window.put(row(-1L), row(-1L))
    }
    assert(undo.size == 100)
    (0 until 100).foreach { i =>
      assert(undo.window(i) eq windows(i))
      assert(undo.wasOpen(i) == (i < 99))
      undo.restamp(i)
      assert((windows(i).footprint, windows(i).dirtySince) == ((i.toLong, if (i % 2 == 0) Window.Clean else i + 1000L)))
      windows(i).restore(undo.rows(i))
      assert(windows(i).isOpen == (i < 99))
      if (i < 99) assert(windows(i).key(1) == row(i.toLong))
    }
    undo.clear()
    assert(undo.size == 0)
    undo.add(windows.head)
    assert(undo.size == 1 && (undo.window(0) eq windows.head) && undo.wasOpen(0))
  }
}
