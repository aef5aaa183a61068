package org.apache.spark.sql.cec.state

import java.nio.file.Path
import java.util.ArrayList

import org.apache.spark.internal.Logging
import org.apache.spark.sql.catalyst.expressions.UnsafeRow
import org.apache.spark.sql.cec.agent.CecException
import org.apache.spark.sql.execution.streaming.state.StateStoreId

/** What a batch was, for its commit: input tuples, watermark, and when its task began (`System.nanoTime`). */
private[cec] final case class BatchFacts(inputs: Long, watermarkMs: Long, startedNs: Long)

/** What a user sees of the last commit. */
private[cec] final case class CommitMetrics(
    opened: Long = 0, checked: Long = 0, closed: Long = 0, extent: Long = 0, replay: Long = 0, dirty: Long = 0,
    logBytes: Long = 0, commitMs: Long = 0, agentUs: Long = 0, held: Long = 0, recoveryEstimateMs: Long = 0)

/** Enough to take back the last commit in memory, for a batch that is run again. */
private final class LastCommit(
    val touched: ArrayList[Touched], val renewed: Iterable[Renewed], val sums: Sums, val checkpointId: Option[String],
    val plan: Option[CheckPlan], val hold: Option[HoldRule])

/**
 * The windows of one store with their books: footprints, dirty windows, digest, plan, and the place in the log's chain of
 * checkpoints. Not safe for several threads.
 *
 * @param keyFields fields of a state key row
 * @param valueFields fields of a value row
 * @param prefixFields fields of a prefix row, and how to get it from a key; None in a store without prefix
 * @param order of the keys in a store with range scans
 * @param exact whether values that are equal have equal bytes however they were summed up: no floating-point numbers
 * @param deferred whether touched windows may be left dirty by a commit
 * @param replayTo version at which this run's replay ends
 */
