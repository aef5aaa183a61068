package org.apache.spark.sql.cec.state

import java.nio.file.{Path, Paths}
import java.util.UUID

import scala.jdk.CollectionConverters._

import com.fasterxml.jackson.databind.JsonNode
import com.fasterxml.jackson.databind.node.ObjectNode

import org.apache.spark.sql.cec.RunContext
import org.apache.spark.sql.cec.agent.{Agent, Json}
import org.apache.spark.sql.execution.streaming.state.StateStoreId

/** A commit's numbers, as the agent wants them. `live` are changes of the open windows per footprint version. */
private[cec] final case class CommitNumbers(
    version: Long,
    openWindows: Long,
    dirtyFrom: Long,
    dirtyWindows: Long,
    opened: Long,
    checked: Long,
    closed: Long,
    inputs: Long,
    watermarkMs: Long,
    digest: Long,
    elapsedUs: Long,
    eager: Boolean,
    live: Iterable[(Long, Int)],
    liveIsWhole: Boolean)

/** What the agent says of a durable commit. */
private[cec] final case class CommitAnswer(
    plan: CheckPlan, extent: Long, replay: Long, recoveryEstimateMs: Long, bytes: Long, agentUs: Long)

/** An eventual checkpoint as the agent hands it over. */
private[cec] final case class CheckpointAnswer(
    spool: Option[Path],
    openWindows: Long,
    dirtyFrom: Long,
    dirtyWindows: Long,
    digest: Long,
    checkpointIds: Map[Long, String],
    recoveryEstimateMs: Long,
    plan: CheckPlan)

/**
 * One store's side of the conversation with the agent.
 *
 * @param run the word of the analyzer rule, if there was one
 */
private[cec] final class StoreLog(
    id: StateStoreId,
    val home: String,
    val generation: Long,
    grouped: Boolean,
    retained: Int,
    run: Option[RunContext],
    conf: Map[String, String]) {
  Agent.openLog(home, conf)

  def newCheckpointId(): String = UUID.randomUUID().toString.replace("-", "")

  def spoolFile(expectedBytes: Long): Path = Agent.spoolFile(expectedBytes, conf)

  /** EC at `version`: of the attempt with this checkpoint id, or of the newest one. */
  def load(version: Long, checkpointId: Option[String]): CheckpointAnswer = {
    val arguments = about(version).put("checkpoint_id", checkpointId.orNull)
    arguments.set[JsonNode]("conf", Json.map(conf))
    val answer = Agent.call("load", arguments, conf)
    CheckpointAnswer(
      Json.text(answer.get("spool")).map(Paths.get(_)),
      answer.get("open_windows").asLong,
      answer.get("dirty_from").asLong,
      answer.get("dirty_windows").asLong,
      java.lang.Long.parseUnsignedLong(answer.get("digest").asText),
      answer.get("checkpoint_ids").properties.asScala.map(entry => entry.getKey.toLong -> entry.getValue.asText).toMap,
      answer.get("recovery_estimate_ms").asDouble.round,
      new CheckPlan(answer.get("plan")))
  }

  /** Hands over one commit; when this returns, it is durable. */
  def append(numbers: CommitNumbers, checkpointId: String, baseId: Option[String], spool: Option[Path]): CommitAnswer = {
    val arguments = about(numbers.version)
      .put("checkpoint_id", checkpointId)
      .put("base_checkpoint_id", baseId.orNull)
      .put("spool", spool.map(_.toString).orNull)
      .put("open_windows", numbers.openWindows)
      .put("dirty_from", numbers.dirtyFrom)
      .put("dirty_windows", numbers.dirtyWindows)
      .put("opened", numbers.opened)
      .put("checked", numbers.checked)
      .put("closed", numbers.closed)
      .put("inputs", numbers.inputs)
      .put("watermark_ms", numbers.watermarkMs)
      .put("digest", java.lang.Long.toUnsignedString(numbers.digest))
      .put("elapsed_us", numbers.elapsedUs)
      .put("flags", (if (numbers.eager) StoreLog.Eager else 0) | (if (grouped) StoreLog.Grouped else 0))
      .put("live_is_whole", numbers.liveIsWhole)
    val live = arguments.putArray("live")
    RunContext.timedBatch.foreach(arguments.set[JsonNode]("timed_batch", _))
    run.foreach(context => arguments.put("since_start_ms", Math.max(System.currentTimeMillis() - context.startedMs, 0L)))
    numbers.live.foreach { case (at, count) => live.addArray().add(at).add(count) }
    val answer = Agent.call("append", arguments, conf)
    CommitAnswer(
      new CheckPlan(answer.get("plan")), answer.get("extent").asLong, answer.get("replay").asLong,
      answer.get("recovery_estimate_ms").asDouble.round, answer.get("bytes").asLong, answer.get("agent_us").asLong)
  }

  /** Reports how the store came back at a recovery. */
  def loaded(version: Long, ecLoadMs: Double, digestOk: Option[Boolean], held: Long): Unit = {
    val arguments = about(version).put("ec_load_ms", ecLoadMs).put("held", held)
    digestOk match {
      case Some(ok) => arguments.put("digest_ok", ok)
      case None => arguments.putNull("digest_ok")
    }
    Agent.call("loaded", arguments, conf)
  }

  private def about(version: Long): ObjectNode = {
    val arguments = Json.obj().put("home", home).put("version", version).put("generation", generation).put("retained", retained)
    run.foreach(context => arguments.set[JsonNode]("forecast", context.forecast))
    arguments.putArray("store").add(id.operatorId).add(id.partitionId).add(id.storeName)
    arguments
  }
}

private object StoreLog {
  val Eager = 1
  val Grouped = 2
}
