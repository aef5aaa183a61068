package org.apache.spark.sql.cec.recovery

import org.apache.spark.SparkContext
import org.apache.spark.sql.cec.RunContext
import org.apache.spark.sql.cec.agent.Json
import org.apache.spark.sql.streaming.StreamingQueryProgress

/**
 * How long the newest batch of a query took, from Spark's progress to the state stores: what a replay of it would take is
 * judged by that. It travels as a local property of the stream's thread, set when the next batch is being built.
 */
private[recovery] final class BatchClock(context: SparkContext) {
  @volatile private var newest: Option[String] = None

  /** Takes in the progress of a batch. */
  def note(progress: StreamingQueryProgress): Unit =
    Option(progress.durationMs.get(BatchClock.Whole)).foreach { ms =>
      newest = Some(Json.arr().add(progress.batchId).add(ms.longValue).toString)
    }

  /** Tells the tasks of the batch being built; called in the stream's thread. */
  def announce(): Unit = newest.foreach(context.setLocalProperty(RunContext.TimedBatch, _))
}

private object BatchClock {
  /** Spark's name for the time of a whole batch, without the wait for the next one. */
  val Whole = "triggerExecution"
}
