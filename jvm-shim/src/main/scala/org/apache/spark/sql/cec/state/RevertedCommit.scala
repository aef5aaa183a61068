package org.apache.spark.sql.cec.state

/**
 * A commit that was taken back because its batch is run again: a function for `foreachBatch` may look at its rows twice. It
 * stands until another commit takes its place. So it comes back if the second run is given up half way, which is how a
 * look at some rows ends; and if the second run has the same result and Spark has named the version by the first one's id.
 *
 * @param last the commit
 * @param images its windows as it left them
 * @param inputs tuples of its batch
 * @param sums at its version
 */
private[state] final class RevertedCommit(
    val last: LastCommit, val images: UndoLog, val inputs: Long, val sums: StateTotals, val checkpointId: Option[String],
    val baseCheckpointId: Option[String], val plan: Option[CheckpointPlan], val hold: Option[ReplayVisibility], val unwritten: UnloggedChanges,
    val standing: Standing)

private[state] object RevertedCommit {
  /** The windows that a commit changed, as they are. */
  def undoLogOf(last: LastCommit): UndoLog = {
    val images = new UndoLog(last.touched.size + last.renewed.size)
    for (stamps <- Seq(last.touched, last.renewed); i <- 0 until stamps.size) images.add(stamps.window(i))
    images
  }
}
