package org.apache.spark.sql.cec

import com.fasterxml.jackson.databind.JsonNode
import scala.jdk.CollectionConverters._

import org.apache.spark.{SparkContext, TaskContext}
import org.apache.spark.sql.cec.agent.Json
import org.apache.spark.sql.execution.streaming.runtime.StreamExecution

/**
 * The word of the analyzer rule to the state stores of one run of one query. It travels as a local property of the stream's
 * thread, which Spark hands to every task.
 *
 * @param checkpoint the query's checkpoint location
 * @param home where its log is
 * @param logId the log's id: a directory of that name on another machine is not it
 * @param generation number of this run of the query
 * @param replayTo version at which the replay ends (V + 1); nothing to replay if a store begins there
 * @param base version whose eventual checkpoint a replay begins with: V + 1 too, or an older one if a lost frame made the query fall back
 * @param deferred operators whose commits may be deferred; all others are eager
 * @param counted operators to which a batch brings the same number of shuffle records however its input is split
 * @param accept whether a replay that cannot be finished is accepted as it is
 * @param silent whether commits write nothing: a checkpointing protocol says when the stores write
 * @param startedMs wall clock when the run began
 * @param forecast what the agent told of earlier recoveries, for the agents that write
 */
private[cec] final case class RunContext(
    checkpoint: String,
    home: String,
    logId: String,
    generation: Long,
    replayTo: Long,
    base: Long,
    deferred: Set[Long],
    counted: Set[Long],
    accept: Boolean,
    silent: Boolean,
    startedMs: Long,
    forecast: JsonNode) {

  /** Whether the replay begins before a version that the log has lost. */
  def fellBack: Boolean = base < replayTo

  def announce(context: SparkContext): Unit = {
    val node = Json.obj().put("checkpoint", checkpoint).put("home", home).put("log_id", logId).put("generation", generation)
      .put("replay_to", replayTo).put("base", base).put("accept", accept).put("silent", silent).put("started_ms", startedMs)
    node.set[JsonNode]("deferred", Json.longs(deferred))
    node.set[JsonNode]("counted", Json.longs(counted))
    node.set[JsonNode]("forecast", forecast)
    context.setLocalProperty(RunContext.Property, node.toString)
  }
}

private[cec] object RunContext {
  val Property = "spark.sql.cec.run"

  /** The newest batch that Spark has timed, and its time in ms: a property beside that of the run. */
  val TimedBatch = "spark.sql.cec.timedBatch"

  /** The newest timed batch, as this task was told: [batch, ms]. */
  def timedBatch: Option[JsonNode] =
    Option(TaskContext.get()).flatMap(task => Option(task.getLocalProperty(TimedBatch))).map(Json.parse)

  /**
   * The word for the query with this checkpoint, if this task is one of its stream's. Threads that are begun in a stream's inherit the
   * property: jobs of theirs that are no query's, and may read the same checkpoint, are told by the lack of a query id.
   */
  def ofTask(checkpoint: String): Option[RunContext] =
    for {
      task <- Option(TaskContext.get())
      if task.getLocalProperty(StreamExecution.QUERY_ID_KEY) != null
      run <- Option(task.getLocalProperty(Property)).map(read)
      if run.checkpoint == checkpoint
    } yield run

  private def read(text: String): RunContext = {
    val node = Json.parse(text)
    def longs(name: String) = node.get(name).elements.asScala.map(_.asLong).toSet
    RunContext(
      node.get("checkpoint").asText, node.get("home").asText, node.get("log_id").asText, node.get("generation").asLong,
      node.get("replay_to").asLong, node.get("base").asLong, longs("deferred"), longs("counted"), node.get("accept").asBoolean,
      node.get("silent").asBoolean,
      node.get("started_ms").asLong, node.get("forecast"))
  }
}
