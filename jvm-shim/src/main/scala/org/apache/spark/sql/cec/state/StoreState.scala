package org.apache.spark.sql.cec.state

import java.nio.file.Path
import java.util.ArrayList

import org.apache.spark.internal.Logging
import org.apache.spark.sql.catalyst.expressions.UnsafeRow
import org.apache.spark.sql.cec.agent.CecException
import org.apache.spark.sql.execution.streaming.state.StateStoreId

/**
 * What a batch was, for its commit: input tuples, those of them that came by a shuffle, and when its task began (`System.nanoTime`).
 *
 * @param named whether Spark names a version by its commit's id: by that of the first commit, if a batch is run twice
 */
private[cec] final case class BatchFacts(inputs: Long, shuffled: Long, startedNs: Long, named: Boolean = false)

/** What a user sees of the last commit. */
private[cec] final case class CommitMetrics(
    opened: Long = 0, checked: Long = 0, closed: Long = 0, extent: Long = 0, replay: Long = 0, dirty: Long = 0,
    logBytes: Long = 0, commitMs: Long = 0, agentUs: Long = 0, held: Long = 0, recoveryEstimateMs: Long = 0)

/**
 * How a run begins.
 *
 * @param replayTo version at which its replay ends
 * @param base version whose eventual checkpoint its replay begins with; before `replayTo` where a frame that this one needs is lost
 * @param counted whether a batch brings the store the same number of shuffle records however its input is split
 * @param accept whether a replay that cannot be finished is accepted as it is
 */
private[cec] final case class Recovery(replayTo: Long, base: Long, counted: Boolean, accept: Boolean)

/**
 * The windows of one store with their books: footprints, dirty windows, digest, plan, and the place in the log's chain of
 * checkpoints. Not safe for several threads.
 *
 * @param keyFields fields of a state key row
 * @param valueFields fields of a value row
 * @param prefixFields fields of a prefix row, and how to get it from a key; None in a store without prefix
 * @param order of the keys in a store with range scans
 * @param rowDigest of the store's values
 * @param averages of integers in the values, if there are any
 * @param deferred whether touched windows may be left dirty by a commit
 * @param recovery what the run knows of its beginning
 * @param requestHandOver asks the other executors for the store at a version: whether one had it, and has written it
 * @param describe a state key, for people
 * @param onDisk whether windows that no batch has touched lately leave the heap for the local disk
 * @param silent whether commits write nothing: what they left is written when the driver asks for it, all at once
 */
