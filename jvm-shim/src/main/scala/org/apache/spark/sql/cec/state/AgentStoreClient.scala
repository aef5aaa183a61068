package org.apache.spark.sql.cec.state

import java.nio.file.{Files, Path, Paths}
import java.util.UUID

import scala.jdk.CollectionConverters._

import com.fasterxml.jackson.databind.JsonNode
import com.fasterxml.jackson.databind.node.ObjectNode

import org.apache.spark.sql.cec.{RunContext, StoreConfs}
import org.apache.spark.sql.cec.agent.{Agent, Json}
import org.apache.spark.sql.execution.streaming.state.StateStoreId

/** What is written of the windows that a batch touched: some, or all of them; a flush writes what earlier commits have left. */
private[cec] object CommitKind extends Enumeration {
  val Deferred, Eager, Flush = Value
}

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
    sums: StateTotals,
    digestKind: DigestKind.Value,
    elapsedUs: Long,
    kind: CommitKind.Value,
    live: Iterable[(Long, Int)],
    liveIsWhole: Boolean)

/** What the agent says of a durable commit. */
private[cec] final case class CommitAnswer(
    plan: CheckpointPlan, extent: Long, replay: Long, recoveryEstimateMs: Long, bytes: Long, agentUs: Long)

/** What the footer of a commit says of its version. */
private[cec] final case class Footer(checkpointId: String, openWindows: Long, digest: Long, digestKind: DigestKind.Value)

private object Footer {
  def of(answer: JsonNode): Footer = Footer(
    answer.get("checkpoint_id").asText, answer.get("open_windows").asLong, java.lang.Long.parseUnsignedLong(answer.get("digest").asText),
    if (answer.get("normalized").asBoolean) DigestKind.OfNumbers
    else if (answer.get("sketched").asBoolean) DigestKind.WithoutNumbers
    else DigestKind.OfBytes)
}

/** What is left of a commit: its id, if anyone knows that, and its footer, if the frame is not lost. */
private[cec] final case class Remains(checkpointId: Option[String] = None, footer: Option[Footer] = None)

/**
 * An eventual checkpoint as the agent hands it over.
 *
 * @param inputs input tuples of the versions that a replay makes again
 */
private[cec] final case class CheckpointAnswer(
    version: Long,
    footer: Footer,
    spool: Option[Path],
    dirtyFrom: Long,
    dirtyWindows: Long,
    inputs: Map[Long, Long],
    recoveryEstimateMs: Long,
    plan: CheckpointPlan) {
  /** Lets it go unread. */
  def discard(): Unit = spool.foreach(Files.deleteIfExists)
}

/**
 * One store's side of the conversation with the agent.
 *
 * @param logId the id of the log that must be there; None: one is begun if there is none
 * @param run the word of the analyzer rule, if there was one
 */
private[cec] final class AgentStoreClient(
    id: StateStoreId,
    val home: String,
    logId: Option[String],
    val generation: Long,
    grouped: Boolean,
    retained: Int,
    run: Option[RunContext],
    conf: Map[String, String]) {
  Agent.openLog(home, logId, conf)

  def newCheckpointId(): String = UUID.randomUUID().toString.replace("-", "")

  def spoolFile(expectedBytes: Long): Path = Agent.spoolFile(expectedBytes, conf)

  /** EC at `version`: of the attempt with this checkpoint id, or of the newest one. */
  def load(version: Long, checkpointId: Option[String]): CheckpointAnswer = {
    val arguments = about(version).put("checkpoint_id", checkpointId.orNull)
    logId.foreach(arguments.put("log_id", _))
    arguments.set[JsonNode]("conf", Json.map(conf))
    val answer = Agent.call("load", committed(arguments), conf)
    CheckpointAnswer(
      version,
      Footer.of(answer),
      Json.text(answer.get("spool")).map(Paths.get(_)),
      answer.get("dirty_from").asLong,
      answer.get("dirty_windows").asLong,
      answer.get("inputs").properties.asScala.map(entry => entry.getKey.toLong -> entry.getValue.asLong).toMap,
      answer.get("recovery_estimate_ms").asDouble.round,
      new CheckpointPlan(answer.get("plan")))
  }

  /** For whom to say which attempts may be committed ones: what an earlier run left of a batch must not stand in for a lost frame. */
  private def committed(arguments: ObjectNode): ObjectNode = {
    run.foreach(known => arguments.put("committed_batch", known.replayTo - 1))
    arguments.put("checkpoint", StoreConfs.checkpointOf(id))
  }

  /** What is left of the commit of `version` that Spark has. */
  def remains(version: Long): Remains = {
    val answer = Agent.call("footer", committed(about(version)), conf)
    Remains(Json.text(answer.get("checkpoint_id")), Option.when(!answer.get("lost").asBoolean)(Footer.of(answer)))
  }

  /**
   * Hands over one commit; when this returns, it is durable.
   *
   * @param proof that the windows are what the query made of its input
   */
  def append(proof: Verified, numbers: CommitNumbers, checkpointId: String, baseId: Option[String], spool: Option[Path]): CommitAnswer = {
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
      .put("digest", java.lang.Long.toUnsignedString(numbers.sums.digest))
      .put("state_rows", numbers.sums.rows)
      .put("elapsed_us", numbers.elapsedUs)
      .put("flags", AgentStoreClient.flags(numbers, grouped))
      .put("live_is_whole", numbers.liveIsWhole)
    val live = arguments.putArray("live")
    RunContext.timedBatch.foreach(arguments.set[JsonNode]("timed_batch", _))
    run.foreach(context => arguments.put("since_start_ms", Math.max(System.currentTimeMillis() - context.startedMs, 0L)))
    numbers.live.foreach { case (at, count) => live.addArray().add(at).add(count) }
    val answer = Agent.call("append", arguments, conf)
    CommitAnswer(
      new CheckpointPlan(answer.get("plan")), answer.get("extent").asLong, answer.get("replay").asLong,
      answer.get("recovery_estimate_ms").asDouble.round, answer.get("bytes").asLong, answer.get("agent_us").asLong)
  }

  /** Reports how the store came back at a recovery. */
  def loaded(version: Long, ecLoadMs: Double, digestOk: Option[Boolean], held: Long, unsure: Seq[String]): Unit = {
    val arguments = about(version).put("ec_load_ms", ecLoadMs).put("held", held)
    arguments.set[JsonNode]("unsure", Json.strings(unsure))
    digestOk match {
      case Some(ok) => arguments.put("digest_ok", ok)
      case None => arguments.putNull("digest_ok")
    }
    Agent.call("loaded", arguments, conf)
  }

  /** Says that this store does not need the log any more. */
  def close(): Unit = Agent.closeLog(home)

  private def about(version: Long): ObjectNode = {
    val arguments = Json.obj().put("home", home).put("version", version).put("generation", generation).put("retained", retained)
    run.foreach(context => arguments.set[JsonNode]("forecast", context.forecast))
    arguments.putArray("store").add(id.operatorId).add(id.partitionId).add(id.storeName)
    arguments
  }
}

private object AgentStoreClient {
  private val (eager, grouped, flush, normalized) = (1, 2, 4, 32)

  /** The bits of a commit frame's footer. */
  def flags(numbers: CommitNumbers, isGrouped: Boolean): Int =
    (if (numbers.kind == CommitKind.Eager) eager else 0) | (if (isGrouped) grouped else 0) |
      (if (numbers.kind == CommitKind.Flush) flush else 0) | (if (numbers.digestKind == DigestKind.OfNumbers) normalized else 0)
}
