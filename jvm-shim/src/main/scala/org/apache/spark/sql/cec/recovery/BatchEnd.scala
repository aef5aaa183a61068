package org.apache.spark.sql.cec.recovery

import java.util.concurrent.{ExecutionException, FutureTask}

import org.apache.spark.sql.SparkSession
import org.apache.spark.sql.cec.RunContext
import org.apache.spark.sql.cec.agent.{Agent, CecException, FindWritesRequest, NamedCommit, StoreId}
import org.apache.spark.sql.cec.exchange.{NamedWrites, StoreLocations}
import org.apache.spark.sql.cec.state.StoreOfOperator
import org.apache.spark.sql.execution.streaming.runtime.{StreamExecution, StreamingQueryWrapper}

/**
 * The end of a batch, in the stream's thread: its tasks have ended, and it does not count yet. A V2 sink commits after
 * it, a V1 sink before.
 *
 * @param isAsync whether the stores write while Spark commits the batch. The next batch is not planned before they have
 * written
 */
private[recovery] final class BatchEnd(session: SparkSession, run: RunContext, conf: Map[String, String], val isAsync: Boolean = false) {
  /** The write of the last batch, if it is under way. */
  private var pending: Option[FutureTask[Unit]] = None

  /**
   * Whether a batch of this run is in the log. After a crash a start compares the stores that the log knows. If the log
   * knew some partitions alone, nobody would miss the others.
   */
  private var knowsAllStores = false

  /**
   * Ends a batch.
   *
   *  1. If the stores of an executor write together, make all of them write now, and the output with them. Fail if one
   *     is lost. If they write asynchronously, only begin that, but for the first batch of the run. A crash may then lose
   *     this batch's version, and the next start makes it again.
   *  1. Fail if another run has taken over.
   *
   * @param frames of output that the sink is about to publish
   */
  def confirm(batch: Long, frames: Set[String] = Set.empty): Unit = {
    awaitWrite()
    if (run.together) { // 1
      val committed = findCommits()
      if (isAsync && knowsAllStores) begin(batch, committed) else write(batch + 1, committed, frames, isBehind = false)
      knowsAllStores = true
    }
    Agent.confirm(run.checkpoint, run.home, run.generation, conf) // 2
  }

  /** Waits for the write of the last batch, in the stream's thread, before a task of the next batch exists. Fails as the write did. */
  def awaitWrite(): Unit = pending.foreach { write =>
    try write.get() catch { case failed: ExecutionException => throw failed.getCause } finally if (write.isDone) pending = None
  }

  private def begin(batch: Long, committed: Map[StoreOfOperator, Set[String]]): Unit = {
    val task = new FutureTask[Unit](() => write(batch + 1, committed, Set.empty, isBehind = true))
    pending = Some(task)
    SourceProbe.start(s"cec-batch-$batch", task)
  }

  /**
   * Makes the JVMs write the commits of tasks that ended well, and no others. The batch counts only if each store that
   * committed in a task is written, and each frame that a task gave to the sink. A lost executor sends no answer, or is
   * not asked at all.
   *
   * @param isBehind whether Spark may have committed the batch
   */
  private def write(version: Long, committed: Map[StoreOfOperator, Set[String]], frames: Set[String], isBehind: Boolean): Unit = {
    val written = StoreLocations.write(run.checkpoint, run.generation, version, NamedWrites(committed, frames), Agent.timeoutMs(conf))
    val (stores, outputs) = awaitOthers(version, committed -- written.stores, frames -- written.frames)
    val missing = stores.toSeq.map(store => s"store ${store.operator}/${store.partition}/${store.name}").sorted ++
      outputs.toSeq.map(frame => s"output frame $frame")
    if (missing.nonEmpty) {
      val (lacks, does) =
        if (isBehind) ("is not in the log", "replays the batch, and the sink does not see it again")
        else ("does not count", "runs the batch again")
      throw new CecException("RestartNeeded",
        s"batch ${version - 1} $lacks, because ${missing.size} of ${committed.size + frames.size} writes are missing " +
          s"(${missing.take(3).mkString(", ")}): ${written.failed.headOption.getOrElse("their executor is gone")}. Restart the query: " +
          s"a restart $does. To let each task write by itself set spark.sql.streaming.stateStore.cec.writeAt=task")
    }
  }

  /**
   * Waits for writes that no JVM told of, and returns the stores and frames that are still missing. An executor that ends
   * in good order writes all that it holds, and so does a store that Spark closes. Both may take some seconds.
   */
  private def awaitOthers(version: Long, stores: Map[StoreOfOperator, Set[String]], frames: Set[String]): (Set[StoreOfOperator], Set[String]) = {
    var (missing, lost) = (stores, frames)
    def isOver = missing.isEmpty && lost.isEmpty
    def look(): Unit = {
      val commits = for ((store, ids) <- missing.toSeq; id <- ids)
        yield NamedCommit(StoreId(store.operator, store.partition.toLong, store.name), version, id)
      val found = Agent.call(FindWritesRequest(run.home, commits, lost.toSeq), conf)
      missing = missing.filterNot { case (_, ids) => found.commits.exists(ids) }
      lost --= found.frames
    }
    val deadlineNs = System.nanoTime() + BatchEnd.WaitNs
    if (!isOver) look()
    while (!isOver && System.nanoTime() < deadlineNs) {
      Thread.sleep(BatchEnd.LookEveryMs)
      look()
    }
    (missing.keySet, lost)
  }

  /** The commits of the batch that ends. Fails if an operator tells of none, because its stores might not be written. */
  private def findCommits(): Map[StoreOfOperator, Set[String]] = {
    val query = Option(session.sparkContext.getLocalProperty(StreamExecution.QUERY_ID_KEY)).flatMap(id => Option(session.streams.get(id)))
    val plan = query.collect { case wrapper: StreamingQueryWrapper => wrapper.streamingQuery.lastExecution.executedPlan }
    val commits = plan.map(PartialBatch.findCommits(_)).getOrElse(Nil)
    if (commits.isEmpty || commits.exists(_.isEmpty)) throw new IllegalStateException(
      s"${commits.count(_.isEmpty)} of ${commits.size} stateful operators of the query with checkpoint ${run.checkpoint} tell of no commit in the batch " +
        "that ends. To let each task write by itself set spark.sql.streaming.stateStore.cec.writeAt=task")
    commits.flatten.toMap
  }
}

private object BatchEnd {
  /** How long the end of a batch waits for an executor that ends. */
  private val WaitNs = 15000000000L
  private val LookEveryMs = 500L
}
