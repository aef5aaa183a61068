package org.apache.spark.sql.cec.state

import java.nio.file.{Files, Path, Paths}
import java.util.UUID

import org.apache.spark.sql.cec.{RunContext, StoreConfs}
import org.apache.spark.sql.cec.agent._
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
 * @param isCounted whether `inputs` is the number of shuffle records
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
    liveIsWhole: Boolean,
    isCounted: Boolean)

/**
 * A commit that the log may lack.
 *
 * @param isNamed whether Spark names the version by this commit's id, also if the batch runs again
 * @param wholeLedger computes the number of open windows per footprint version, at the commit's version
 * @param spool the file with its records; None: it has none
 */
private[cec] final class UnwrittenCommit(val commit: StoreCommit, val isNamed: Boolean, wholeLedger: () => Iterable[(Long, Int)], spool: Option[Path]) {
  /** The commit for an agent that does not know the store. */
  def withWholeLedger: StoreCommit = commit.copy(liveIsWhole = true, live = AgentStoreClient.pairs(wholeLedger()))

  /** Removes the spool file. */
  def discard(): Unit = spool.foreach(Files.deleteIfExists)
}

/** The fields of a commit's footer that the shim uses. */
private[cec] final case class Footer(checkpointId: String, openWindows: Long, digest: Long, digestKind: DigestKind.Value)

private object Footer {
  def of(numbers: FooterNumbers): Footer = Footer(
    numbers.checkpointId, numbers.openWindows, java.lang.Long.parseUnsignedLong(numbers.digest),
    if (numbers.normalized) DigestKind.OfNumbers
    else if (numbers.sketched) DigestKind.WithoutNumbers
    else DigestKind.OfBytes)
}

/** The part of a commit that the log still has. If the frame is lost, the id may still be known. */
private[cec] final case class Remains(checkpointId: Option[String] = None, footer: Option[Footer] = None)

/**
 * An eventual checkpoint from the agent.
 *
 * @param spool the file with its windows; None: it has no windows
 * @param rows state keys in the file
 * @param inputs per version, the shuffle records of the batch that made it, where the log knows that they were counted
 */
private[cec] final case class CheckpointAnswer(
    version: Long,
    footer: Footer,
    spool: Option[Path],
    rows: Long,
    dirtyFrom: Long,
    dirtyWindows: Long,
    inputs: Map[Long, Long],
    recoveryEstimateMs: Long,
    plan: CheckpointPlan) {
  /** Removes the spool file unread. */
  def discard(): Unit = spool.foreach(Files.deleteIfExists)
}

