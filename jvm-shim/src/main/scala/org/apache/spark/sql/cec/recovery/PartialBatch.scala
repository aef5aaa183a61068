package org.apache.spark.sql.cec.recovery

import org.apache.spark.sql.DataFrame
import org.apache.spark.sql.catalyst.InternalRow
import org.apache.spark.sql.cec.state.{CommittedStores, StoreOfOperator}
import org.apache.spark.sql.execution.SparkPlan
import org.apache.spark.sql.execution.streaming.Sink
import org.apache.spark.sql.execution.streaming.operators.stateful.StateStoreWriter
import org.apache.spark.sql.execution.streaming.sources.ForeachBatchSink

/**
 * Finds the part of a batch that a V1 sink did not run. A sink may read some rows or none. A store whose partition did
 * not run has no commit, and the next batch would miss its version.
 */
private[recovery] object PartialBatch {
  /**
   * Runs the partitions that the sink left out, so that every store commits the batch.
   *
   * Normally store and result have the same partitions, so the missing ones run. If some stores still lack the commit,
   * all run. A store that runs again takes its commit back, and restores it if the result is the same.
   */
  def complete(data: DataFrame): Unit = findMissingPartitions(data).foreach { missing =>
    val rows = data.queryExecution.toRdd
    val partitions = missing.filter(_ < rows.getNumPartitions).toSeq.sorted
    if (partitions.nonEmpty) rows.sparkContext.runJob(rows, PartialBatch.readAll, partitions)
    if (!isComplete(data)) rows.foreach(_ => ())
  }

  /** Whether the sink skipped the batch: no store committed it. */
  def isPassedOver(data: DataFrame): Boolean = {
    val operators = findOperators(data.queryExecution.executedPlan)
    operators.nonEmpty && operators.forall(findCommitted(_).isEmpty)
  }

  /** Whether all stores of all stateful operators committed the batch. */
  def isComplete(data: DataFrame): Boolean = findMissingPartitions(data).isEmpty

  private val readAll: Iterator[InternalRow] => Unit = rows => rows.foreach(_ => ())

  /**
   * The partitions with stores that lack the commit; None if no store lacks it. The set is empty if the plan shows no
   * stateful operator.
   */
  private def findMissingPartitions(data: DataFrame): Option[Set[Int]] = {
    val operators = findOperators(data.queryExecution.executedPlan)
    val missing = operators.flatMap(findMissing).toSet
    if (operators.nonEmpty && missing.isEmpty) None else Some(missing)
  }

  /** Of each stateful operator of the plan, the stores that committed its batch, and the checkpoint ids of their commits. */
  def findCommits(plan: SparkPlan): Seq[Map[StoreOfOperator, Set[String]]] = findOperators(plan).map(findCommitted)

  private def findOperators(plan: SparkPlan): Seq[StateStoreWriter] = plan.collect { case writer: StateStoreWriter => writer }

  private def findCommitted(operator: StateStoreWriter): Map[StoreOfOperator, Set[String]] =
    operator.metrics.get(CommittedStores.name).collect { case stores: CommittedStores => stores.all }.getOrElse(Map.empty)

  private def findMissing(operator: StateStoreWriter): Seq[Int] = {
    val committed = findCommitted(operator)
    val partitions = Math.max(operator.children.head.outputPartitioning.numPartitions, 1)
    (0 until partitions).filterNot { partition =>
      operator.stateStoreNames.forall(name => committed.contains(StoreOfOperator(operator.getStateInfo.operatorId, partition, name)))
    }
  }
}

/**
 * A function of `foreachBatch` whose batches get completed. Spark checks at a batch's end that all stores committed,
 * but only for a sink of this class.
 *
 * @param halves whether to complete a batch that the function read in part; if false, Spark fails it as with its own
 * providers
 */
private[recovery] final class CompletedFunction(inner: ForeachBatchSink[_], halves: Boolean, end: BatchEnd)
    extends ForeachBatchSink[Any](null, null) {
  override def name: String = "completed ForeachBatchSink"
  override def toString: String = inner.toString
  override def addBatch(batchId: Long, data: DataFrame): Unit = {
    end.awaitWrite()
    inner.addBatch(batchId, data)
    if (halves || PartialBatch.isPassedOver(data)) PartialBatch.complete(data)
    end.confirm(batchId)
  }
}
