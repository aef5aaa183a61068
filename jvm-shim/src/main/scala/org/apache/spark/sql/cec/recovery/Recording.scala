package org.apache.spark.sql.cec.recovery

import org.apache.spark.sql.SparkSession
import org.apache.spark.sql.execution.streaming.checkpointing.OffsetSeqLog

/**
 * The recorded offsets of a replay: which offset each source had at the end of each batch.
 *
 * @param offsets batch to the JSON of each source's offset, None where the source had none
 */
private[recovery] final class Recording(session: SparkSession, checkpoint: String, val offsets: Map[Long, Seq[Option[String]]]) {
  private val offsetLog = new OffsetSeqLog(session, s"$checkpoint/offsets", false)
  private val last = offsets.keys.maxOption.getOrElse(-1L)

  /** The batch being built: the one after the newest in Spark's offset log. Read there, not counted. */
  def batchBeingBuilt(): Long = offsetLog.getLatestBatchId().map(_ + 1).getOrElse(0L)

  /** The recorded offset of a source in that batch, or None when the recording is used up. */
  def at(batch: Long, source: Int): Option[Option[String]] =
    if (batch > last) None else offsets.get(batch).map(_(source))

  /** Whether a batch brought no source anything new. */
  def hadNoData(batch: Long): Boolean =
    offsets.get(batch).exists(each => offsets.get(batch - 1).contains(each))
}