/** The log of one store. */
private[cec] trait StoreLog extends AutoCloseable {
  def newCheckpointId(): String

  def spoolFile(expectedBytes: Long): SpoolPath

  /** Loads EC(`version`) of the commit with this checkpoint id; None: of the newest commit. */
  def load(version: Long, checkpointId: Option[String]): CheckpointAnswer

  /** Reads the part that the log still has of Spark's commit of `version`. */
  def remains(version: Long): Remains

  /**
   * Describes a commit for the agent.
   *
   * @param proof that the windows are the query's state at this version
   * @param wholeLedger the number of open windows per footprint version after the commit
   */
  def describe(
      proof: Verified, numbers: CommitNumbers, checkpointId: String, isNamed: Boolean, baseId: Option[String], spool: Option[Path],
      wholeLedger: () => Iterable[(Long, Int)]): UnwrittenCommit

  /** Writes one commit. When this method returns, the commit is durable. */
  def write(commit: UnwrittenCommit): DurableCommit

  /**
   * Reports the recovery of the store.
   *
   * @param held mutations that the hold rule ignored
   * @param unsure the windows that may differ, if the user accepts a divergence
   */
  def loaded(version: Long, ecLoadMs: Double, digestOk: Option[Boolean], held: Long, unsure: Seq[String]): Unit

  /** Tells the agent that this store no longer needs the log. */
  override def close(): Unit
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
    conf: Map[String, String]) extends StoreLog {
  ArrowClasses.prepare()
  Agent.openLog(home, logId, conf)

  override def newCheckpointId(): String = UUID.randomUUID().toString.replace("-", "")

  override def spoolFile(expectedBytes: Long): SpoolPath = Agent.spoolFile(expectedBytes, conf)

  override def load(version: Long, checkpointId: Option[String]): CheckpointAnswer = {
    val answer = Agent.call(LoadRequest(
      home, conf, logId, store, version, checkpointId, checkpoint, committedBatch, generation, retained, forecast), conf)
    CheckpointAnswer(
      version,
      Footer.of(answer.footer),
      answer.spool.map(Paths.get(_)),
      answer.rows,
      answer.dirtyFrom,
      answer.dirtyWindows,
      answer.inputs.map { case (version, count) => version.toLong -> count },
      answer.recoveryEstimateMs.round,
      new CheckpointPlan(answer.plan))
  }

  /**
   * Tells the agent which batches Spark has committed. Else the agent could take a commit of an earlier run for a lost
   * frame.
   */
  private def committedBatch: Option[Long] = run.map(_.replayTo - 1)
  private def checkpoint: Option[String] = Some(StoreConfs.checkpointOf(id))

  override def remains(version: Long): Remains = {
    val answer = Agent.call(FooterRequest(home, store, version, checkpoint, committedBatch, generation), conf)
    Remains(answer.checkpointId, answer.footer.map(Footer.of))
  }

  override def describe(
      proof: Verified, numbers: CommitNumbers, checkpointId: String, isNamed: Boolean, baseId: Option[String], spool: Option[Path],
      wholeLedger: () => Iterable[(Long, Int)]): UnwrittenCommit = {
    val commit = StoreCommit(
      store,
      numbers.version,
      generation,
      retained,
      forecast,
      checkpointId,
      baseId,
      spool.map(_.toString),
      numbers.openWindows,
      numbers.dirtyFrom,
      numbers.dirtyWindows,
      numbers.opened,
      numbers.checked,
      numbers.closed,
      numbers.inputs,
      java.lang.Long.toUnsignedString(numbers.sums.digest),
      numbers.sums.rows,
      numbers.elapsedUs,
      AgentStoreClient.flags(numbers, grouped),
      numbers.liveIsWhole,
      AgentStoreClient.pairs(numbers.live),
      RunContext.timedBatch,
      run.fold(0L)(context => Math.max(System.currentTimeMillis() - context.startedMs, 0L)))
    new UnwrittenCommit(commit, isNamed, wholeLedger, spool)
  }

  override def write(commit: UnwrittenCommit): DurableCommit = AgentStoreClient.writeAll(home, logId, Seq(commit), Nil, conf).head

  override def loaded(version: Long, ecLoadMs: Double, digestOk: Option[Boolean], held: Long, unsure: Seq[String]): Unit =
    Agent.call(LoadedRequest(home, store, version, generation, forecast, ecLoadMs, digestOk, held, unsure), conf)

  override def close(): Unit = Agent.closeLog(home)

  private val store = StoreId(id.operatorId, id.partitionId, id.storeName)
  private val forecast = run.map(_.forecast)
}

private[cec] object AgentStoreClient {
  /**
   * Writes commits of stores of one log, and output of tasks, with as few writes as possible. When this method returns,
   * all are durable. The answers are in the order of the commits.
   */
  def writeAll(
      home: String, logId: Option[String], commits: Seq[UnwrittenCommit], outputs: Seq[OutputRows], conf: Map[String, String]): Seq[DurableCommit] = {
    def send(described: Seq[StoreCommit]) = Agent.call(AppendRequest(home, logId, described, outputs), conf).commits
    try send(commits.map(_.commit)) catch {
      case missing: CecException if missing.isA("LedgerMissing") => send(commits.map(_.withWholeLedger))
    }
  }

  def pairs(live: Iterable[(Long, Int)]): Seq[(Long, Long)] = live.map { case (at, count) => (at, count.toLong) }.toSeq

  private val (eager, grouped, flush, normalized, counted) = (1, 2, 4, 32, 64)

  /** The flags in the footer of a commit frame, as the log's format has them. */
  def flags(numbers: CommitNumbers, isGrouped: Boolean): Int =
    (if (numbers.kind == CommitKind.Eager) eager else 0) | (if (isGrouped) grouped else 0) |
      (if (numbers.kind == CommitKind.Flush) flush else 0) | (if (numbers.digestKind == DigestKind.OfNumbers) normalized else 0) |
      (if (numbers.isCounted) counted else 0)
}
