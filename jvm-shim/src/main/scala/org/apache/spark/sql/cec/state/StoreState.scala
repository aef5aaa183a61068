package org.apache.spark.sql.cec.state

import org.apache.spark.internal.Logging
import org.apache.spark.sql.catalyst.expressions.UnsafeRow
import org.apache.spark.sql.cec.agent.{CecException, DurableCommit}
import org.apache.spark.sql.execution.streaming.state.StateStoreId

/**
 * The facts of a batch that its commit needs.
 *
 * @param inputs input tuples
 * @param shuffled the shuffle records that came after the store had begun
 * @param startedNs when the task began to use the store (`System.nanoTime`)
 * @param named whether Spark names a version by its commit's id; if a batch runs twice, by the id of the first commit
 * @param isCounted whether a replay that counts shuffle records can compare their number with `inputs`
 */
private[cec] final case class BatchFacts(inputs: Long, shuffled: Long, startedNs: Long, named: Boolean = false, isCounted: Boolean = true)

/** The numbers of the last commit that Spark's progress shows. */
private[cec] final case class CommitMetrics(
    opened: Long = 0, checked: Long = 0, closed: Long = 0, extent: Long = 0, replay: Long = 0, dirty: Long = 0,
    logBytes: Long = 0, commitMs: Long = 0, agentUs: Long = 0, held: Long = 0, recoveryEstimateMs: Long = 0) {
  /** The numbers with those of a commit that is durable. */
  def after(written: DurableCommit): CommitMetrics = copy(
    extent = written.extent, replay = written.replay, logBytes = written.bytes, agentUs = written.agentUs,
    recoveryEstimateMs = written.recoveryEstimateMs.round)
}

/**
 * How a run begins.
 *
 * @param replayTo version at which the replay ends
 * @param base version whose eventual checkpoint the replay loads; if a frame is lost, an older version than `replayTo`
 * @param counted whether a batch always brings the store the same number of shuffle records, however its input is
 * split
 * @param accept whether the user accepts a replay that differs or cannot finish
 */
private[cec] final case class Recovery(replayTo: Long, base: Long, counted: Boolean, accept: Boolean)

/**
 * The windows of one store and all that it knows of them: books, digest, plan, and the newest commit in the log. Not
 * thread-safe.
 *
 * @param keyFields fields of a state key row
 * @param valueFields fields of a value row
 * @param prefixFields fields of a prefix row, and the function from a key to its prefix; None in a store without
 * prefix
 * @param order of the keys in a store with range scans
 * @param rowDigest of the store's values
 * @param averages finds averages of integers in the values; None: the values have no average
 * @param deferred whether a commit may leave windows dirty
 * @param recovery how the run begins
 * @param requestHandOver asks the other executors for the store at a version; true if one had it and wrote it
 * @param describe turns a state key into text for people
 * @param memory that the pages of all stores of this JVM may take
 * @param silent whether commits write nothing, until the driver asks for one frame of all of them
 * @param together whether a commit waits for the other stores of this JVM, which write together (`noteWritten`)
 */
