package org.apache.spark.sql.cec.state

import org.apache.spark.{SparkContext, TaskContext}
import org.apache.spark.sql.execution.metric.SQLMetric
import org.apache.spark.sql.execution.streaming.state.{StateStoreCustomMetric, StateStoreId}
import org.apache.spark.util.AccumulatorV2

private[cec] final case class StoreOfOperator(operator: Long, partition: Int, name: String)

/**
 * The stores that committed in an operator's batch, each with the checkpoint ids of its commits: more than one if the
 * batch was run again. Spark's own metric counts commits, and counts a store that commits twice as two.
 *
 * Spark adds the metric of a task that has ended well. The commits of a task that failed after them are missing.
 */
private[cec] final class CommittedStores extends SQLMetric("sum") {
  private var stores = Map.empty[StoreOfOperator, Set[String]]

  def all: Map[StoreOfOperator, Set[String]] = stores

  override def copy(): SQLMetric = {
    val other = new CommittedStores
    other.stores = stores
    other
  }

  override def reset(): Unit = stores = Map.empty
  override def isZero: Boolean = stores.isEmpty
  override def value: Long = stores.size.toLong

  override def merge(other: AccumulatorV2[Long, Long]): Unit = other match {
    case more: CommittedStores => more.stores.foreach { case (store, ids) => add(store, ids) }
    case _ => throw new UnsupportedOperationException(s"cannot merge ${other.getClass.getName} into ${getClass.getName}")
  }

  private def add(store: StoreOfOperator, ids: Set[String]): Unit = stores += store -> (stores.getOrElse(store, Set.empty[String]) ++ ids)
}

private[cec] object CommittedStores extends StateStoreCustomMetric {
  override val name: String = "cecStores"
  override val desc: String = "number of stores that have committed"
  override def withNewDesc(desc: String): StateStoreCustomMetric = this

  override def createSQLMetric(sparkContext: SparkContext): SQLMetric = {
    val metric = new CommittedStores
    metric.register(sparkContext, name = Some(desc))
    metric
  }

  /** Adds a store to the metric of the operator whose task runs. */
  def note(id: StateStoreId, checkpointId: Option[String]): Unit = Option(TaskContext.get()).flatMap(task => Option(task.taskMetrics())).foreach { metrics =>
    metrics.withExternalAccums(_.foreach {
      case committed: CommittedStores => committed.add(StoreOfOperator(id.operatorId, id.partitionId, id.storeName), checkpointId.toSet)
      case _ =>
    })
  }
}
