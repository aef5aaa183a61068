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

  /**
   * The rows of an iterator, for as long as its turn goes on.
   *
   * @param mayOutliveTask whether the task does not wait for the thread that asks. Such a thread gets copies
   * @param verifyReadable fails if such a thread may not read any more
   */
  def guard(turn: Long, rows: Iterator[UnsafeRowPair], mayOutliveTask: => Boolean, verifyReadable: => Unit): Iterator[UnsafeRowPair] =
    new Iterator[UnsafeRowPair] {
      override def hasNext: Boolean = if (mayOutliveTask) take(rows.hasNext)
      else {
        verify(turn)
        rows.hasNext
      }

      override def next(): UnsafeRowPair = if (mayOutliveTask) take {
        val row = rows.next()
        new UnsafeRowPair(row.key.copy(), row.value.copy())
      }
      else {
        verify(turn)
        rows.next()
      }

      private def take[A](body: => A): A = StoreTurns.this.synchronized {
        verifyReadable
        body
      }
    }
}

private[cec] object StoreTurns {
  /** The name that Spark gives the thread of a task, which ends with the task. */
  private val OfTask = "Executor task launch worker"

  /** Whether this thread may outlive its task. */
  def mayOutliveTask: Boolean = TaskContext.get() != null && !Thread.currentThread.getName.startsWith(OfTask)
}