private[cec] final class StoreState(
    id: StateStoreId,
    log: StoreLog,
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
    memory: PageMemory,
    silent: Boolean,
    together: Boolean) extends Logging {
  import recovery.{base, replayTo}

  private val idFields = prefixFields.map(_._1).getOrElse(keyFields)
  private var windows = newWindows()
  private val records = new CommitRecordChooser(new CheckpointTimeBudget, deferred)
  private var ecLoadMs = 0.0

  /** The checkpoint that the store loaded last. */
  private var loadedFrom: Option[CheckpointAnswer] = None

  private val replayCheck = new ReplayCheck(id, recovery, rowDigest)

  /** Mutations that the hold rule ignored in the present replay. */
  private var held = 0L

  /** The present version, without the batch under way. */
  private var present = StoreVersion.unloaded

  /** The version before the last commit. The store keeps it while it can take that commit back. */
  private var previous: Option[PreviousVersion] = None

  /** The version that the store took back because its batch runs again. */
  private var reverted: Option[RevertedVersion] = None
  private var liveIsWhole = true
  var metrics: CommitMetrics = CommitMetrics()

  def live: LiveWindows = windows

  private def books: CheckpointIndex = windows.books

  def openWindows: Long = books.openWindows

  def version: Long = windows.version

  def checkpointId: Option[String] = present.checkpointId

  def baseCheckpointId: Option[String] = present.baseCheckpointId

  def isReplaying: Boolean = version < replayTo

  /** Whether a replay of this run differed. The store then answers each task with that error. */
  def isRefused: Boolean = present.standing.isInstanceOf[Standing.Refused]

  def hasPrefix: Boolean = prefixFields.isDefined || order.isDefined

  def hasOrder: Boolean = order.isDefined

  /** Brings the store to version `wanted` and begins a batch there. */
  def begin(wanted: Long, uniqueId: Option[String]): Unit = {
    present.standing match {
      case refused: Standing.Refused => throw refused.difference
      case Standing.Unloaded => load(wanted, uniqueId)
      case Standing.Replaying if !isReplaying && version == wanted => load(wanted, uniqueId) // the store did not prove the end of the replay
      case _ if version == wanted && present.unwritten.isDefined => load(wanted, uniqueId) // the driver has named another commit
      case _ if version == wanted => trusted(windows.rollback())
      case _ if version == wanted + 1 && previous.isDefined => undoCommit()
      case _ if version == wanted - 1 && reverted.isDefined => redoCommit()
      case Standing.Replaying if recovery.accept && wanted == replayTo => acceptWindows("the replay was not finished")
      case _ => load(wanted, uniqueId)
    }
    if (uniqueId.isDefined && !isReplaying && checkpointId != uniqueId && wanted > 0) load(wanted, uniqueId)
  }

  /** Begins a batch at `wanted` with no windows and no earlier version. */
  def beginEmpty(wanted: Long): Unit = {
    reset(wanted)
    setStanding(Verified.empty(wanted))
  }

  /** Takes the batch under way back. */
  def rollback(): Unit = if (present.standing != Standing.Unloaded) {
    trusted(windows.rollback())
    redoCommit()
  }

  /** Changes the windows. If that fails half way, nobody may trust them, and the store loads again. */
  private def trusted[A](change: => A): A = try change catch {
    case failure: Throwable =>
      setStanding(Standing.Unloaded)
      throw failure
  }

  /** The proof of the present version; None if its windows are not proved. */
  private def proof: Option[Verified] = Some(present.standing).collect { case known: Verified => known }

  /**
   * Takes back a batch under way or the last commit, if it is later than `wanted`. Returns the proof of version
   * `wanted`; None if the windows are of another version or not proved.
   */
  def rewindTo(wanted: Long): Option[Verified] = {
    proof.foreach(_ => rollback())
    if (proof.isDefined && version == wanted + 1 && previous.isDefined) undoCommit()
    proof.filter(_ => version == wanted)
  }

  /**
   * Writes version `wanted` whole, and first the commit after it, if the store has made one. Spark may count that
   * commit: a second run of its batch may only look at some rows, and then commits nothing. Returns false if the store
   * cannot go back to `wanted`. A silent store leaves the commit out: a restart has an older version.
   */
  def writeWhole(wanted: Long): Boolean = {
    proof.foreach(_ => rollback())
    if (version == wanted + 1 && isReversible) proof.foreach(writeRest)
    val found = rewindTo(wanted)
    found.foreach(flush)
    found.isDefined
  }

  private def isReversible: Boolean = previous.isDefined && !silent

  /** Frees the store's resources. Nobody may use the store after this call. */
  def close(): Unit = {
    try discardUnwritten() finally try windows.close() finally log.close()
  }

  /** Writes the last commit whole, and the version before it: Spark may ask another executor for either. */
  def settle(): Unit = {
    proof.foreach(_ => rollback())
    writeWhole(if (isReversible) version - 1 else version)
  }

  /**
   * Writes all dirty windows, as the rest of the last commit. The eventual checkpoint is then the whole state. Call it
   * between two batches only.
   */
  def flush(proof: Verified): Unit = (if (silent) writeUnlogged(proof) else writeRest(proof)).foreach(adopt)

  /** Writes the commit of the present version, if the log lacks it, then its dirty windows. The books do not change. */
  private def writeRest(proof: Verified): Option[WrittenChecks] = {
    write()
    checkpointId.filter(_ => books.dirtyWindows > 0)
      .map(id => writeChecks(proof, books.dirtyBefore(Long.MaxValue), CommitKind.Flush, id, Some(id), inputs = 0))
  }

  /**
   * The commit of version `wanted`, if the log lacks it. Takes back a batch under way first: a task may have looked at the
   * version before, and ended then.
   */
  def unwritten(wanted: Long): Option[UnwrittenCommit] = committed(wanted).flatMap(_.unwritten)

  /** The id of the commit of version `wanted`, if the log has it. Takes back a batch under way first. */
  def writtenCommit(wanted: Long): Option[String] = committed(wanted).filter(_.unwritten.isEmpty).flatMap(_.checkpointId)

  private def committed(wanted: Long): Option[StoreVersion] = {
    proof.foreach(_ => rollback())
    Option.when(version == wanted)(present)
  }

  /** Notes that the log has the commit of the present version. */
  def noteWritten(commit: UnwrittenCommit, answer: DurableCommit): Unit = {
    require(present.unwritten.contains(commit), s"store $id has another commit at version $version than the one that was written")
    present = present.copy(unwritten = None, plan = Some(new CheckpointPlan(answer.plan)))
    metrics = metrics.after(answer)
    commit.discard()
  }

  /** Writes the commit of the present version, if the log lacks it. */
  private def write(): Unit = present.unwritten.foreach(commit => noteWritten(commit, log.write(commit)))

  /** Removes the records of commits that nobody will write. */
  private def discardUnwritten(): Unit = {
    present.unwritten.foreach(_.discard())
    reverted.foreach(_.known.unwritten.foreach(_.discard()))
  }

  /** Forgets the version that was taken back: it will not come again. */
  private def discardReverted(): Unit = {
    reverted.foreach { later =>
      later.known.unwritten.foreach(_.discard())
      windows.forgetAfter(later.previous.touched)
    }
    reverted = None
  }

  /** Writes the changes of all commits since the newest frame as one frame, which names that frame as its base. */
  private def writeUnlogged(proof: Verified): Option[WrittenChecks] = Option.when(version > present.unlogged.version) {
    val closed = present.unlogged.closedIds.map(LiveWindows.row(_, idFields)).filterNot(windows.isOpen(_))
    writeChecks(
      proof, books.dirtyBefore(Long.MaxValue), CommitKind.Eager, checkpointId.getOrElse(log.newCheckpointId()), present.unlogged.checkpointId,
      inputs = 0, closed)
  }

  /**
   * Writes a frame with the given windows at the present version. The books do not change.
   *
   * @param proof that the windows are the state of the present version
   * @param id of the commit that the frame makes or completes
   * @param on the commit that the frame is based on
   * @param closed ids of windows that the log has open
   */
  private def writeChecks(
      proof: Verified, windowsToWrite: Iterator[Int], kind: CommitKind.Value, id: String, on: Option[String], inputs: Long,
      closed: Seq[UnsafeRow] = Nil): WrittenChecks = {
    require(proof eq present.standing, s"store $id: the proof is of version ${proof.version}, the windows are of version $version")
    val startedNs = System.nanoTime()
    val chosen = new IntList
    windowsToWrite.foreach(chosen.add)
    val spool = new RecordSpool(prefixFields.isDefined, () => log.spoolFile(estimateBytes(chosen.size)))
    try {
      chosen.foreach(spool.check(windows, _))
      closed.foreach(spool.close(_))
      val file = spool.finish()
      val next = books.after(version - 1, BatchDelta.None, chosen)
      val numbers = CommitNumbers(
        version, next.openWindows, next.dirtyFrom, next.dirtyWindows, 0, spool.checked, spool.closed, inputs, windows.sums,
        rowDigest.kind, (System.nanoTime() - startedNs) / 1000, kind, next.live(true), liveIsWhole = true, isCounted = false)
      val answer = log.write(log.describe(proof, numbers, id, isNamed = false, on, file, () => next.live(true)))
      WrittenChecks(id, chosen, next, answer)
    } finally spool.close()
  }

  /** Brings the books to a frame that the log has now. */
  private def adopt(written: WrittenChecks): Unit = {
    trusted(books.apply(version - 1, BatchDelta.None, written.windows, written.books))
    present = present.copy(
      checkpointId = Some(written.id), plan = Some(new CheckpointPlan(written.answer.plan)), unlogged = UnloggedChanges.since(version, written.id))
    forgetOtherVersions() // their stamps are out of date
  }

  /**
   * One commit.
   *
   *  1. Sort the windows that the batch touched into opened, closed and dirty ones.
   *  1. If the log has this commit already, or needs none, move only the books. A replay has the commit in the log.
   *     So has a second run with the same result, if Spark has the first id. A silent store needs no commit in the
   *     log.
   *  1. Spool the opened and closed windows, then the checks: all dirty windows if eager, else the plan's windows
   *     within the time budget.
   *  1. Make one call to the agent. When it returns, the commit is durable. If the stores of this JVM write together,
   *     keep the commit instead: `LocalStores` makes the call for all of them, before Spark commits the batch.
   *  1. Bring the books up to date.
   */
  def commit(facts: BatchFacts): Long = {
    val startedNs = System.nanoTime()
    val proof = present.standing match {
      case verified: Verified => verified
      case Standing.Replaying => return commitReplayed(facts) // 2
      case refused: Standing.Refused => throw refused.difference
      case Standing.Unloaded => throw new IllegalStateException(s"store $id has no version to commit on")
    }
    val changes = BatchDelta.of(windows, averages) // 1
    if (facts.named && reverted.exists(first => first.known.inputs == facts.inputs && first.known.totals == windows.sums)) {
      redoCommit()
      return version
    }
    if (silent) return commitSilently(proof, changes, facts)
    val spool = new RecordSpool(prefixFields.isDefined, () => log.spoolFile(estimateBytes(changes.opened.size + changes.kept)))
    try {
      val checked = records.spoolTo(windows, changes, present.plan, facts.inputs, startedNs - facts.startedNs, spool) // 3
      val file = spool.finish()
      val next = books.after(version, changes, checked)
      val numbers = CommitNumbers(
        version + 1, next.openWindows, next.dirtyFrom, next.dirtyWindows, spool.opened, spool.checked, spool.closed, facts.inputs,
        windows.sums, rowDigest.kind, (System.nanoTime() - startedNs) / 1000,
        if (deferred) CommitKind.Deferred else CommitKind.Eager, next.live(liveIsWhole), liveIsWhole, facts.isCounted)
      val newId = nextCommitId(facts)
      val commit = log.describe(proof, numbers, newId, facts.named, checkpointId, file, () => if (together) books.live else next.live(true))
      liveIsWhole = true // until the agent answers, its ledger is uncertain
      val answer = Option.unless(together)(log.write(commit)) // 4
      val renewed = trusted(books.apply(version, changes, checked, next)) // 5
      val after = present.next(proof.next, windows.sums, Some(newId), facts.inputs)
      advance(answer.fold(after.copy(unwritten = Some(commit)))(written => after.copy(plan = Some(new CheckpointPlan(written.plan)))), renewed)
      liveIsWhole = false
      if (together) spool.keep()
      val measured = metrics.copy(
        opened = spool.opened, checked = spool.checked, closed = spool.closed, dirty = books.dirtyWindows,
        commitMs = (System.nanoTime() - startedNs) / 1000000, held = 0L)
      metrics = answer.fold(measured)(measured.after)
    } finally spool.close()
    version
  }

  /** Commits in a silent store: moves the books and writes nothing. */
  private def commitSilently(proof: Verified, changes: BatchDelta, facts: BatchFacts): Long = {
    val unlogged = present.unlogged.after(windows, changes)
    val renewed = trusted(books.apply(version, changes, writes = false))
    advance(present.next(proof.next, windows.sums, Some(nextCommitId(facts)), facts.inputs).copy(unlogged = unlogged), renewed)
    metrics = CommitMetrics(changes.opened.size, 0, changes.closed.size, dirty = books.dirtyWindows)
    version
  }

  /**
   * The id of the next commit. If the stores of this JVM write together, the second commit of a batch takes the id of the
   * first, which is in no log. The driver asks for the commits of tasks that ended well, and the task of the second one
   * may fail later.
   */
  private def nextCommitId(facts: BatchFacts): String =
    reverted.map(_.known).filter(first => together && !facts.named && (silent || first.unwritten.isDefined)).flatMap(_.checkpointId)
      .getOrElse(log.newCheckpointId())

  private def advance(after: StoreVersion, renewed: UndoStamps): Unit = trusted {
    discardReverted()
    previous.foreach(before => windows.forgetBefore(before.touched))
    previous = Some(new PreviousVersion(present, windows.advance(), renewed))
    present = after
  }

  private def setStanding(standing: Standing): Unit = present = present.copy(standing = standing)

  private def setHold(rule: Option[ReplayVisibility]): Unit = {
    present = present.copy(hold = rule)
    windows.hold = rule
  }

  /** Forgets the versions before and after the present one. Then only the log has other versions. */
  private def forgetOtherVersions(): Unit = trusted {
    previous.foreach(before => windows.forgetBefore(before.touched))
    previous = None
    discardReverted()
    liveIsWhole = true
  }

  /** Makes `known` the present version. The caller has restored its windows. */
  private def switchTo(known: StoreVersion): Unit = {
    present = known
    windows.hold = known.hold
    liveIsWhole = true
    books.rebuild()
  }

  private def newWindows(): LiveWindows =
    LiveWindows.make(keyFields, valueFields, prefixFields, order, rowDigest, new Pages(memory, () => PageFile.make()))

  private def estimateBytes(rowsToWrite: Int): Long = {
    val rows = windows.sums.rows
    (rowsToWrite + 1024L) * (if (rows == 0) 128L else windows.sums.bytes / rows + 64L)
  }

  /**
   * Commits during a replay and writes nothing. Under the hold rule no window opens or closes. After the hold rule the
   * books change as in the first run.
   */
  private def commitReplayed(facts: BatchFacts): Long = try {
    replayCheck.inputs(version, facts.shuffled, loadedFrom.flatMap(_.inputs.get(version + 1)))
    if (present.hold.isDefined) {
      replayCheck.closes(version, BatchDelta.of(windows, averages).closed.size)
      windows.reopen()
    }
    val changes = BatchDelta.of(windows, averages)
    val renewed = trusted(books.apply(version, changes, writes = true))
    val id = checkpointId.orElse(Some(log.newCheckpointId())) // version 0 has no id, and Spark needs one
    advance(present.next(Standing.Replaying, windows.sums, id, facts.inputs).copy(baseCheckpointId = id), renewed)
    present.hold.foreach(hold => held = hold.held)
    metrics = CommitMetrics(dirty = books.dirtyWindows, held = held, recoveryEstimateMs = metrics.recoveryEstimateMs)
    if (version == base) endHold()
    else if (version > base && version < replayTo) compareFooter(log.remains(version).footer)
    if (version == replayTo) endReplay(facts)
    version
  } catch {
    case difference: CecException if difference.isA(ReplayCheck.Divergence) =>
      reset(version)
      setStanding(new Standing.Refused(difference))
      throw difference
  }

  /**
   * Ends the hold rule at version `base`. The windows must then match the footer of the checkpoint that the store
   * loaded.
   */
  private def endHold(): Unit = {
    setHold(None)
    loadedFrom.foreach(from => replayCheck.compare(windows, books.openWindows, from.footer, Some((books.dirtyWindows, from.dirtyWindows))))
  }

  /**
   * Ends a replay.
   *
   *  1. If the replay began before a lost frame, compare the windows with the part of the last commit that is left.
   *  1. Write the dirty windows, so that no recovery begins before this version again. After a lost frame, write
   *     all windows.
   *  1. Report the recovery to the agent.
   */
  private def endReplay(facts: BatchFacts): Unit = {
    val remains = readRemains
    compareFooter(remains.footer)
    replayCheck.end(version) match {
      case Left(difference) => acceptWindows(difference)
      case Right(proof) =>
        setStanding(proof)
        val compared = base == replayTo || remains.footer.isDefined
        if (!compared) {
          logWarning(s"the log has no footer of store $id at version $version: no digest tells whether batch ${version - 1} ran as it did the first time")
        }
        writeReplayEnd(proof, remains, facts.inputs)
        log.loaded(version, ecLoadMs, Option.when(compared)(true), held, Nil)
    }
  }

  /**
   * Compares the windows with the footer of the commit that first made them, when the replay has made each of them
   * again.
   */
  private def compareFooter(known: Option[Footer]): Unit =
    known.foreach(replayCheck.compare(windows, books.openWindows, _, dirty = None))

  /** Reads the part of the last commit that is left, if the replay began before a lost frame. */
  private def readRemains: Remains = if (base < replayTo) log.remains(replayTo) else Remains()

  /** Writes the frame that the log needs at the end of a replay. */
  private def writeReplayEnd(proof: Verified, remains: Remains, inputs: Long): Unit =
    if (base == replayTo) flush(proof)
    else adopt(writeChecks(
      proof, books.withFootprintBefore(Long.MaxValue), CommitKind.Eager, remains.checkpointId.getOrElse(log.newCheckpointId()), on = None, inputs))

  /** Accepts the windows as they are, as the state at the end of the replay. */
  private def acceptWindows(why: String): Unit = {
    require(recovery.accept, s"store $id at version $version: $why, and no setting accepts that")
    present.hold.foreach(hold => held = hold.held)
    val unsure = windows.windows.filter(w => windows.isDirty(w) || base < replayTo || windows.footprint(w) < replayTo).map(w => describe(windows.id(w))).toSeq
    logWarning(s"$why. Accepted (spark.sql.streaming.stateStore.cec.onDivergence=accept): ${unsure.size} windows of store $id may differ from what " +
      "was committed; the recovery's report in cec/recoveries/ of the checkpoint names them")
    windows.rollback()
    setHold(None)
    windows.version = replayTo
    forgetOtherVersions()
    val proof = Verified.accepted(replayTo)
    setStanding(proof)
    writeReplayEnd(proof, readRemains, inputs = 0)
    log.loaded(replayTo, ecLoadMs, Some(false), held, unsure)
  }

  private def undoCommit(): Unit = previous.foreach { before =>
    trusted(windows.rollback())
    if (present.unwritten.exists(_.isNamed)) write() // Spark may ask for this commit by its id
    trusted(undoCommit(before))
  }

  private def undoCommit(before: PreviousVersion): Unit = {
    reverted = Some(new RevertedVersion(present, before.imagesNow(windows), before))
    (0 until before.renewed.size).foreach(before.renewed.restamp)
    windows.restore(before.touched, before.known.totals, version - 1)
    previous = None
    switchTo(before.known)
  }

  /** Restores the version that the store took back last. */
  private def redoCommit(): Unit = reverted.foreach(later => trusted(redoCommit(later)))

  private def redoCommit(later: RevertedVersion): Unit = {
    windows.rollback()
    windows.restore(later.images, later.known.totals, version + 1)
    previous = Some(later.previous)
    reverted = None
    switchTo(later.known)
  }

  /** Loads the eventual checkpoint of `wanted`; if a replay is due, the one of `base`. */
  private def load(wanted: Long, uniqueId: Option[String]): Unit = {
    reset(wanted)
    // The log may lack a later version of a silent store, unless another executor wrote the version on request.
    val unasked = silent && wanted > replayTo && !requestHandOver(wanted)
    val replaying = wanted < replayTo
    val at = if (replaying) base else wanted
    if (at > 0) {
      val startedNs = System.nanoTime()
      val checkpoint = try loadCheckpoint(at, wanted, if (replaying) None else uniqueId) catch {
        case missing: CecException if unasked && missing.isA("DamagedLog") => throw StoreState.dirtyElsewhere(id, wanted, "some")
      }
      // Without room for the windows the load fails before it reads the file.
      try checkpoint.spool.foreach { file =>
        windows.reserve(checkpoint.footer.openWindows, checkpoint.rows)
        windows match {
          case keys: KeyWindows => CheckpointSpool.loadKeys(file, keys)
          case groups: GroupWindows => CheckpointSpool.loadGroups(file, groups)
        }
      } finally checkpoint.discard()
      windows.loaded()
      adoptCheckpoint(checkpoint, underHold = wanted < at)
      ecLoadMs = (System.nanoTime() - startedNs) / 1e6
      if (checkpoint.dirtyFrom < wanted) acceptWindows(s"the replay of store $id was not begun")
      else {
        // Under the hold rule `endHold` compares the windows later.
        val proof = if (wanted < at) Standing.Replaying else replayCheck.loaded(windows, checkpoint)
        setStanding(if (replaying) Standing.Replaying else proof)
        if (!replaying && at == replayTo) log.loaded(at, ecLoadMs, Some(true), 0L, Nil)
      }
    } else if (wanted > 0) throw StoreState.dirtyElsewhere(id, wanted, "all")
    else setStanding(if (replaying) Standing.Replaying else Verified.empty(wanted))
  }

  /**
   * Loads the eventual checkpoint of `at`. This store must run all batches from D on, so D may not be before `wanted`.
   * If D is earlier, another executor has the dirty windows, and the store asks it to write them.
   *
   *  1. As long as D is too early and a store hands the version over, load again. A store may hand over another attempt
   *     of the version than the one that counts. In a replay no store can: it has proved nothing yet.
   *  1. If no store has it, load once more: its owner may have written it and gone since the last load.
   */
  private def loadCheckpoint(at: Long, wanted: Long, attempt: Option[String]): CheckpointAnswer = {
    var found = log.load(at, attempt)
    var mayAsk = wanted >= replayTo
    while (found.dirtyFrom < wanted && mayAsk) {
      found.discard()
      mayAsk = requestHandOver(at)
      found = log.load(at, attempt)
    }
    if (found.dirtyFrom < wanted && !(recovery.accept && at == replayTo && wanted == replayTo)) {
      found.discard()
      throw StoreState.dirtyElsewhere(id, at, found.dirtyWindows.toString)
    }
    found
  }

  private def reset(wanted: Long): Unit = {
    try discardUnwritten() finally windows.close()
    windows = newWindows()
    windows.version = wanted
    previous = None
    reverted = None
    liveIsWhole = true
    present = StoreVersion.unloaded
    loadedFrom = None
    replayCheck.reset()
    held = 0L
  }

  private def adoptCheckpoint(checkpoint: CheckpointAnswer, underHold: Boolean): Unit = {
    if (books.openWindows != checkpoint.footer.openWindows) {
      throw new CecException("DamagedLog",
        s"store $id: the eventual checkpoint of version ${checkpoint.version} has ${books.openWindows} windows where ${checkpoint.footer.openWindows} " +
          "were open")
    }
    loadedFrom = Some(checkpoint)
    val commit = checkpoint.footer.checkpointId
    present = present.copy(
      totals = windows.sums, checkpointId = Some(commit), plan = Some(checkpoint.plan),
      unlogged = UnloggedChanges.since(checkpoint.version, commit))
    metrics = CommitMetrics(recoveryEstimateMs = checkpoint.recoveryEstimateMs)
    if (underHold) setHold(Some(new ReplayVisibility(checkpoint.dirtyFrom)))
  }
}

/**
 * A frame of checks that the log has.
 *
 * @param id of the commit that the frame makes or completes
 * @param books after the frame
 */
private final case class WrittenChecks(id: String, windows: IntList, books: NextBooks, answer: DurableCommit)

private object StoreState {
  def dirtyElsewhere(id: StateStoreId, version: Long, windows: String): CecException =
    new CecException("RestartNeeded",
      s"store $id at version $version is not in the log alone: $windows of its windows changed after their last " +
        "footprint, and were in the memory of an executor that is gone, or the session that started this query has no Spark CEC " +
        "extension. Restart the query: a restart replays what is missing. To run without replays set " +
        "spark.sql.streaming.stateStore.cec.mode=eager")
}
