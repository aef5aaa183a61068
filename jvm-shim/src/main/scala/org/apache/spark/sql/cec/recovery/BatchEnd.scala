package org.apache.spark.sql.cec.recovery

import org.apache.spark.sql.SparkSession
import org.apache.spark.sql.cec.RunContext
import org.apache.spark.sql.cec.agent.{Agent, CecException}
import org.apache.spark.sql.cec.exchange.{NamedWrites, StoreLocations}
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
   *  1. If the stores of an executor write together, make all of them write now, and the output with them. Fail if one
   *     is lost.
   *  1. Fail if another run has taken over.
   *
   * @param frames of output that the sink is about to publish
   */
  def confirm(batch: Long, frames: Set[String] = Set.empty): Unit = {
    if (run.together) write(batch + 1, frames) // 1
    Agent.confirm(run.checkpoint, run.home, run.generation, conf) // 2
  }

  /**
   * Makes the JVMs write the commits of tasks that ended well, and no others. The batch counts only if each store that committed in a task is written, and each frame that a
   * task gave to the sink. A lost executor sends no answer, or is not asked at all.
   */
  private def write(version: Long, frames: Set[String]): Unit = {
    val committed = findCommits()
    val named = NamedWrites(committed.values.flatten.toSet, frames)
    val written = StoreLocations.write(run.checkpoint, run.generation, version, named, Agent.timeoutMs(conf))
    val stores = (committed.keySet -- written.stores).toSeq.map(store => s"store ${store.operator}/${store.partition}/${store.name}").sorted
    val missing = stores ++ (frames -- written.frames).toSeq.map(frame => s"output frame $frame")
    if (missing.nonEmpty) throw new CecException("RestartNeeded",
      s"batch ${version - 1} does not count, because ${missing.size} of ${committed.size + frames.size} writes are missing " +
        s"(${missing.take(3).mkString(", ")}): ${written.failed.headOption.getOrElse("their executor is gone")}. Restart the query: a restart runs the " +
        "batch again. To let each task write by itself set spark.sql.streaming.stateStore.cec.writeAt=task")
  }

  private def findCommits(): Map[StoreOfOperator, Set[String]] = {
    val query = Option(session.sparkContext.getLocalProperty(StreamExecution.QUERY_ID_KEY)).flatMap(id => Option(session.streams.get(id)))
    val plan = query.collect { case wrapper: StreamingQueryWrapper => wrapper.streamingQuery.lastExecution.executedPlan }
    plan.map(PartialBatch.findCommits(_)).filter(_.nonEmpty).getOrElse(throw new IllegalStateException(
      s"no store of ${run.checkpoint} committed in the batch that ends: the query is ${query.getOrElse("unknown to its session")}"))
  }
}
