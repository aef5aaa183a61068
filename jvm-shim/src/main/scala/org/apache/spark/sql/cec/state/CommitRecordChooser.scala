package org.apache.spark.sql.cec.state

/**
 * Chooses the records of a commit, and spools each one at once: the opened windows, the closed ones, and checks. Checks
 * take the oldest windows first, within the plan and the budget. The agent puts the records into a frame.
 */
private[state] final class CommitRecordChooser(budget: CheckpointTimeBudget, deferred: Boolean) {
  /**
   * Returns a function that counts the rows of windows with footprints before a version. Callers ask for ascending
   * versions.
   */
  private def rowsBefore(live: LiveWindows): Long => Long = if (live.isGrouped) countRowsBefore(live) else live.books.windowsBefore

  /** Visits each window once, however many versions the caller asks for. */
  private def countRowsBefore(live: LiveWindows): Long => Long = {
    val windows = live.books.withFootprintBefore(Long.MaxValue).buffered
    var sum = 0L
    before => {
      while (windows.hasNext && live.footprint(windows.head) < before) sum += live.rowCount(windows.next())
      sum
    }
  }

  /**
   * Spools the records of one commit, and returns the checked windows.
   *
   * @param live the windows of the version before the commit
   * @param spool takes the records
   * @param taskNs how long the store's task has run
   */
  def spoolTo(live: LiveWindows, changes: BatchDelta, plan: Option[CheckpointPlan], inputs: Long, taskNs: Long, spool: RecordSpool): IntList = {
    val chosen = new IntList
    try spoolTo(chosen, live, changes, plan, inputs, taskNs, spool) finally chosen.foreach(live.unchoose(_))
    chosen
  }

  private def spoolTo(
      chosen: IntList, live: LiveWindows, changes: BatchDelta, plan: Option[CheckpointPlan], inputs: Long, taskNs: Long, spool: RecordSpool): Unit = {
    import live.books
    changes.opened.foreach(spool.open(live, _))
    changes.closed.foreach(spool.close(live, _))
    def check(window: Int): Unit = if (live.choose(window)) {
      chosen.add(window)
      spool.check(live, window)
    }
    def dirtyBefore(before: Long): Iterator[Int] =
      books.dirtyBefore(before) ++ (if (before > live.version) changes.newlyDirty.toArray.iterator else Iterator.empty)

    // An eager commit leaves no window dirty, not even one that a deferred run left dirty.
    if (!deferred) dirtyBefore(Long.MaxValue).foreach(check)
    changes.rounded.foreach(check(_))
    plan.foreach { asked =>
      if (deferred) dirtyBefore(Math.max(asked.forcedBefore, asked.worthBefore(inputs))).foreach(check)
      if (asked.rewriteWindows > 0) books.withFootprintBefore(Long.MaxValue).zipWithIndex.takeWhile(_._2 < asked.rewriteWindows).foreach {
        case (window, _) => check(window)
      }
      val mayTakeNs = budget.grant(taskNs, asked.share, asked.floorMs)
      val beganNs = System.nanoTime()
      def inTime: Boolean = System.nanoTime() - beganNs < mayTakeNs // a window may have many rows, and a row many bytes
      if (asked.share > 0 && mayTakeNs > 0) {
        if (deferred) dirtyBefore(asked.replayBefore(inputs)).takeWhile(_ => inTime).foreach(check)
        books.withFootprintBefore(asked.extentBefore(spool.records, live.sums.rows, rowsBefore(live))).takeWhile(_ => inTime).foreach(check)
      }
      budget.spend(System.nanoTime() - beganNs)
    }
  }
}
