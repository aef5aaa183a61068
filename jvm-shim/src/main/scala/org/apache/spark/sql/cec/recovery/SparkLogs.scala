package org.apache.spark.sql.cec.recovery

import org.apache.hadoop.fs.Path

import org.apache.spark.sql.SparkSession
import org.apache.spark.sql.execution.streaming.checkpointing.{CommitLog, OffsetSeqLog}
import org.apache.spark.sql.internal.SQLConf

/** Spark's own logs of one query. Spark's classes read them, because they keep checksum files beside the entries. */
private[recovery] final class SparkLogs(session: SparkSession, checkpoint: String) {
  private val commits = new CommitLog(session, s"$checkpoint/commits", readOnly = true)
  private val offsets = new OffsetSeqLog(session, s"$checkpoint/offsets", readOnly = true)

  /**
   * V, the newest batch that Spark will not run again; -1 if there is none.
   *
   * The rule is Spark's own at a start. If the newest batch of the offset log is also the newest commit, V is that
   * batch. Else V is the batch before it. `committed_batch` in the Python package (`recovery/spark_logs.py`) is the
   * same rule; the agent compares both at a start.
   */
  def lastCommitted: Long = {
    val committed = commits.getLatestBatchId() // first: if a batch is planned meanwhile, the batch before it is committed
    val planned = lastOffset
    if (committed.contains(planned)) planned else Math.max(planned - 1, -1L)
  }

  /** The newest planned batch, -1 if there is none. */
  def lastOffset: Long = offsets.getLatestBatchId().getOrElse(-1L)

  /** The provider class that the checkpoint began with. Spark keeps using it whatever the session says. */
  def recordedProvider: Option[String] =
    offsets.getLatest().flatMap(_._2.metadataOpt).flatMap(_.conf.get(SQLConf.STATE_STORE_PROVIDER_CLASS.key))

  /**
   * Removes unfinished files that a killed Spark left, if no batch is planned yet. Spark refuses to begin where it
   * finds one, and never removes them.
   */
  def sweep(): Unit = if (lastOffset < 0) Seq("offsets", "commits").map(new Path(checkpoint, _)).foreach { directory =>
    val fs = directory.getFileSystem(session.sessionState.newHadoopConf())
    if (fs.exists(directory)) fs.listStatus(directory).map(_.getPath).filter(path => SparkLogs.Unfinished.matches(path.getName)).foreach(fs.delete(_, false))
  }
}

private object SparkLogs {
  /** `.0.<uuid>.tmp`, and its checksum file. */
  val Unfinished = """\.{1,2}\d+\.[0-9a-f-]{36}\.tmp(\.crc)?""".r
}
