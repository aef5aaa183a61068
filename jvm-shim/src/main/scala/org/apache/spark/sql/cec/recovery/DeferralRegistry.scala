package org.apache.spark.sql.cec.recovery

import java.util.concurrent.ConcurrentHashMap

import org.apache.hadoop.fs.Path

import org.apache.spark.sql.SparkSession
import org.apache.spark.sql.execution.streaming.operators.stateful.StatefulOperatorStateInfo

/**
 * What was decided for the queries of this driver, by their checkpoint: the physical plan of a batch names no more than
 * that, and it may be planned in any thread (`explain` does).
 */
private[cec] object DeferralRegistry {
  private val planned = new ConcurrentHashMap[String, Decision]

  /** From here on, batches of the query with this checkpoint, which runs, must be planned as was decided. */
  def expect(session: SparkSession, checkpoint: String, decision: Decision): Unit = {
    // A query is known to the session before its own thread begins: the others have ended.
    val running = new java.util.HashSet[String]
    session.sharedState.activeStreamingQueries.values.forEach(query => running.add(query.resolvedCheckpointRoot))
    planned.keySet.retainAll(running)
    planned.put(checkpoint, decision)
  }

  def isEmpty: Boolean = planned.isEmpty

  /** The decision for the query that a stateful operator belongs to, if it is one of ours. */
  def of(operator: StatefulOperatorStateInfo): Option[Decision] =
    Option(planned.get(new Path(operator.checkpointLocation).getParent.toString))
}
