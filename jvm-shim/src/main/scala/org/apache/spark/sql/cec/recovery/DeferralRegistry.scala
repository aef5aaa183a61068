package org.apache.spark.sql.cec.recovery

import java.util.concurrent.ConcurrentHashMap

import org.apache.hadoop.fs.Path

import org.apache.spark.sql.SparkSession
import org.apache.spark.sql.execution.streaming.operators.stateful.StatefulOperatorStateInfo

/**
 * The decisions for this driver's queries, by checkpoint. The physical plan of a batch names only the checkpoint. Any
 * thread may plan it (`explain` does).
 */
private[cec] object DeferralRegistry {
  private val planned = new ConcurrentHashMap[String, Decision]

  /**
   * Registers the decision that all batches of the running query with this checkpoint must follow. One thread at a time:
   * a query that began to run after the look at the running ones registers itself after the others are forgotten.
   */
  def expect(session: SparkSession, checkpoint: String, decision: Decision): Unit = synchronized {
    // A session knows a query before the query's thread begins. So all queries missing here have ended.
    val running = new java.util.HashSet[String]
    session.sharedState.activeStreamingQueries.values.forEach(query => running.add(query.resolvedCheckpointRoot))
    planned.keySet.retainAll(running)
    planned.put(checkpoint, decision)
  }

  def isEmpty: Boolean = planned.isEmpty

  /** The decision for the query of a stateful operator; None if the query is not registered. */
  def of(operator: StatefulOperatorStateInfo): Option[Decision] =
    Option(planned.get(new Path(operator.checkpointLocation).getParent.toString))
}
