package org.apache.spark.sql.cec.state

/**
 * What a store knows of one version of its windows, beside the windows.
 *
 * @param standing how far the windows can be trusted
 * @param totals over the windows
 * @param checkpointId of the commit that made the version
 * @param baseCheckpointId of the commit that this one rests on
 * @param plan of the agent for the next commit
 * @param hold what a replay shows of the windows; None outside of one
 * @param unlogged what the log does not have of a silent store
 * @param inputs tuples of the batch that made the version
 */
private[state] final case class StoreVersion(
    standing: Standing, totals: StateTotals, checkpointId: Option[String], baseCheckpointId: Option[String], plan: Option[CheckpointPlan],
    hold: Option[ReplayVisibility], unlogged: UnloggedChanges, inputs: Long) {
  /** The version that a batch makes of this one. */
  def next(standing: Standing, totals: StateTotals, checkpointId: Option[String], inputs: Long): StoreVersion =
    copy(standing = standing, totals = totals, checkpointId = checkpointId, baseCheckpointId = this.checkpointId, inputs = inputs)
}

private[state] object StoreVersion {
  /** Nothing is known. */
  val unloaded: StoreVersion =
    StoreVersion(Standing.Unloaded, StateTotals(), None, None, None, hold = None, UnloggedChanges.nothing, inputs = 0L)
}

/**
 * The version before the last commit.
 *
 * @param touched windows that the commit changed, as they were before it
 * @param renewed windows that it only wrote, with their books as they were before it
 */
private[state] final class PreviousVersion(val known: StoreVersion, val touched: UndoLog, val renewed: UndoStamps) {
  /** The windows that the commit changed, as they are now. */
  def imagesNow: UndoLog = {
    val images = new UndoLog(touched.size + renewed.size)
    for (stamps <- Seq(touched, renewed); i <- 0 until stamps.size) images.add(stamps.window(i))
    images
  }
}

/**
 * A version whose commit was taken back because its batch is run again: a function for `foreachBatch` may look at its rows
 * twice. It stands until another commit takes its place. So it comes back if Spark gives the second run up half way, as it
 * does after a look at some rows; and if the second run has the same result and Spark has named the version by the first id.
 *
 * @param images windows that its commit changed, as it left them
 * @param previous the version before it
 */
private[state] final class RevertedVersion(val known: StoreVersion, val images: UndoLog, val previous: PreviousVersion)
