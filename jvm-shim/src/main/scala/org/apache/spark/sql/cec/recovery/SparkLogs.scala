package org.apache.spark.sql.cec.recovery

import org.apache.hadoop.fs.Path

import org.apache.spark.sql.SparkSession
import org.apache.spark.sql.execution.streaming.checkpointing.{CommitLog, OffsetSeqLog}
import org.apache.spark.sql.internal.SQLConf

/** Spark's own logs of one query, through Spark's own classes: they keep checksum files beside their entries. */
private[recovery] final class SparkLogs(session: SparkSession, checkpoint: String) {
  private val commits = new CommitLog(session, s"$checkpoint/commits", false)
  private val offsets = new OffsetSeqLog(session, s"$checkpoint/offsets", false)

  /** The newest committed batch, -1 if there is none. */
  def lastCommit: Long = commits.getLatestBatchId().getOrElse(-1L)

  /** The committed batches that the log still has. */
  def committed: Seq[Long] = commits.listBatchesOnDisk.toSeq

  /** The newest batch that was planned, -1 if there is none. */
  def lastOffset: Long = offsets.getLatestBatchId().getOrElse(-1L)

  /** The provider class that the checkpoint was begun with: Spark goes on with it whatever the session says. */
  def recordedProvider: Option[String] =
    offsets.getLatest().flatMap(_._2.metadataOpt).flatMap(_.conf.get(SQLConf.STATE_STORE_PROVIDER_CLASS.key))

  /** The JSON of each source's offset, for those of the batches `first` to `last` that the offset log has. */
  def offsetsOf(first: Long, last: Long): Map[Long, Seq[Option[String]]] =
    (first to last).flatMap(batch => offsets.get(batch).map(batch -> _.offsets.map(_.map(_.json)))).toMap

  /** Whether a batch is in both logs: Spark goes on only from one that is. */
  def has(batch: Long): Boolean = offsets.get(batch).isDefined && commits.get(batch).isDefined

  /** Cuts the logs so that Spark goes on with batch `rewoundTo` + 1 as it was planned. */
  def rewind(rewoundTo: Long): Unit = {
    commits.purgeAfter(rewoundTo)
    offsets.purgeAfter(rewoundTo + 1)
  }

  /** Whether there is state of another provider: files that Spark's own providers write. */
  def hasForeignState: Boolean = {
    val state = new Path(checkpoint, "state")
    val fs = state.getFileSystem(session.sessionState.newHadoopConf())
    fs.exists(state) && {
      val files = fs.listFiles(state, true)
      Iterator.continually(files).takeWhile(_.hasNext).map(_.next().getPath.getName)
        .exists(name => Seq(".delta", ".snapshot", ".changelog", ".zip").exists(name.endsWith))
    }
  }
}