private[cec] final class StoreState(
    id: StateStoreId,
    log: StoreLog,
    keyFields: Int,
    valueFields: Int,
    prefixFields: Option[(Int, UnsafeRow => UnsafeRow)],
    order: Option[RangeOrder],
    exact: Boolean,
    deferred: Boolean,
    replayTo: Long) extends Logging {
  private var windows = newWindows()
  private val books = new WindowBooks
  private val checks = new CheckChoice(books, new Budget, deferred)
  private var wantedDigest = 0L
  private var wantedDirty = 0L
  private var ecLoadMs = 0.0

  /** The sums at the present version, without the batch under way. */
  private var sumsBefore = Sums()
  private var plan: Option[CheckPlan] = None
  private var chain = Map.empty[Long, String]
  private var lastCommit: Option[LastCommit] = None
  private var liveIsWhole = true
  private var loaded = false

  /** Id of the checkpoint that the present version is, and of the one that the last commit rested on. */
  var checkpointId: Option[String] = None
  var baseCheckpointId: Option[String] = None
  var metrics: CommitMetrics = CommitMetrics()

  def live: LiveWindows = windows

  def version: Long = windows.version

  def isReplaying: Boolean = windows.hold.isDefined

  def hasPrefix: Boolean = prefixFields.isDefined || order.isDefined

  def hasOrder: Boolean = order.isDefined

  /** Brings the store to `wanted`, and begins a batch there. */
  def begin(wanted: Long, uniqueId: Option[String]): Unit = {
    if (loaded && version == wanted) windows.rollback()
    else if (loaded && version == wanted + 1 && lastCommit.isDefined) retreat()
    else load(wanted, uniqueId)
    if (uniqueId.isDefined && !isReplaying && checkpointId != uniqueId && wanted > 0) load(wanted, uniqueId)
  }

  /** Takes back what the batch under way did. */
  def rollback(): Unit = windows.rollback()

  /**
   * One commit, as the shim does it.
   *
   *  1. Sort what the batch touched into opened, closed and dirty windows.
   *  1. In a replay the log has this commit already: only the books move on.
   *  1. Spool the opened and closed windows, then the checks: all dirty ones if eager, else what the plan asks for and
   *     the time budget allows.
   *  1. One call to the agent; when it returns, the commit is durable.
   *  1. Bring the books up to date.
   */
  def commit(facts: BatchFacts): Long = {
    val startedNs = System.nanoTime()
    val changes = Changes.of(windows) // 1
    if (isReplaying) return replayed(changes) // 2
    val spool = new RecordSpool(prefixFields.isDefined, () => log.spoolFile(estimate(changes)))
    try {
      changes.opened.foreach(spool.open) // 3
      changes.closed.foreach(spool.close)
      val checked = checks.choose(version, changes, plan, facts.inputs, startedNs - facts.startedNs, windows.sums.rows, spool)
      val file = spool.finish()
      val next = books.after(version, changes, checked)
      val numbers = CommitNumbers(
        version + 1, next.openWindows, next.dirtyFrom, next.dirtyWindows, spool.opened, spool.checked, spool.closed, facts.inputs,
        facts.watermarkMs, windows.sums.digest, (System.nanoTime() - startedNs) / 1000, !deferred, next.live(liveIsWhole), liveIsWhole)
      val newId = log.newCheckpointId()
      val answer = append(numbers, next, newId, file) // 4
      advance(changes, books.apply(version, changes, checked)) // 5
      checkpointId = Some(newId)
      plan = Some(answer.plan)
      metrics = CommitMetrics(
        spool.opened, spool.checked, spool.closed, answer.extent, answer.replay, books.dirtyWindows, answer.bytes,
        (System.nanoTime() - startedNs) / 1000000, answer.agentUs, 0L, answer.recoveryEstimateMs)
    } finally spool.close()
    version
  }

  private def append(numbers: CommitNumbers, next: NextBooks, newId: String, file: Option[Path]): CommitAnswer = {
    liveIsWhole = true // until the agent has answered, its books are in doubt
    val answer = try log.append(numbers, newId, checkpointId, file) catch {
      case missing: CecException if missing.kind == "BooksMissing" =>
        log.append(numbers.copy(live = next.live(true), liveIsWhole = true), newId, checkpointId, file)
    }
    liveIsWhole = false
    answer
  }

  private def advance(changes: Changes, renewed: Iterable[Renewed]): Unit = {
    val before = sumsBefore
    lastCommit = Some(new LastCommit(windows.advance(), renewed, before, checkpointId, plan, windows.hold))
    sumsBefore = windows.sums
    baseCheckpointId = checkpointId
  }

  private def newWindows() = new LiveWindows(prefixFields.map(_._2), order)

  private def estimate(changes: Changes): Long = {
    val rows = windows.sums.rows
    (changes.opened.size + changes.dirty.size + 1024L) * (if (rows == 0) 128L else windows.sums.bytes / rows + 64L)
  }

  /** A commit during a replay: nothing is written, and no window may open or close. */
  private def replayed(changes: Changes): Long = {
    if (changes.closed.nonEmpty || changes.opened.nonEmpty) {
      throw new CecException("Divergence",
        s"the replay of batch $version would close ${changes.closed.size} and open ${changes.opened.size} windows of store $id that " +
          s"are open at version $replayTo: the query gives other results for the same input. Mark its nondeterministic functions as " +
          "such, or set spark.sql.streaming.stateStore.cec.mode=eager for new checkpoints")
    }
    books.markDirty(version, changes)
    advance(changes, Nil)
    checkpointId = chain.get(version).orElse(checkpointId)
    metrics = CommitMetrics(
      dirty = books.dirtyWindows, held = windows.hold.map(_.held).getOrElse(0L), recoveryEstimateMs = metrics.recoveryEstimateMs)
    if (version == replayTo) endReplay()
    version
  }

  private def endReplay(): Unit = {
    val held = windows.hold.map(_.held).getOrElse(0L)
    windows.hold = None
    val digest = windows.sums.digest
    val right = digest == wantedDigest && books.dirtyWindows == wantedDirty
    if (!right) {
      val differs = s"store $id differs from what was committed at version $version after the replay: digest " +
        f"$digest%016x for $wantedDigest%016x, ${books.dirtyWindows} dirty windows for $wantedDirty"
      if (exact || books.dirtyWindows != wantedDirty) {
        throw new CecException("Divergence",
          s"$differs. The query, its input or its functions are not what they were: give them back as they were and restart (nothing " +
            "was written by this replay). To change a query, run it as it was with mode=eager until it has committed a batch, and change it then")
      }
      logWarning(s"$differs. Sums of floating-point numbers may differ in their last bit; anything else means that the query gives " +
        "other results for the same input")
    }
    log.loaded(version, ecLoadMs, Some(right), held)
  }

  private def retreat(): Unit = lastCommit.foreach { last =>
    windows.rollback()
    last.renewed.foreach { before =>
      before.window.footprint = before.footprint
      before.window.dirtySince = before.dirtySince
    }
    windows.retreat(last.touched, last.sums)
    windows.hold = last.hold
    sumsBefore = last.sums
    checkpointId = last.checkpointId
    plan = last.plan
    lastCommit = None
    liveIsWhole = true
    books.rebuild(windows.windows)
  }

  /** Loads the eventual checkpoint of `wanted`, or, if a replay is due, that of its end. */
  private def load(wanted: Long, uniqueId: Option[String]): Unit = {
    reset(wanted)
    val replaying = wanted < replayTo
    val at = Math.max(wanted, replayTo)
    if (at > 0 && (wanted > 0 || replaying)) {
      val startedNs = System.nanoTime()
      val checkpoint = log.load(at, if (replaying) None else uniqueId)
      // Batches from D on must run on this store: those before `wanted` will not, in a replay or without one.
      if (checkpoint.dirtyFrom < wanted) throw StoreState.dirtyElsewhere(id, at, checkpoint)
      checkpoint.spool.foreach(CheckpointSpool.foreach(_)(loadRow))
      takeOver(checkpoint, at, replaying)
      ecLoadMs = (System.nanoTime() - startedNs) / 1e6
      if (!replaying && at == replayTo) log.loaded(at, ecLoadMs, Some(true), 0L)
    }
    loaded = true
  }

  private def reset(wanted: Long): Unit = {
    windows = newWindows()
    windows.version = wanted
    books.rebuild(Iterator.empty)
    sumsBefore = Sums()
    plan = None
    chain = Map.empty
    lastCommit = None
    liveIsWhole = true
    loaded = false
    checkpointId = None
    baseCheckpointId = None
  }

  private def loadRow(windowId: Array[Byte], key: Array[Byte], value: Array[Byte], footprint: Long): Unit = {
    val valueRow = Window.row(value, valueFields)
    prefixFields match {
      case None =>
        val row = Window.row(windowId, keyFields)
        val window = windows.load(new KeyWindow(row, row.hashCode), row).asInstanceOf[KeyWindow]
        window.value = valueRow
        window.footprint = footprint
        windows.counted(row, valueRow)
      case Some((fields, _)) =>
        val row = Window.row(windowId, fields)
        val window = windows.load(new GroupWindow(row, row.hashCode), row).asInstanceOf[GroupWindow]
        val keyRow = Window.row(key, keyFields)
        window.rows.put(keyRow, valueRow)
        window.footprint = footprint
        windows.counted(keyRow, valueRow)
    }
  }

  private def takeOver(checkpoint: CheckpointAnswer, at: Long, replaying: Boolean): Unit = {
    books.rebuild(windows.windows)
    sumsBefore = windows.sums
    if (books.openWindows != checkpoint.openWindows) {
      throw new CecException("DamagedLog",
        s"store $id: the eventual checkpoint of version $at has ${books.openWindows} windows where ${checkpoint.openWindows} were open")
    }
    chain = checkpoint.checkpointIds
    plan = Some(checkpoint.plan)
    metrics = CommitMetrics(recoveryEstimateMs = checkpoint.recoveryEstimateMs)
    wantedDigest = checkpoint.digest
    wantedDirty = checkpoint.dirtyWindows
    if (replaying) {
      windows.hold = Some(new HoldRule(checkpoint.dirtyFrom))
      checkpointId = chain.get(version)
    } else {
      checkpointId = chain.get(at)
      val digest = windows.sums.digest
      if (digest != wantedDigest) {
        throw new CecException("DamagedLog",
          f"store $id: the eventual checkpoint of version $at has digest $digest%016x where $wantedDigest%016x was committed; run " +
            "`cec verify` on the checkpoint")
      }
    }
  }
}

private object StoreState {
  def dirtyElsewhere(id: StateStoreId, version: Long, checkpoint: CheckpointAnswer): CecException =
    new CecException("RestartNeeded",
      s"store $id at version $version is not in the log alone: ${checkpoint.dirtyWindows} of its windows changed after their last " +
        "footprint, and were in the memory of an executor that is gone, or the session that started this query has no Spark CEC " +
        "extension. Restart the query: a restart replays what is missing. To run without replays set " +
        "spark.sql.streaming.stateStore.cec.mode=eager")
}
