package org.apache.spark.sql.cec.state

import org.apache.spark.{SparkContext, TaskContext}
import org.apache.spark.sql.execution.metric.SQLMetric
import org.apache.spark.sql.execution.streaming.state.{StateStoreCustomMetric, StateStoreId}
import org.apache.spark.util.AccumulatorV2

private[cec] final case class StoreOfOperator(operator: Long, partition: Int, name: String)

/**
 * The stores that committed in an operator's batch. Spark's own metric counts commits, and counts a store that commits
 * twice as two.
 */
private[cec] final class CommittedStores extends SQLMetric("sum") {
  private var stores = Set.empty[StoreOfOperator]

  def all: Set[StoreOfOperator] = stores

  override def copy(): SQLMetric = {
    val other = new CommittedStores
    other.stores = stores
    other
  }

  override def reset(): Unit = stores = Set.empty
  override def isZero: Boolean = stores.isEmpty
  override def value: Long = stores.size.toLong

  override def merge(other: AccumulatorV2[Long, Long]): Unit = other match {
    case more: CommittedStores => stores ++= more.stores
    case _ => throw new UnsupportedOperationException(s"cannot merge ${other.getClass.getName} into ${getClass.getName}")
  }

  private def note(store: StoreOfOperator): Unit = stores += store
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
  def note(id: StateStoreId): Unit = Option(TaskContext.get()).flatMap(task => Option(task.taskMetrics())).foreach { metrics =>
    metrics.withExternalAccums(_.foreach {
      case committed: CommittedStores => committed.note(StoreOfOperator(id.operatorId, id.partitionId, id.storeName))
      case _ =>
    })
  }
}
