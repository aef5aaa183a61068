package org.apache.spark.sql.cec

import java.util.UUID

import com.fasterxml.jackson.databind.JsonNode
import org.apache.hadoop.conf.Configuration
import scala.jdk.CollectionConverters._

import org.apache.spark.{SparkContext, TaskContext}
import org.apache.spark.sql.cec.agent.{Json, TimedBatch}
import org.apache.spark.sql.execution.streaming.runtime.StreamExecution

/**
 * The number of a run. Another run may have the lease between a start and the run's own thread. Then the run gets a later
 * number with the lease.
 */
private[cec] final class RunNumber(begun: Long) extends Serializable {
  @volatile private var number = begun

  def value: Long = number

  def becomes(later: Long): Unit = number = later
}

/**
 * The analyzer rule's message to the state stores of one run. The message travels as a local property of the stream's
 * thread, which Spark passes to every task.
 *
 * @param checkpoint the query's checkpoint location
 * @param home where its log is
 * @param logId the log's id, because another machine may have another log in the same directory
 * @param number of this run of the query, its generation
 * @param replayTo version at which the replay ends (V + 1); a store that begins there replays nothing
 * @param base version whose eventual checkpoint a replay loads: V + 1, or an older one if a frame is lost
 * @param deferred operators whose commits may be deferred; all others are eager
 * @param counted operators to which a batch always brings the same number of shuffle records, however its input is
 * split
 * @param accept whether the user accepts a replay that differs or cannot finish
 * @param silent whether commits write nothing, because a checkpointing protocol decides when the stores write
 * @param together whether the stores of a JVM write their commits together, when the tasks of the batch have ended
 * @param startedMs wall clock when the run began
 * @param forecast numbers of earlier recoveries, which the agents that write need
 */
private[cec] final case class RunContext(
    checkpoint: String,
    home: String,
    logId: String,
    number: RunNumber,
    replayTo: Long,
    base: Long,
    deferred: Set[Long],
    counted: Set[Long],
    accept: Boolean,
    silent: Boolean,
    together: Boolean,
    startedMs: Long,
    forecast: JsonNode) {

  def generation: Long = number.value

  /** Whether the replay begins before a version that the log lost. */
  def fellBack: Boolean = base < replayTo

  /** @param runId Spark's id of the run, which it gives to each store of the run */
  def announce(context: SparkContext, runId: UUID): Unit = {
    val node = Json.obj().put("run_id", runId.toString).put("checkpoint", checkpoint).put("home", home).put("log_id", logId).put("generation", generation)
      .put("replay_to", replayTo).put("base", base).put("accept", accept).put("silent", silent).put("together", together).put("started_ms", startedMs)
    node.set[JsonNode]("deferred", Json.longs(deferred))
    node.set[JsonNode]("counted", Json.longs(counted))
    node.set[JsonNode]("forecast", forecast)
    context.setLocalProperty(RunContext.Property, node.toString)
  }
}

private[cec] object RunContext {
  val Property = "spark.sql.cec.run"

  /** The property for the newest batch that Spark timed, and its time in ms. */
  val TimedBatchProperty = "spark.sql.cec.timedBatch"

  /** The newest timed batch, from this task's property: [batch, ms]. */
  def timedBatch: Option[TimedBatch] =
    Option(TaskContext.get()).flatMap(task => Option(task.getLocalProperty(TimedBatchProperty))).map(Json.parse)
      .map(timed => TimedBatch(timed.get(0).asLong, timed.get(1).asLong))

  /**
   * The run that a store belongs to, if the query of this task opens it.
   *
   * Other jobs have the property, too: those of a function for `foreachBatch`, and of threads that it starts. They may
   * read the same checkpoint with Spark's own reader of state, which makes stores with an id of its own.
   *
   * @param conf that Spark gave to the store
   */
  def ofTask(checkpoint: String, conf: Configuration): Option[RunContext] =
    for {
      task <- Option(TaskContext.get())
      known <- Option(task.getLocalProperty(Property)).map(Json.parse)
      if known.get("run_id").asText == conf.get(StreamExecution.RUN_ID_KEY)
      run = parse(known)
      if run.checkpoint == checkpoint
    } yield run

  private def parse(node: JsonNode): RunContext = {
    def longs(name: String) = node.get(name).elements.asScala.map(_.asLong).toSet
    RunContext(
      node.get("checkpoint").asText, node.get("home").asText, node.get("log_id").asText, new RunNumber(node.get("generation").asLong),
      node.get("replay_to").asLong, node.get("base").asLong, longs("deferred"), longs("counted"), node.get("accept").asBoolean,
      node.get("silent").asBoolean, node.get("together").asBoolean,
      node.get("started_ms").asLong, node.get("forecast"))
  }
}
