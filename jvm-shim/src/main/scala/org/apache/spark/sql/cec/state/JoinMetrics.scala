package org.apache.spark.sql.cec.state

import java.util.concurrent.ConcurrentHashMap

import org.apache.spark.TaskContext
import org.apache.spark.sql.execution.streaming.state.{StateStoreCustomMetric, StateStoreId, StateStoreMetrics}

/**
 * Adds the metrics of a join side's second store to the metrics of the first.
 *
 * Each side of a join has a store of rows and a store that counts the rows of each key. Spark reports custom metrics
 * of the first store alone. Without the second store the query's numbers would differ from its log.
 */
private[cec] object JoinMetrics {
  private val (rowsSuffix, countsSuffix) = ("-keyWithIndexToValue", "-keyToNumValues")

  /** Metrics of the counting stores that committed in running tasks, by task, operator and side. */
  private val committed = new ConcurrentHashMap[(Long, Long, String), StateStoreMetrics]()

  /** Keeps the metrics that a counting store had at its commit. */
  def note(id: StateStoreId, metrics: StateStoreMetrics): Unit = Option(TaskContext.get()).filter(_ => id.storeName.endsWith(countsSuffix)).foreach { task =>
    val key = makeKey(task, id, countsSuffix)
    if (committed.put(key, metrics) == null) task.addTaskCompletionListener[Unit](_ => committed.remove(key))
  }

  /** Returns the metrics of a store plus the metrics of its counting store, if it has one. */
  def complete(id: StateStoreId, metrics: StateStoreMetrics): StateStoreMetrics =
    Option(TaskContext.get()).filter(_ => id.storeName.endsWith(rowsSuffix)).flatMap(task => Option(committed.get(makeKey(task, id, rowsSuffix)))) match {
      case Some(more) => metrics.copy(customMetrics = metrics.customMetrics.map { case (metric, value) =>
        metric -> combineValues(metric, value, more.customMetrics.getOrElse(metric, 0L))
      })
      case None => metrics
    }

  private def combineValues(metric: StateStoreCustomMetric, one: Long, other: Long): Long = metric match {
    case _: MaxMetric => Math.max(one, other)
    case _ => one + other
  }

  private def makeKey(task: TaskContext, id: StateStoreId, kind: String): (Long, Long, String) =
    (task.taskAttemptId(), id.operatorId, id.storeName.stripSuffix(kind))
}
