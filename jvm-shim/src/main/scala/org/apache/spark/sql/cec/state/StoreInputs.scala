package org.apache.spark.sql.cec.state

import java.util.{Collections, WeakHashMap}

import org.apache.spark.TaskContext
import org.apache.spark.executor.TaskMetrics

/**
 * The stores that one task changes, and the shuffle records that it has read for them. Thread-safe.
 *
 * Spark makes the iterator of a store's rows before it asks for the store to write. An aggregation has read its whole shuffle by
 * then, and so has a sort without generated code. The records belong to the store, unless another store of the task is open: those
 * of a stage with two operators are the lower operator's. Nor do they belong to it if a store of the task has ended since, as in a
 * task with several partitions.
 */
private[state] final class TaskInputs {
  import TaskInputs.Begin

  private var open = 0

  /** The records that the task had read when one of its stores ended last. */
  private var settled = 0L

  /** When the task first looked at a store that it may change. */
  private var lookedNs = Option.empty[Long]

  def look(): Unit = synchronized {
    if (lookedNs.isEmpty) lookedNs = Some(System.nanoTime())
  }

  def begin(read: Long): Begin = synchronized {
    look()
    val isAlone = open == 0
    open += 1
    Begin(if (isAlone) read - settled else 0L, if (isAlone) lookedNs.get else System.nanoTime())
  }

  def end(read: Long): Unit = synchronized {
    open -= 1
    settled = read
    if (open == 0) lookedNs = None
  }
}

private[state] object TaskInputs {
  /**
   * The moment at which a task began to change a store.
   *
   * @param own the shuffle records of the store that the task had read before
   * @param startedNs when the task first looked at the store (`System.nanoTime`)
   */
  final case class Begin(own: Long, startedNs: Long)

  private val known = Collections.synchronizedMap(new WeakHashMap[TaskMetrics, TaskInputs])

  def of(task: TaskMetrics): TaskInputs = known.computeIfAbsent(task, _ => new TaskInputs)
}

/** The input of one store in one batch. Make it when the task begins to change the store. */
private[cec] final class StoreInputs {
  private val metrics = Option(TaskContext.get()).map(_.taskMetrics())
  private val task = metrics.fold(new TaskInputs)(TaskInputs.of)
  private val readAtBegin = read
  private val begin = task.begin(readAtBegin)

  /**
   * The facts of the batch that ends now. Its input is the shuffle records that the task has read since the store began, or else
   * those that it had read before, or else the number of puts. If the task had read some before, a replay cannot be sure to count
   * the same records: Spark may generate code for one run alone. Nor can it compare puts: it may have a shuffle where there was none.
   */
  def facts(puts: Long, named: Boolean): BatchFacts = {
    val shuffled = read - readAtBegin
    val inputs = if (shuffled > 0) shuffled else if (begin.own > 0) begin.own else puts
    BatchFacts(inputs, shuffled, begin.startedNs, named, isCounted = shuffled > 0 || (readAtBegin == 0 && puts == 0))
  }

  /** Ends the use of the store. Call it once. */
  def end(): Unit = task.end(read)

  private def read: Long = metrics.fold(0L)(_.shuffleReadMetrics.recordsRead)
}

private[cec] object StoreInputs {
  /** Notes that this task looks at a store that it may change later. */
  def look(): Unit = Option(TaskContext.get()).foreach(task => TaskInputs.of(task.taskMetrics()).look())
}
