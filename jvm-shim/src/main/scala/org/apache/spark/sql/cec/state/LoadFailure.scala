package org.apache.spark.sql.cec.state

import org.apache.hadoop.conf.Configuration

import org.apache.spark.{QueryContext, SparkException}
import org.apache.spark.sql.cec.RunContext
import org.apache.spark.sql.cec.agent.CecException
import org.apache.spark.sql.execution.streaming.state.StateStoreId

/** The error of a store that cannot load a version: Spark's own condition, with our message. */
private[cec] final class LoadFailure(condition: String, message: String, cause: Throwable)
    extends SparkException(
      s"[$condition] $message", cause, errorClass = Some(condition), messageParameters = Map.empty, Array.empty[QueryContext])

private[cec] object LoadFailure {
  private val Condition = "CANNOT_LOAD_STATE_STORE"

  def negative(id: StateStoreId, version: Long): LoadFailure =
    new LoadFailure(s"$Condition.UNEXPECTED_VERSION", s"store $id: version $version is negative", null)

  def missingPartitions(directory: String, found: Int, wanted: Int, checkpoint: String): LoadFailure = {
    val message = s"$directory has directories of $found partitions where the log has $wanted: Spark's reader would leave out the others. " +
      "They are made when the query runs its next batch. Until then read with " +
      s"""format("cec").option("view", "windows").load("$checkpoint")"""
    new LoadFailure(s"$Condition.UNCATEGORIZED", message, null)
  }

  /**
   * Runs `load`, which brings a store of this checkpoint to a version, and turns our errors into Spark's.
   *
   * If the log alone does not hold a version, a run of the query gets the plain error, because its restart brings the
   * version back. Another reader, such as Spark's reader of state, gets advice as well.
   */
  def orResult[T](checkpoint: String, conf: Configuration)(load: => T): T = try load catch {
    case lost: CecException if lost.isA("DamagedLog") => throw new LoadFailure(s"$Condition.UNCATEGORIZED", lost.getMessage, lost)
    case dirty: CecException if dirty.isA("RestartNeeded") =>
      val advice =
        if (RunContext.ofTask(checkpoint, conf).isDefined) ""
        else s". To read the state from outside of the query, run `cec flush $checkpoint` and read the newest batch after that"
      throw new LoadFailure(s"$Condition.UNCATEGORIZED", dirty.getMessage + advice, dirty)
  }
}
