package org.apache.spark.sql.cec.state

import org.apache.spark.sql.cec.agent.CecException
import org.apache.spark.sql.execution.streaming.state.StateStoreId

/**
 * The turns in which a task uses its store. An operator reads and writes in one turn. A store has its windows once. If a task begins the
 * store again behind a writer, a new turn begins. A view of the earlier turn would read the changes of the new one.
 * `df.rdd.zip(df.rdd)` in a function for `foreachBatch` does that. So the views of an earlier turn fail. Not safe for several threads.
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

  def isCurrent(turn: Long): Boolean = turn == current

  /** Refuses the use of a view whose turn is over. */
  def verify(turn: Long): Unit = if (turn != current) throw new CecException("Unsupported",
    s"a task reads the same batch twice at once, and store $id has its windows only once: in the function for foreachBatch, call persist() " +
      "on the DataFrame before it is used twice in one task (as df.rdd.zip(df.rdd) or cartesian do), and unpersist() at the end")

  /** The rows of an iterator, for as long as its turn goes on. */
  def guard[A](turn: Long, rows: Iterator[A]): Iterator[A] = new Iterator[A] {
    override def hasNext: Boolean = {
      verify(turn)
      rows.hasNext
    }

    override def next(): A = {
      verify(turn)
      rows.next()
    }
  }
}
