package org.apache.spark.sql.cec.recovery

import org.apache.spark.sql.DataFrame
import org.apache.spark.sql.catalyst.InternalRow
import org.apache.spark.sql.cec.state.{CommittedStores, StoreOfOperator}
import org.apache.spark.sql.execution.streaming.Sink
import org.apache.spark.sql.execution.streaming.operators.stateful.StateStoreWriter
import org.apache.spark.sql.execution.streaming.sources.ForeachBatchSink

/**
 * What a V1 sink has run of a batch. It may have looked at some rows only, or at none: the stores whose partitions did not
 * run have not committed then, and the next batch would not find their version.
 */
private[recovery] object PartialBatch {
  /**
   * Runs what the sink left out, so that every store has the batch.
   *
   * The partitions of the missing stores are those of the result, unless something moves them in between: then all run.
   * A store that is run again takes its commit back, and has it again if the result is the same.
   */
  def complete(data: DataFrame): Unit = missingPartitions(data).foreach { missing =>
    val rows = data.queryExecution.toRdd
    val partitions = missing.filter(_ < rows.getNumPartitions).toSeq.sorted
    if (partitions.nonEmpty) rows.sparkContext.runJob(rows, PartialBatch.readAll, partitions)
    if (!isComplete(data)) rows.foreach(_ => ())
  }

  /** Whether the sink has left the batch alone: not one store has it. */
  def isPassedOver(data: DataFrame): Boolean = {
    val operators = operatorsOf(data)
    operators.nonEmpty && operators.forall(committedBy(_).isEmpty)
  }

  /** Whether every stateful operator of the batch has committed all its stores. */
  def isComplete(data: DataFrame): Boolean = missingPartitions(data).isEmpty

  private val readAll: Iterator[InternalRow] => Unit = rows => rows.foreach(_ => ())

  /** The partitions in which stores have not committed; None if there are none, and an empty set if nothing is known of them. */
  private def missingPartitions(data: DataFrame): Option[Set[Int]] = {
    val operators = operatorsOf(data)
    val missing = operators.flatMap(missingOf).toSet
    if (operators.nonEmpty && missing.isEmpty) None else Some(missing)
  }

  private def operatorsOf(data: DataFrame): Seq[StateStoreWriter] =
    data.queryExecution.executedPlan.collect { case writer: StateStoreWriter => writer }

  private def committedBy(operator: StateStoreWriter): Set[StoreOfOperator] =
    operator.metrics.get(CommittedStores.name).collect { case stores: CommittedStores => stores.all }.getOrElse(Set.empty)

  private def missingOf(operator: StateStoreWriter): Seq[Int] = {
    val committed = committedBy(operator)
    val partitions = Math.max(operator.children.head.outputPartitioning.numPartitions, 1)
    (0 until partitions).filterNot { partition =>
      operator.stateStoreNames.forall(name => committed(StoreOfOperator(operator.getStateInfo.operatorId, partition, name)))
    }
  }
}

/**
 * A function of `foreachBatch`, whose batches are completed. Spark validates at the end of a batch that all stores have
 * committed, but only for sinks of this class.
 *
 * @param halves whether to complete a batch that the function has looked at in part too; else Spark fails it, as with its own providers
 */
private[recovery] final class CompletedFunction(inner: ForeachBatchSink[_], halves: Boolean, confirm: () => Unit)
    extends ForeachBatchSink[Any](null, null) {
  override def name: String = "completed ForeachBatchSink"
  override def toString: String = inner.toString
  override def addBatch(batchId: Long, data: DataFrame): Unit = {
    inner.addBatch(batchId, data)
    if (halves || PartialBatch.isPassedOver(data)) PartialBatch.complete(data)
    confirm()
  }
}
