package org.apache.spark.sql.cec.ui

import scala.jdk.CollectionConverters._

import org.apache.spark.sql.streaming.StreamingQueryProgress

/**
 * What some batches did, one after another. Times are in ms.
 *
 * @param atMs wall clock of the newest batch
 * @param batch the newest batch
 * @param batches how many batches these are
 * @param rows input rows of all of them
 * @param batchMs the longest batch
 * @param commitMs the longest commit, summed over the stores
 * @param bytes what all of them appended to the log
 * @param extent q after the newest batch
 * @param replay u after the newest batch
 * @param recoveryMs the estimate of a recovery; 0 if there is none
 */
private[ui] final case class Sample(
    atMs: Long, batch: Long, batches: Long, rows: Long, batchMs: Long, commitMs: Long, bytes: Long, extent: Long, replay: Long, dirty: Long,
    windows: Long, recoveryMs: Long) {

  /** This sample and a later one as one. */
  def and(later: Sample): Sample = later.copy(
    batches = batches + later.batches,
    rows = rows + later.rows,
    batchMs = Math.max(batchMs, later.batchMs),
    commitMs = Math.max(commitMs, later.commitMs),
    bytes = bytes + later.bytes)
}

private[ui] object Sample {
  def of(progress: StreamingQueryProgress, nowMs: Long): Sample = {
    def read(metric: String): Seq[Long] =
      progress.stateOperators.toSeq.flatMap(operator => Option(operator.customMetrics.get(metric))).map(_.longValue)
    val ms = progress.durationMs.asScala.get("triggerExecution").fold(progress.batchDuration)(_.longValue)
    Sample(
      nowMs, progress.batchId, 1, progress.numInputRows, ms, read("cecCommitMs").sum, read("cecLogBytes").sum, read("cecExtent").sum,
      read("cecReplay").sum, read("cecDirty").sum, read("cecOpenWindows").sum, read("cecRecoveryEstimateMs").maxOption.getOrElse(0L))
  }
}
