package org.apache.spark.sql.cec.state

import java.util.concurrent.{CountDownLatch, CyclicBarrier, TimeUnit}
import java.util.concurrent.atomic.AtomicInteger

import org.apache.spark.sql.cec.CecSuite
import org.apache.spark.util.TaskCompletionListenerException

class TaskLockSuite extends CecSuite {
  import Tasks._

  private val PatientMs = 60000L

  private def acquire(lock: TaskLock, attempt: Long) = {
    val task = make(attempt)
    within(task)(lock.acquire())
    task
  }

  test("a task that has the lock takes it again at once") {
    val lock = new TaskLock("store", 0L)
    val task = acquire(lock, 1)
    within(task)(lock.acquire())
    assertThrows[IllegalStateException](acquire(lock, 2))
  }

  test("another task waits until the first one ends, and a release does not end it") {
    val lock = new TaskLock("store", PatientMs)
    val first = acquire(lock, 1)
    val second = make(2)
    val waiting = new Running(within(second)(lock.acquire()))
    waiting.untilItWaits()
    within(first)(lock.release())
    waiting.untilItWaits()
    first.markTaskCompleted(None)
    waiting.await()
    within(second)(lock.acquire())
  }

  test("no thread of a task waits for the task's end, which may wait for that thread") {
    val lock = new TaskLock("store", PatientMs)
    val task = acquire(lock, 1)
    val released = new CountDownLatch(2)
    lock.atEnd { () =>
      new Running({ within(task)(lock.release()); released.countDown() })
      new Running({ lock.release(); released.countDown() }) // it has not inherited the task's context
      assert(released.await(30, TimeUnit.SECONDS))
    }
    task.markTaskCompleted(None)
  }

  test("a wait ends with an error that names store, holder and time") {
    val lock = new TaskLock("store 7", 5L)
    acquire(lock, 3)
    val error = intercept[IllegalStateException](lock.acquire())
    assert(error.getMessage == "store store 7 is still in use by task 3 of stage 1, partition 3 after 5 ms")
  }

  test("a thread without a task keeps the lock until it releases it") {
    val lock = new TaskLock("store", PatientMs)
    lock.acquire()
    lock.acquire()
    val (got, leave) = (new CountDownLatch(1), new CountDownLatch(1))
    val other = new Running({
      lock.acquire()
      got.countDown()
      assert(leave.await(30, TimeUnit.SECONDS))
      lock.release()
    })
    other.untilItWaits()
    assert(got.getCount == 1)
    lock.release()
    assert(got.await(30, TimeUnit.SECONDS))
    lock.release() // it is not ours
    val again = new Running(lock.acquire())
    again.untilItWaits()
    leave.countDown()
    Seq(other, again).foreach(_.await())
  }

  test("a task's end runs the action once, while the task still has the lock") {
    val lock = new TaskLock("store", 0L)
    val task = acquire(lock, 1)
    val runs = new AtomicInteger
    var refusedThen = false
    lock.atEnd { () =>
      runs.incrementAndGet()
      refusedThen = try { acquire(lock, 9); false } catch { case _: IllegalStateException => true }
    }
    task.markTaskCompleted(None)
    assert(runs.get == 1 && refusedThen)
    acquire(lock, 2).markTaskCompleted(None)
    assert(runs.get == 1)
    lock.acquire()
  }

  test("an action that fails frees the lock") {
    val lock = new TaskLock("store", 0L)
    val task = acquire(lock, 1)
    lock.atEnd(() => throw new IllegalStateException("no"))
    assertThrows[TaskCompletionListenerException](task.markTaskCompleted(None))
    acquire(lock, 2)
  }

  test("a release runs no action, and the next holder does not get it") {
    val lock = new TaskLock("store", 0L)
    lock.acquire()
    var runs = 0
    lock.atEnd(() => runs += 1)
    lock.release()
    acquire(lock, 1).markTaskCompleted(None)
    assert(runs == 0)
  }

  test("a task that failed frees the lock, too") {
    val lock = new TaskLock("store", 0L)
    val task = acquire(lock, 1)
    var ended = false
    lock.atEnd(() => ended = true)
    task.markTaskFailed(new IllegalStateException("the task"))
    task.markTaskCompleted(Some(new IllegalStateException("the task")))
    assert(ended)
    lock.acquire()
  }

