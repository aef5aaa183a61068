package org.apache.spark.sql.cec.state

import org.apache.spark.TaskContext
import org.apache.spark.sql.cec.agent.CecException
import org.apache.spark.sql.execution.streaming.state.{StateStoreId, UnsafeRowPair}

/**
 * The turns in which a task uses its store. An operator reads and writes in one turn. A store has its windows once. If a task begins the
 * store again behind a writer, a new turn begins. A view of the earlier turn would read the changes of the new one.
 * `df.rdd.zip(df.rdd)` in a function for `foreachBatch` does that. So the views of an earlier turn fail.
 *
 * A task may use its store in a thread of its own, as in `RDD.pipe`, and its end does not wait for that thread. Such a thread holds the
 * monitor of this object in each call. So does all that ends a turn, or takes windows away.
 */
private[cec] final class StoreTurns(id: StateStoreId) {
  private var current = 0L
  private var hasWriter = false

  /** The turn of a view that reads. */
  def beginRead(): Long = {
    if (hasWriter) {
      current += 1
      hasWriter = false
    }
    current
  }

  /** The turn of a view that writes. */
  def beginWrite(): Long = {
    val turn = beginRead()
    hasWriter = true
    turn
  }

  /** Ends the present turn: the windows go. */
  def end(): Unit = {
    current += 1
    hasWriter = false
  }

  def isCurrent(turn: Long): Boolean = turn == current

  /** Refuses the use of a view whose turn is over. */
  def verify(turn: Long): Unit = if (turn != current) throw new CecException("Unsupported",
    s"a task reads the same batch twice at once, and store $id has its windows only once: in the function for foreachBatch, call persist() " +
      "on the DataFrame before it is used twice in one task (as df.rdd.zip(df.rdd) or cartesian do), and unpersist() at the end")

  /** The rows of an iterator, for as long as its turn goes on. */
  def guard[A](turn: Long, rows: Iterator[A]): Iterator[A] = guarded(verify(turn), rows)

  /** Copies of the rows of an iterator, for a thread that the task does not wait for, for as long as `verify` passes. */
  def copy(verify: => Unit, rows: Iterator[UnsafeRowPair]): Iterator[UnsafeRowPair] = {
    val checked = guarded(verify, rows)
    new Iterator[UnsafeRowPair] {
      override def hasNext: Boolean = StoreTurns.this.synchronized(checked.hasNext)

      override def next(): UnsafeRowPair = StoreTurns.this.synchronized {
        val row = checked.next()
        new UnsafeRowPair(row.key.copy(), row.value.copy())
      }
    }
  }

  private def guarded[A](check: => Unit, rows: Iterator[A]): Iterator[A] = new Iterator[A] {
    override def hasNext: Boolean = {
      check
      rows.hasNext
    }

    override def next(): A = {
      check
      rows.next()
    }
  }
}

private[cec] object StoreTurns {
  /** The name that Spark gives the thread of a task, which ends with the task. */
  private val OfTask = "Executor task launch worker"

  /** Whether this thread may outlive its task. */
  def mayOutliveTask: Boolean = TaskContext.get() != null && !Thread.currentThread.getName.startsWith(OfTask)
}
