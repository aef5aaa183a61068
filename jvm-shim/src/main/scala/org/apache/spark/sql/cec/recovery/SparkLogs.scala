package org.apache.spark.sql.cec.recovery

import org.apache.hadoop.fs.Path

import org.apache.spark.sql.SparkSession
import org.apache.spark.sql.execution.streaming.checkpointing.{CommitLog, OffsetSeqLog}
import org.apache.spark.sql.internal.SQLConf

/** Spark's own logs of one query, through Spark's own classes: they keep checksum files beside their entries. */
private[recovery] final class SparkLogs(session: SparkSession, checkpoint: String) {
  private val commits = new CommitLog(session, s"$checkpoint/commits", false)
  private val offsets = new OffsetSeqLog(session, s"$checkpoint/offsets", false)

  /**
   * V, the newest batch that is not run again; -1 if there is none. As Spark has it at a start: the newest batch of the offset log if
   * that is the newest commit too, else the one before it, whatever other commits there are. `committed_batch` of the agent's package
   * is the same rule for the command line.
   */
  def lastCommitted: Long = if (commits.getLatestBatchId().contains(lastOffset)) lastOffset else Math.max(lastOffset - 1, -1L)

  /** The newest batch that was planned, -1 if there is none. */
  def lastOffset: Long = offsets.getLatestBatchId().getOrElse(-1L)

  /** The provider class that the checkpoint was begun with: Spark goes on with it whatever the session says. */
  def recordedProvider: Option[String] =
    offsets.getLatest().flatMap(_._2.metadataOpt).flatMap(_.conf.get(SQLConf.STATE_STORE_PROVIDER_CLASS.key))

  /**
   * Where nothing was planned yet, removes the files that Spark was writing when it was killed: it begins nowhere where it finds any, and
   * never removes them.
   */
  def sweep(): Unit = if (lastOffset < 0) Seq("offsets", "commits").map(new Path(checkpoint, _)).foreach { directory =>
    val fs = directory.getFileSystem(session.sessionState.newHadoopConf())
    if (fs.exists(directory)) fs.listStatus(directory).map(_.getPath).filter(path => SparkLogs.Unfinished.matches(path.getName)).foreach(fs.delete(_, false))
  }
}

private object SparkLogs {
  /** `.0.<uuid>.tmp`, and the checksum file of that. */
  val Unfinished = """\.{1,2}\d+\.[0-9a-f-]{36}\.tmp(\.crc)?""".r
}