  test("a thread whose task has ended does not get the lock") {
    val lock = new TaskLock("store 7", 0L)
    val task = acquire(lock, 1)
    task.markTaskCompleted(None)
    val refused = intercept[IllegalStateException](within(task)(lock.acquire()))
    assert(refused.getMessage.contains("store 7") && refused.getMessage.contains("has ended"))
    acquire(lock, 2)
  }

  test("what waits for a free store is done at the end of a task that keeps it for long, and of each later one") {
    val lock = new TaskLock("store", 5L)
    val task = acquire(lock, 1)
    var (runs, ended) = (0, false)
    lock.atEnd(() => ended = true)
    assert(!lock.whenFree { assert(ended); runs += 1 })
    assert(runs == 0)
    task.markTaskCompleted(None)
    assert(runs == 1)
    acquire(lock, 2).markTaskCompleted(None)
    assert(runs == 2, "that task came before it could know")
  }

  test("what waits for a free store is done at once if nobody has it, or this task alone, and before another one gets it") {
    val lock = new TaskLock("store", PatientMs)
    var runs = 0
    assert(lock.whenFree(runs += 1) && runs == 1)
    val own = new TaskLock("store", 0L)
    val task = acquire(own, 1)
    assert(within(task)(own.whenFree(runs += 1)) && runs == 2)
    val busy = new TaskLock("store", PatientMs)
    val first = acquire(busy, 1)
    @volatile var isClosed = false
    val closing = new Running(assert(busy.whenFree { isClosed = true }))
    closing.untilItWaits()
    first.markTaskCompleted(None)
    acquire(busy, 2)
    assert(isClosed)
    closing.await()
  }

  test("of many threads one at a time has the lock, and each gets it") {
    val lock = new TaskLock("store", PatientMs)
    val (threads, turns) = (4, 300)
    val (inside, most, begin) = (new AtomicInteger, new AtomicInteger, new CyclicBarrier(threads))
    var count = 0 // no thread sees another's half of an addition
    val all = (0 until threads).map(number => new Running({
      begin.await(30, TimeUnit.SECONDS)
      (0 until turns).foreach { turn =>
        def work(): Unit = {
          most.accumulateAndGet(inside.incrementAndGet(), Math.max(_, _))
          count += 1
          inside.decrementAndGet()
        }
        if (turn % 2 == 0) {
          lock.acquire()
          work()
          lock.release()
        } else {
          val task = make(number * 1000L + turn)
          within(task) {
            lock.acquire()
            work()
          }
          task.markTaskCompleted(None)
        }
      }
    }))
    all.foreach(_.await())
    assert(most.get == 1)
    assert(count == threads * turns)
  }
}

class StoreTurnsSuite extends CecSuite {
  import Tasks._
  import org.apache.spark.sql.catalyst.expressions.UnsafeRow
  import org.apache.spark.sql.cec.CecStoreView
  import org.apache.spark.sql.execution.streaming.state.{StateStore, StateStoreId, UnsafeRowPair}

  private def turns() = new StoreTurns(StateStoreId("/checkpoint/state", 3L, 5))

  test("an operator reads and writes in one turn") {
    val store = turns()
    val (read, again) = (store.beginRead(), store.beginRead())
    val write = store.beginWrite()
    assert(read == write && again == read)
    Seq(read, again, write).foreach(store.verify)
  }

  test("a view behind a writer begins a turn, and the views before it fail") {
    val store = turns()
    val (read, write) = (store.beginRead(), store.beginWrite())
    val next = store.beginRead()
    assert(!store.isCurrent(read) && !store.isCurrent(write) && store.isCurrent(next))
    val message = refused("Unsupported")(store.verify(write))
    assert(message.contains("persist()") && message.contains("operatorId=3"))
    store.verify(next)
    assert(store.beginWrite() == next)
    assert(store.beginWrite() != next)
  }

