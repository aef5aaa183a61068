package org.apache.spark.sql.cec.state

import org.apache.spark.sql.cec.agent.CommitPlan

/** The agent's plan for the next commit. The commit looks up its own counts in the plan's thresholds. */
private[cec] final class CheckpointPlan(plan: CommitPlan) {
  /** A commit checks windows dirty since before this version, even without budget. */
  def forcedBefore: Long = plan.forcedBefore

  /**
   * A commit writes this number of windows again, oldest footprint first, even without budget. Else footprints would
   * grow too old.
   */
  def rewriteWindows: Long = plan.rewriteWindows

  /** CI/CP, and CI in ms. */
  def share: Double = plan.share
  def floorMs: Double = plan.floorMs

  /** A commit checks windows dirty since before this version, even without budget, because that costs little. */
  def worthBefore(inputs: Long): Long = plan.worthBound.fold(Long.MinValue)(findReplay(inputs, _))

  /** A commit should check windows dirty since before this version, so that u stays within U. */
  def replayBefore(inputs: Long): Long = findReplay(inputs, plan.replayBound)

  private def findReplay(inputs: Long, bound: Long): Long =
    findThreshold(plan.replaySteps)(_.before, step => step.cost + inputs <= bound)

  /**
   * A commit should write windows with footprints before this version again, so that q stays within Q.
   *
   * @param rows state keys after the commit; a window of a store with prefix may have several
   * @param rowsBefore returns the rows of the windows with footprints before a version; callers ask for ascending
   * versions
   */
  def extentBefore(records: Long, rows: Long, rowsBefore: Long => Long): Long = {
    val limit = Math.max(Math.max(plan.extentRecords, (plan.extentPerWindow * rows).toLong), rows)
    findThreshold(plan.extentSteps)(_.before, step => step.cost - step.windows + rowsBefore(step.before) + records <= limit)
  }

  private def findThreshold[S](steps: Seq[S])(before: S => Long, enough: S => Boolean): Long =
    steps.find(enough).orElse(steps.lastOption).fold(Long.MinValue)(before)
}
