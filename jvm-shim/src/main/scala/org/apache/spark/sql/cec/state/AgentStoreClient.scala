package org.apache.spark.sql.cec.state

import java.nio.file.{Files, Path, Paths}
import java.util.UUID

import scala.jdk.CollectionConverters._

import com.fasterxml.jackson.databind.JsonNode
import com.fasterxml.jackson.databind.node.ObjectNode

import org.apache.spark.sql.cec.{RunContext, StoreConfs}
import org.apache.spark.sql.cec.agent.{Agent, Json}
import org.apache.spark.sql.execution.streaming.state.StateStoreId

/**
 * How much of the touched windows a frame has. A deferred commit may leave windows dirty; an eager one may not. A
 * flush writes the windows that earlier commits left dirty.
 */
private[cec] object CommitKind extends Enumeration {
  val Deferred, Eager, Flush = Value
}

/**
 * The numbers of a commit, for the agent.
 *
 * @param live by how much the number of open windows changes, per footprint version; if `liveIsWhole`, the number
 * itself
 */
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

/** The answer of the agent to a durable commit. */
private[cec] final case class CommitAnswer(
    plan: CheckpointPlan, extent: Long, replay: Long, recoveryEstimateMs: Long, bytes: Long, agentUs: Long)

/** The fields of a commit's footer that the shim uses. */
private[cec] final case class Footer(checkpointId: String, openWindows: Long, digest: Long, digestKind: DigestKind.Value)

private object Footer {
  def of(answer: JsonNode): Footer = Footer(
    answer.get("checkpoint_id").asText, answer.get("open_windows").asLong, java.lang.Long.parseUnsignedLong(answer.get("digest").asText),
    if (answer.get("normalized").asBoolean) DigestKind.OfNumbers
    else if (answer.get("sketched").asBoolean) DigestKind.WithoutNumbers
    else DigestKind.OfBytes)
}

/** The part of a commit that the log still has. If the frame is lost, the id may still be known. */
private[cec] final case class Remains(checkpointId: Option[String] = None, footer: Option[Footer] = None)

/**
 * An eventual checkpoint from the agent.
 *
 * @param spool the file with its windows; None: it has no windows
 * @param inputs per version, the input tuples of the batch that made it
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
  /** Removes the spool file unread. */
  def discard(): Unit = spool.foreach(Files.deleteIfExists)
}

/**
 * The calls of one store to the agent.
 *
 * @param logId the id that the log must have; None: the agent begins a log if it finds none
 * @param run the run that the analyzer rule announced; None: no rule ran
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

  /** Loads EC(`version`) of the commit with this checkpoint id; None: of the newest commit. */
  def load(version: Long, checkpointId: Option[String]): CheckpointAnswer = {
    val arguments = makeArguments(version).put("checkpoint_id", checkpointId.orNull)
    logId.foreach(arguments.put("log_id", _))
    arguments.set[JsonNode]("conf", Json.map(conf))
    val answer = Agent.call("load", addCommitted(arguments), conf)
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

  /**
   * Tells the agent which batches Spark has committed. Else the agent could take a commit of an earlier run for a lost
   * frame.
   */
  private def addCommitted(arguments: ObjectNode): ObjectNode = {
    run.foreach(known => arguments.put("committed_batch", known.replayTo - 1))
    arguments.put("checkpoint", StoreConfs.checkpointOf(id))
  }

  /** Reads the part that the log still has of Spark's commit of `version`. */
  def remains(version: Long): Remains = {
    val answer = Agent.call("footer", addCommitted(makeArguments(version)), conf)
    Remains(Json.text(answer.get("checkpoint_id")), Option.when(!answer.get("lost").asBoolean)(Footer.of(answer)))
  }

  /**
   * Writes one commit. When this method returns, the commit is durable.
   *
   * @param proof that the windows are the query's state at this version
   */
  def append(proof: Verified, numbers: CommitNumbers, checkpointId: String, baseId: Option[String], spool: Option[Path]): CommitAnswer = {
    val arguments = makeArguments(numbers.version)
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

  /**
   * Reports the recovery of the store.
   *
   * @param held mutations that the hold rule ignored
   * @param unsure the windows that may differ, if the user accepts a divergence
   */
  def loaded(version: Long, ecLoadMs: Double, digestOk: Option[Boolean], held: Long, unsure: Seq[String]): Unit = {
    val arguments = makeArguments(version).put("ec_load_ms", ecLoadMs).put("held", held)
    arguments.set[JsonNode]("unsure", Json.strings(unsure))
    digestOk match {
      case Some(ok) => arguments.put("digest_ok", ok)
      case None => arguments.putNull("digest_ok")
    }
    Agent.call("loaded", arguments, conf)
  }

  /** Tells the agent that this store no longer needs the log. */
  def close(): Unit = Agent.closeLog(home)

  private def makeArguments(version: Long): ObjectNode = {
    val arguments = Json.obj().put("home", home).put("version", version).put("generation", generation).put("retained", retained)
    run.foreach(context => arguments.set[JsonNode]("forecast", context.forecast))
    arguments.putArray("store").add(id.operatorId).add(id.partitionId).add(id.storeName)
    arguments
  }
}

private object AgentStoreClient {
  private val (eager, grouped, flush, normalized) = (1, 2, 4, 32)

  /** The flags in the footer of a commit frame, as the log's format has them. */
  def flags(numbers: CommitNumbers, isGrouped: Boolean): Int =
    (if (numbers.kind == CommitKind.Eager) eager else 0) | (if (isGrouped) grouped else 0) |
      (if (numbers.kind == CommitKind.Flush) flush else 0) | (if (numbers.digestKind == DigestKind.OfNumbers) normalized else 0)
}
