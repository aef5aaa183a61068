package org.apache.spark.sql.cec.recovery

import org.apache.spark.sql.SparkSession
import org.apache.spark.sql.cec.RunContext
import org.apache.spark.sql.cec.agent.{Agent, CecException}
import org.apache.spark.sql.cec.exchange.StoreLocations
import org.apache.spark.sql.cec.state.StoreOfOperator
import org.apache.spark.sql.execution.streaming.runtime.{StreamExecution, StreamingQueryWrapper}

/**
 * The end of a batch, in the stream's thread: its tasks have ended, and it does not count yet. A V2 sink commits after it, a
 * V1 sink before.
 */
private[recovery] final class BatchEnd(session: SparkSession, run: RunContext, conf: Map[String, String]) {
  /**
   * Ends a batch.
   *
   *  1. If the stores of an executor write together, make all of them write now. Fail if one is lost.
   *  1. Fail if another run has taken over.
   */
  def confirm(batch: Long): Unit = {
    if (run.together) writeCommits(batch + 1) // 1
    Agent.confirm(run.checkpoint, run.home, run.generation, conf) // 2
  }

  /**
   * Makes the stores write. The batch counts only if each store that committed in a task is written. A lost executor sends
   * no answer, or is not asked at all.
   */
  private def writeCommits(version: Long): Unit = {
    val committed = findCommitted()
    val (written, failed) = StoreLocations.write(run.checkpoint, run.generation, version, Agent.timeoutMs(conf))
    val missing = (committed -- written).toSeq.map(store => s"${store.operator}/${store.partition}/${store.name}").sorted
    if (missing.nonEmpty) throw new CecException("RestartNeeded",
      s"batch ${version - 1} does not count, because ${missing.size} of ${committed.size} stores did not write it (${missing.take(3).mkString(", ")}): " +
        s"${failed.headOption.getOrElse("their executor is gone")}. Restart the query: a restart runs the batch again. To let each store write in its own " +
        "task set spark.sql.streaming.stateStore.cec.writeAt=task")
  }

  private def findCommitted(): Set[StoreOfOperator] = {
    val query = Option(session.sparkContext.getLocalProperty(StreamExecution.QUERY_ID_KEY)).flatMap(id => Option(session.streams.get(id)))
    val plan = query.collect { case wrapper: StreamingQueryWrapper => wrapper.streamingQuery.lastExecution.executedPlan }
    plan.map(PartialBatch.findCommittedStores(_)).filter(_.nonEmpty).getOrElse(throw new IllegalStateException(
      s"no store of ${run.checkpoint} committed in the batch that ends: the query is ${query.getOrElse("unknown to its session")}"))
  }
}
