package org.apache.spark.sql.cec.state

/**
 * The facts of one version, beside its windows.
 *
 * @param standing how far the windows can be trusted
 * @param totals sums over the windows
 * @param checkpointId of the commit that made the version
 * @param baseCheckpointId of the commit that this commit is based on
 * @param plan of the agent for the next commit
 * @param hold the hold rule of a replay; None outside of one
 * @param unlogged changes of a silent store that the log lacks
 * @param inputs tuples of the batch that made the version
 * @param unwritten the commit that made the version, if the log lacks it: the stores of an executor write together
 */
private[state] final case class StoreVersion(
    standing: Standing, totals: StateTotals, checkpointId: Option[String], baseCheckpointId: Option[String], plan: Option[CheckpointPlan],
    hold: Option[ReplayVisibility], unlogged: UnloggedChanges, inputs: Long, unwritten: Option[UnwrittenCommit] = None) {
  /** The version that the next commit makes. */
  def next(standing: Standing, totals: StateTotals, checkpointId: Option[String], inputs: Long): StoreVersion =
    copy(standing = standing, totals = totals, checkpointId = checkpointId, baseCheckpointId = this.checkpointId, inputs = inputs, unwritten = None)
}

private[state] object StoreVersion {
  /** The version of a store that loaded nothing. */
  val unloaded: StoreVersion =
    StoreVersion(Standing.Unloaded, StateTotals(), None, None, None, hold = None, UnloggedChanges.nothing, inputs = 0L)
}

/**
 * The version before the last commit.
 *
 * @param touched windows that the commit changed, as they were before it
 * @param renewed windows that the commit only wrote, with their old footprints and dirty versions
 */
private[state] final class PreviousVersion(val known: StoreVersion, val touched: UndoLog, val renewed: UndoStamps) {
  /** The windows of the last commit as they are now. */
  def imagesNow(live: LiveWindows): UndoLog = {
    val images = new UndoLog(live, touched.size + renewed.size)
    for (stamps <- Seq(touched, renewed); i <- 0 until stamps.size) images.add(stamps.window(i))
    images
  }
}

/**
 * A version that the store took back because its batch runs again. A function for `foreachBatch` may read its rows
 * twice.
 *
 * The store keeps the version until the next commit. The version comes back if Spark stops the second run early, as
 * after a look at some rows. The version also comes back if the second run has the same result and Spark has the first
 * id.
 *
 * @param images windows that its commit changed, as the commit left them
 * @param previous the version before it
 */
private[state] final class RevertedVersion(val known: StoreVersion, val images: UndoLog, val previous: PreviousVersion)
