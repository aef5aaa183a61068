package org.apache.spark.sql.cec.state

import java.util.concurrent.ConcurrentHashMap

import org.apache.spark.TaskContext
import org.apache.spark.sql.execution.streaming.state.{StateStoreCustomMetric, StateStoreId, StateStoreMetrics}

/**
 * Each side of a join has a store of rows and one that counts the rows of each key. Spark reports custom metrics of the first alone, so
 * those of the second go with them: else a query's numbers would not be those of its log.
 */
private[cec] object JoinMetrics {
  private val (rows, counts) = ("-keyWithIndexToValue", "-keyToNumValues")

  /** What stores that count have committed in tasks that run: by task, operator, and side. */
  private val committed = new ConcurrentHashMap[(Long, Long, String), StateStoreMetrics]()

  /** A store has committed, with these metrics. */
  def note(id: StateStoreId, metrics: StateStoreMetrics): Unit = Option(TaskContext.get()).filter(_ => id.storeName.endsWith(counts)).foreach { task =>
    val place = placeOf(task, id, counts)
    if (committed.put(place, metrics) == null) task.addTaskCompletionListener[Unit](_ => committed.remove(place))
  }

  /** The metrics of a store, with those of the one that counts its rows, if it has one. */
  def complete(id: StateStoreId, metrics: StateStoreMetrics): StateStoreMetrics =
    Option(TaskContext.get()).filter(_ => id.storeName.endsWith(rows)).flatMap(task => Option(committed.get(placeOf(task, id, rows)))) match {
      case Some(more) => metrics.copy(customMetrics = metrics.customMetrics.map { case (metric, value) =>
        metric -> together(metric, value, more.customMetrics.getOrElse(metric, 0L))
      })
      case None => metrics
    }

  private def together(metric: StateStoreCustomMetric, one: Long, other: Long): Long = metric match {
    case _: MaxMetric => Math.max(one, other)
    case _ => one + other
  }

  private def placeOf(task: TaskContext, id: StateStoreId, kind: String): (Long, Long, String) =
    (task.taskAttemptId(), id.operatorId, id.storeName.stripSuffix(kind))
}