  test("the rows of a turn that is over fail at once, the first and the last") {
    val store = turns()
    val turn = store.beginWrite()
    val rows = store.guard(turn, Iterator.fill(3)(new UnsafeRowPair), mayOutliveTask = false, ())
    assert(rows.hasNext && rows.next() != null)
    store.beginRead()
    refused("Unsupported")(rows.hasNext)
    refused("Unsupported")(rows.next())
    refused("Unsupported")(store.guard(turn, Iterator.empty, mayOutliveTask = false, ()).hasNext)
  }

  test("a thread that its task does not wait for is one with a task and another name") {
    assert(!StoreTurns.mayOutliveTask, "there is no task")
    val named = Seq("Executor task launch worker for task 1.0 in stage 2.0 (TID 3)" -> false, "stdin writer for List(cat)" -> true)
    for ((name, expected) <- named) {
      @volatile var found = !expected
      val thread = new Thread(() => within(make(1)) { found = StoreTurns.mayOutliveTask }, name)
      thread.start()
      thread.join()
      assert(found == expected, name)
    }
  }

  test("a call holds the monitor if it is made in another thread than that of the task") {
    val store = turns()
    @volatile var isHeld = false
    final class View extends CecStoreView(StateStoreId("/checkpoint/state", 3L, 5), null, store, store.beginRead()) {
      override def version: Long = 0L
      override def abort(): Unit = ()
      override def release(): Unit = ()
      override protected def verifyReadable(): Unit = {
        isHeld = Thread.holdsLock(store)
        throw new IllegalStateException("asked")
      }
    }
    def calls(view: View): Seq[Boolean] = Seq[() => Any](() => view.get(new UnsafeRow(1), StateStore.DEFAULT_COL_FAMILY_NAME), () => view.iterator())
      .map { call =>
        intercept[IllegalStateException](call())
        isHeld
      }
    @volatile var found = Seq.empty[Boolean]
    val ofTask = new Thread(() => within(make(1)) {
      val view = new View
      found = calls(view)
      val other = new Thread(() => found ++= calls(view), "writer of TRANSFORM")
      other.start()
      other.join()
    }, "Executor task launch worker for task 1.0 in stage 2.0 (TID 3)")
    ofTask.start()
    ofTask.join()
    assert(found == Seq(false, false, true, true))
  }

  test("such a thread gets copies, and no row after the turn") {
    val store = turns()
    val turn = store.beginWrite()
    def row(number: Int) = {
      val made = new UnsafeRow(1)
      made.pointTo(new Array[Byte](16), 16)
      made.setInt(0, number)
      made
    }
    val (key, value) = (row(1), row(2))
    @volatile var mayOutliveTask = true
    val rows = store.guard(turn, Iterator.continually(new UnsafeRowPair(key, value)), mayOutliveTask, store.verify(turn))
    val first = rows.next()
    key.setInt(0, 3)
    value.setInt(0, 4)
    assert(first.key.getInt(0) == 1 && first.value.getInt(0) == 2)
    assert(rows.hasNext && rows.next().key.getInt(0) == 3)
    mayOutliveTask = false
    assert(rows.next().key eq key, "the task's own thread needs no copy")
    mayOutliveTask = true
    store.end()
    refused("Unsupported")(rows.hasNext)
    refused("Unsupported")(rows.next())
  }

  test("such a thread waits while another one takes windows away") {
    val store = turns()
    val turn = store.beginWrite()
    val (ending, goOn) = (new CountDownLatch(1), new CountDownLatch(1))
    val end = new Running(store.synchronized {
      ending.countDown()
      assert(goOn.await(30, TimeUnit.SECONDS))
      store.end()
    })
    assert(ending.await(30, TimeUnit.SECONDS))
    @volatile var asked = false
    val reader = new Running(refused("Unsupported")(
      store.guard(turn, Iterator.empty, mayOutliveTask = true, { asked = true; store.verify(turn) }).hasNext))
    reader.untilItIsBlocked()
    assert(!asked)
    goOn.countDown()
    end.await()
    reader.await()
  }

  test("the rows of a turn that goes on are those of the iterator") {
    val store = turns()
    val rows = Seq.fill(3)(new UnsafeRowPair)
    assert(store.guard(store.beginRead(), rows.iterator, mayOutliveTask = false, ()).toSeq == rows)
  }
}
