package org.apache.spark.sql.cec.state

import java.util.ArrayList

import scala.jdk.CollectionConverters._

/**
 * Chooses the records of a commit, and spools each one at once: the opened windows, the closed ones, and checks. Checks
 * take the oldest windows first, within the plan and the budget. The agent puts the records into a frame.
 *
 * @param grouped whether a window may have several rows
 */
private[state] final class CommitRecordChooser(books: CheckpointIndex, budget: CheckpointTimeBudget, deferred: Boolean, grouped: Boolean) {
  /**
   * Returns a function that counts the rows of windows with footprints before a version. Callers ask for ascending
   * versions.
   */
  private def rowsBefore: Long => Long = if (grouped) countRowsBefore else books.windowsBefore

  /** Visits each window once, however many versions the caller asks for. */
  private def countRowsBefore: Long => Long = {
    val windows = books.withFootprintBefore(Long.MaxValue).buffered
    var sum = 0L
    before => {
      while (windows.hasNext && windows.head.footprint < before) sum += windows.next().rowCount
      sum
    }
  }

  /** The number of this call of `spool`. A window that has it was chosen in this call already. */
  private var round = 0L

  /**
   * Spools the records of one commit, and returns the checked windows.
   *
   * @param version of the store before the commit
   * @param spool takes the records
   * @param taskNs how long the store's task has run
   * @param rows state keys after the commit
   */
  def spoolTo(
      version: Long, changes: BatchDelta, plan: Option[CheckpointPlan], inputs: Long, taskNs: Long, rows: Long, spool: RecordSpool): ArrayList[Window] = {
    val chosen = new ArrayList[Window]()
    changes.opened.forEach(spool.open(_))
    changes.closed.forEach(spool.close(_))
    round += 1
    def check(window: Window): Unit = if (window.checkRound != round) {
      window.checkRound = round
      spool.check(window)
      chosen.add(window)
    }
    def dirtyBefore(before: Long): Iterator[Window] =
      books.dirtyBefore(before) ++ (if (before > version) changes.newlyDirty.iterator.asScala else Iterator.empty)

    // An eager commit leaves no window dirty, not even one that a deferred run left dirty.
    if (!deferred) dirtyBefore(Long.MaxValue).foreach(check)
    changes.rounded.forEach(check(_))
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
        books.withFootprintBefore(asked.extentBefore(spool.records, rows, rowsBefore)).takeWhile(_ => inTime).foreach(check)
      }
      budget.spend(System.nanoTime() - beganNs)
    }
    chosen
  }
}