private[cec] final class StoreState(
    id: StateStoreId,
    log: AgentStoreClient,
    keyFields: Int,
    valueFields: Int,
    prefixFields: Option[(Int, UnsafeRow => UnsafeRow)],
    order: Option[RangeOrder],
    rowDigest: RowDigest,
    averages: Option[ExactAverages],
    deferred: Boolean,
    recovery: Recovery,
    requestHandOver: Long => Boolean,
    describe: UnsafeRow => String,
    onDisk: Boolean,
    silent: Boolean) extends Logging {
  import recovery.{base, replayTo}

  private val idFields = prefixFields.map(_._1).getOrElse(keyFields)
  private val cold = if (onDisk) new ColdWindows(keyFields, valueFields, prefixFields.isDefined) else null
  private val books: CheckpointIndex = new CheckpointIndex(cold, windows.warmUp(_))
  private var windows = newWindows()
  private val checks = new CheckpointSelector(books, new CheckpointTimeBudget, deferred, prefixFields.isDefined)
  private var ecLoadMs = 0.0

  /** The checkpoint that the present windows were loaded from. */
  private var origin: Option[CheckpointAnswer] = None

  private val check = new ReplayCheck(id, recovery, rowDigest)

  /** Mutations that the present replay has held back. */
  private var held = 0L

  /** Without the batch under way. */
  private var present = StoreVersion.unloaded

  /** The version before, as long as the commit that made the present one can be taken back. */
  private var previous: Option[PreviousVersion] = None

  /** The version that was taken back for the run of its batch that is under way. */
  private var reverted: Option[RevertedVersion] = None
  private var liveIsWhole = true
  private var cooledAt = -1L
  var metrics: CommitMetrics = CommitMetrics()

  def live: LiveWindows = windows

  def openWindows: Long = books.openWindows

  def version: Long = windows.version

  def checkpointId: Option[String] = present.checkpointId

  def baseCheckpointId: Option[String] = present.baseCheckpointId

  def isReplaying: Boolean = version < replayTo

  /** Whether a replay of this run came out different: such a store answers nothing but that. */
  def isRefused: Boolean = present.standing.isInstanceOf[Standing.Refused]

  def hasPrefix: Boolean = prefixFields.isDefined || order.isDefined

  def hasOrder: Boolean = order.isDefined

  /** Brings the store to `wanted`, and begins a batch there. */
  def begin(wanted: Long, uniqueId: Option[String]): Unit = {
    present.standing match {
      case refused: Standing.Refused => throw refused.difference
      case Standing.Unloaded => load(wanted, uniqueId)
      case Standing.Replaying if !isReplaying && version == wanted => load(wanted, uniqueId) // its end was not proved
      case _ if version == wanted => windows.rollback()
      case _ if version == wanted + 1 && previous.isDefined => retreat()
      case _ if version == wanted - 1 && reverted.isDefined => reinstate()
      case Standing.Replaying if recovery.accept && wanted == replayTo => acceptAsItIs("the replay was not finished")
      case _ => load(wanted, uniqueId)
    }
    if (uniqueId.isDefined && !isReplaying && checkpointId != uniqueId && wanted > 0) load(wanted, uniqueId)
    cool()
  }

  /** Once in each batch: an operator may read first and ask for the store again to write what it has read. */
  private def cool(): Unit = if (onDisk && reverted.isEmpty && cooledAt != version) {
    windows.cool(previous.toSeq.flatMap(last => Seq(last.touched, last.renewed)))
    cooledAt = version
  }

  /** Begins a batch at `wanted` as if the state there had no windows, and none before it. */
  def beginEmpty(wanted: Long): Unit = {
    reset(wanted)
    stand(Verified.empty(wanted))
  }

  /** Takes back what the batch under way did. */
  def rollback(): Unit = {
    windows.rollback()
    reinstate()
  }

  /**
   * Takes back what is later than `wanted`: a batch under way, or the last commit. Answers the proof that the windows are those of
   * `wanted`; None if they are of another version, or a replay has not proved them.
   */
  def rewindTo(wanted: Long): Option[Verified] = present.standing match {
    case _: Verified =>
      rollback()
      if (version == wanted + 1 && previous.isDefined) retreat()
      Some(present.standing).collect { case proof: Verified if version == wanted => proof }
    case _ => None
  }

  /** Says that nothing more will be asked of this store. */
  def close(): Unit = {
    try if (onDisk) cold.clear() finally log.close()
  }

  /** Writes what is dirty at the last commit, if the windows are proved to be those of that commit. */
  def settle(): Unit = rewindTo(version).foreach(flush)

  /**
   * Writes all dirty windows, as the rest of the commit that made the present version: its eventual checkpoint is then the
   * whole state. For between two batches.
   */
  def flush(proof: Verified): Unit = if (silent) writeUnwritten(proof) else checkpointId.filter(_ => books.dirtyWindows > 0).foreach { id =>
    writeAgain(proof, books.dirtyBefore(Long.MaxValue), CommitKind.Flush, id, Some(id), inputs = 0)
  }

  /** Writes what the commits since the newest frame have left: one frame for all of them, which rests on that one. */
  private def writeUnwritten(proof: Verified): Unit = if (version > present.unlogged.version) {
    val closed = present.unlogged.closedIds.filterNot(id => windows.isOpen(Window.row(id, idFields)))
    writeAgain(
      proof, books.dirtyBefore(Long.MaxValue), CommitKind.Eager, checkpointId.getOrElse(log.newCheckpointId()), present.unlogged.checkpointId,
      inputs = 0, closed)
  }

  /**
   * Writes windows once more, for the version that is there.
   *
   * @param proof that this is the version which was committed
   * @param on the commit that the frame rests on, or completes
   * @param closed ids of windows that the log takes for open
   */
  private def writeAgain(
      proof: Verified, windowsToWrite: Iterator[Window], kind: CommitKind.Value, id: String, on: Option[String], inputs: Long,
      closed: Seq[Array[Byte]] = Nil): Unit = {
    require(proof eq present.standing, s"store $id: the proof is of version ${proof.version}, the windows are of version $version")
    val startedNs = System.nanoTime()
    val chosen = new ArrayList[Window]()
    windowsToWrite.foreach(chosen.add)
    val spool = new RecordSpool(prefixFields.isDefined, () => log.spoolFile(estimate(chosen.size)))
    try {
      chosen.forEach(spool.check(_))
      closed.foreach(spool.close(_))
      val file = spool.finish()
      val next = books.after(version - 1, BatchDelta.None, chosen)
      val numbers = CommitNumbers(
        version, next.openWindows, next.dirtyFrom, next.dirtyWindows, 0, spool.checked, spool.closed, inputs, windows.sums,
        rowDigest.kind, (System.nanoTime() - startedNs) / 1000, kind, next.live(true), liveIsWhole = true)
      val answer = log.append(proof, numbers, id, on, file)
      books.apply(version - 1, BatchDelta.None, chosen, next)
      present = present.copy(checkpointId = Some(id), plan = Some(answer.plan), unlogged = UnloggedChanges.since(version, id))
      forgetOthers() // they know footprints of before
    } finally spool.close()
  }

  /**
   * One commit, as the shim does it.
   *
   *  1. Sort what the batch touched into opened, closed and dirty windows.
   *  1. In a replay the log has this commit already: only the books move on. So it has if the batch was run before, with the
   *     same result, and Spark has the id of that commit. A silent store leaves it at that, too.
   *  1. Spool the opened and closed windows, then the checks: all dirty ones if eager, else what the plan asks for and
   *     the time budget allows.
   *  1. One call to the agent; when it returns, the commit is durable.
   *  1. Bring the books up to date.
   */
  def commit(facts: BatchFacts): Long = {
    val startedNs = System.nanoTime()
    val proof = present.standing match {
      case verified: Verified => verified
      case Standing.Replaying => return replayed(facts) // 2
      case refused: Standing.Refused => throw refused.difference
      case Standing.Unloaded => throw new IllegalStateException(s"store $id has no version to commit on")
    }
    val changes = BatchDelta.of(windows, averages) // 1
    if (facts.named && reverted.exists(first => first.known.inputs == facts.inputs && first.known.totals == windows.sums)) {
      reinstate()
      return version
    }
    if (silent) return unwrittenCommit(proof, changes, facts)
    val spool = new RecordSpool(prefixFields.isDefined, () => log.spoolFile(estimate(changes.opened.size + changes.kept)))
    try {
      changes.opened.forEach(spool.open(_)) // 3
      changes.closed.forEach(spool.close(_))
      val checked = checks.choose(version, changes, present.plan, facts.inputs, startedNs - facts.startedNs, windows.sums.rows, spool)
      val file = spool.finish()
      val next = books.after(version, changes, checked)
      val numbers = CommitNumbers(
        version + 1, next.openWindows, next.dirtyFrom, next.dirtyWindows, spool.opened, spool.checked, spool.closed, facts.inputs,
        windows.sums, rowDigest.kind, (System.nanoTime() - startedNs) / 1000,
        if (deferred) CommitKind.Deferred else CommitKind.Eager, next.live(liveIsWhole), liveIsWhole)
      val newId = log.newCheckpointId()
      val answer = append(proof, numbers, next, newId, file) // 4
      val renewed = books.apply(version, changes, checked, next) // 5
      advance(present.next(proof.next, windows.sums, Some(newId), facts.inputs).copy(plan = Some(answer.plan)), renewed)
      metrics = CommitMetrics(
        spool.opened, spool.checked, spool.closed, answer.extent, answer.replay, books.dirtyWindows, answer.bytes,
        (System.nanoTime() - startedNs) / 1000000, answer.agentUs, 0L, answer.recoveryEstimateMs)
    } finally spool.close()
    version
  }

  /** A commit of a silent store: only the books move on. */
  private def unwrittenCommit(proof: Verified, changes: BatchDelta, facts: BatchFacts): Long = {
    val unlogged = present.unlogged.after(changes)
    val renewed = books.apply(version, changes, writes = false)
    advance(present.next(proof.next, windows.sums, Some(log.newCheckpointId()), facts.inputs).copy(unlogged = unlogged), renewed)
    metrics = CommitMetrics(changes.opened.size, 0, changes.closed.size, dirty = books.dirtyWindows)
    version
  }

  private def append(proof: Verified, numbers: CommitNumbers, next: NextBooks, newId: String, file: Option[Path]): CommitAnswer = {
    liveIsWhole = true // until the agent has answered, its ledger is in doubt
    val answer = try log.append(proof, numbers, newId, checkpointId, file) catch {
      case missing: CecException if missing.kind == "LedgerMissing" =>
        log.append(proof, numbers.copy(live = next.live(true), liveIsWhole = true), newId, checkpointId, file)
    }
    liveIsWhole = false
    answer
  }

  private def advance(after: StoreVersion, renewed: UndoStamps): Unit = {
    previous = Some(new PreviousVersion(present, windows.advance(), renewed))
    reverted = None
    present = after
  }

  private def stand(standing: Standing): Unit = present = present.copy(standing = standing)

  private def hold(rule: Option[ReplayVisibility]): Unit = {
    present = present.copy(hold = rule)
    windows.hold = rule
  }

  /** No other version than the present one can be had without the log. */
  private def forgetOthers(): Unit = {
    previous = None
    reverted = None
    liveIsWhole = true
  }

  /** Makes `known` the present version, whose windows are there again. */
  private def goTo(known: StoreVersion): Unit = {
    present = known
    windows.hold = known.hold
    liveIsWhole = true
    books.rebuild(windows.warm)
  }

  private def newWindows() = new LiveWindows(keyFields, valueFields, prefixFields.map(_._2), order, rowDigest, cold, books)

  private def estimate(rowsToWrite: Int): Long = {
    val rows = windows.sums.rows
    (rowsToWrite + 1024L) * (if (rows == 0) 128L else windows.sums.bytes / rows + 64L)
  }

  /** A commit during a replay: nothing is written. Under the hold rule no window may open or close; behind it all is as it was first. */
  private def replayed(facts: BatchFacts): Long = try {
    check.inputs(version, facts.shuffled, origin.flatMap(_.inputs.get(version + 1)))
    if (present.hold.isDefined) {
      check.closes(version, BatchDelta.of(windows, averages).closed.size)
      windows.reopen()
    }
    val changes = BatchDelta.of(windows, averages)
    val renewed = books.apply(version, changes, writes = true)
    val id = checkpointId.orElse(Some(log.newCheckpointId())) // of version 0 there is none, and Spark wants one
    advance(present.next(Standing.Replaying, windows.sums, id, facts.inputs).copy(baseCheckpointId = id), renewed)
    present.hold.foreach(hold => held = hold.held)
    metrics = CommitMetrics(dirty = books.dirtyWindows, held = held, recoveryEstimateMs = metrics.recoveryEstimateMs)
    if (version == base) endHold()
    else if (version > base && version < replayTo) compareWhole(log.remains(version).footer)
    if (version == replayTo) endReplay(facts)
    version
  } catch {
    case difference: CecException if difference.kind == ReplayCheck.Divergence =>
      reset(version)
      stand(new Standing.Refused(difference))
      throw difference
  }

  /** The windows that were held back are what they were at the version that they were loaded of: they are compared with its footer. */
  private def endHold(): Unit = {
    hold(None)
    origin.foreach(from => check.compare(windows, books.openWindows, from.footer, Some((books.dirtyWindows, from.dirtyWindows))))
  }

  /**
   * The end of a replay:
   *
   *  1. If it began before a lost frame, compare what came of it with what is left of the commit at its end.
   *  1. Write what is dirty, or, after a lost frame, everything, so that no recovery begins before here again.
   *  1. Report.
   */
  private def endReplay(facts: BatchFacts): Unit = {
    val remains = remainsOfEnd
    compareWhole(remains.footer)
    check.end(version) match {
      case Left(difference) => acceptAsItIs(difference)
      case Right(proof) =>
        stand(proof)
        val compared = base == replayTo || remains.footer.isDefined
        if (!compared) {
          logWarning(s"what was committed of store $id at version $version is lost, its footer too: that batch ${version - 1} was run as it was " +
            "the first time cannot be told by a digest")
        }
        writeEnd(proof, remains, facts.inputs)
        log.loaded(version, ecLoadMs, Option.when(compared)(true), held, Nil)
    }
  }

  /** Compares windows that were made anew, each of them, with what is left of the commit that made them first. */
  private def compareWhole(known: Option[Footer]): Unit =
    known.foreach(check.compare(windows, books.openWindows, _, dirty = None))

  /** What a replay that began before a lost frame finds at its end. */
  private def remainsOfEnd: Remains = if (base < replayTo) log.remains(replayTo) else Remains()

  /** What the log must have of the version at which a replay ends. */
  private def writeEnd(proof: Verified, remains: Remains, inputs: Long): Unit =
    if (base == replayTo) flush(proof)
    else writeAgain(
      proof, books.withFootprintBefore(Long.MaxValue), CommitKind.Eager, remains.checkpointId.getOrElse(log.newCheckpointId()), on = None, inputs)

  /** Goes on with the windows as they are, at the version at which the replay was to end. */
  private def acceptAsItIs(why: String): Unit = {
    present.hold.foreach(hold => held = hold.held)
    val unsure = windows.windows.filter(w => w.isOpen && (w.isDirty || base < replayTo || w.footprint < replayTo)).map(w => describe(Window.row(w.id, idFields))).toSeq
    logWarning(s"$why. Accepted (spark.sql.streaming.stateStore.cec.onDivergence=accept): ${unsure.size} windows of store $id may differ from what " +
      "was committed; the recovery's report in cec/recoveries/ of the checkpoint names them")
    windows.rollback()
    hold(None)
    windows.version = replayTo
    forgetOthers()
    val proof = Verified.accepted(replayTo)
    stand(proof)
    writeEnd(proof, remainsOfEnd, inputs = 0)
    log.loaded(replayTo, ecLoadMs, Some(false), held, unsure)
  }

  private def retreat(): Unit = previous.foreach { before =>
    windows.rollback()
    reverted = Some(new RevertedVersion(present, before.imagesNow, before))
    (0 until before.renewed.size).foreach(before.renewed.restamp)
    windows.restore(before.touched, before.known.totals, version - 1)
    previous = None
    goTo(before.known)
  }

  /** Has the version back that was taken back last. */
  private def reinstate(): Unit = reverted.foreach { later =>
    windows.rollback()
    windows.restore(later.images, later.known.totals, version + 1)
    previous = Some(later.previous)
    reverted = None
    goTo(later.known)
  }

  /** Loads the eventual checkpoint of `wanted`, or, if a replay is due, the one that it begins with. */
  private def load(wanted: Long, uniqueId: Option[String]): Unit = {
    reset(wanted)
    // Only what the driver has asked for is in the log: what the run goes on from, or what another executor has let go.
    val unasked = silent && wanted > replayTo && !requestHandOver(wanted)
    val replaying = wanted < replayTo
    val at = if (replaying) base else wanted
    if (at > 0) {
      val startedNs = System.nanoTime()
      val checkpoint = try wholeCheckpoint(at, wanted, if (replaying) None else uniqueId) catch {
        case missing: CecException if unasked && missing.kind == "DamagedLog" => throw StoreState.dirtyElsewhere(id, wanted, "some")
      }
      windows.expect(checkpoint.footer.openWindows)
      checkpoint.spool.foreach { file =>
        if (prefixFields.isEmpty) CheckpointSpool.foreachKey(file)(windows.loadKey(_, _, _))
        else CheckpointSpool.foreachRow(file)((id, key, value, footprint) => windows.loadRow(Window.row(id, idFields), key, value, footprint))
      }
      windows.loaded()
      takeOver(checkpoint, underHold = wanted < at)
      ecLoadMs = (System.nanoTime() - startedNs) / 1e6
      if (checkpoint.dirtyFrom < wanted) acceptAsItIs(s"the replay of store $id was not begun")
      else {
        // Under the hold rule the windows are compared once they are those of the checkpoint.
        val proof = if (wanted < at) Standing.Replaying else check.loaded(windows, checkpoint)
        stand(if (replaying) Standing.Replaying else proof)
        if (!replaying && at == replayTo) log.loaded(at, ecLoadMs, Some(true), 0L, Nil)
      }
    } else if (wanted > 0) throw StoreState.dirtyElsewhere(id, wanted, "all")
    else stand(if (replaying) Standing.Replaying else Verified.empty(wanted))
  }

  /**
   * The eventual checkpoint of `at`. Batches from D on must run on this store, so those before `wanted` must not be
   * among them: what is dirty then is in another executor, which is asked to write it.
   */
  private def wholeCheckpoint(at: Long, wanted: Long, attempt: Option[String]): CheckpointAnswer = {
    val first = log.load(at, attempt)
    val checkpoint = if (first.dirtyFrom >= wanted || wanted < replayTo || !requestHandOver(at)) first else {
      first.discard()
      log.load(at, attempt)
    }
    if (checkpoint.dirtyFrom < wanted && !(recovery.accept && at == replayTo && wanted == replayTo)) {
      checkpoint.discard()
      throw StoreState.dirtyElsewhere(id, at, checkpoint.dirtyWindows.toString)
    }
    checkpoint
  }

  private def reset(wanted: Long): Unit = {
    if (onDisk) cold.clear()
    cooledAt = -1
    windows = newWindows()
    windows.version = wanted
    books.rebuild(Iterator.empty)
    present = StoreVersion.unloaded
    forgetOthers()
    origin = None
    check.reset()
    held = 0L
  }

  private def takeOver(checkpoint: CheckpointAnswer, underHold: Boolean): Unit = {
    if (books.openWindows != checkpoint.footer.openWindows) {
      throw new CecException("DamagedLog",
        s"store $id: the eventual checkpoint of version ${checkpoint.version} has ${books.openWindows} windows where ${checkpoint.footer.openWindows} " +
          "were open")
    }
    origin = Some(checkpoint)
    val commit = checkpoint.footer.checkpointId
    present = present.copy(
      totals = windows.sums, checkpointId = Some(commit), plan = Some(checkpoint.plan),
      unlogged = UnloggedChanges.since(checkpoint.version, commit))
    metrics = CommitMetrics(recoveryEstimateMs = checkpoint.recoveryEstimateMs)
    if (underHold) hold(Some(new ReplayVisibility(checkpoint.dirtyFrom)))
  }
}

private object StoreState {
  def dirtyElsewhere(id: StateStoreId, version: Long, windows: String): CecException =
    new CecException("RestartNeeded",
      s"store $id at version $version is not in the log alone: $windows of its windows changed after their last " +
        "footprint, and were in the memory of an executor that is gone, or the session that started this query has no Spark CEC " +
        "extension. Restart the query: a restart replays what is missing. To run without replays set " +
        "spark.sql.streaming.stateStore.cec.mode=eager")
}
