package org.apache.spark.sql.cec.metrics

import java.util.concurrent.ConcurrentHashMap

import scala.collection.mutable
import scala.jdk.CollectionConverters._

import org.apache.spark.sql.streaming.StreamingQueryProgress

/**
 * A query's numbers as of its newest batch, in Spark's metrics system: Prometheus, JMX or Graphite. The numbers are
 * sums over partitions and operators. The recovery estimate is the slowest store's.
 */
private[cec] final class QuerySource(query: String, checkpoint: String) extends Gauges(s"cec.query.$query") {
  @volatile private var newest: Option[StreamingQueryProgress] = None

  /** Custom metrics of the state stores, with their names here. */
  private val summed = Seq(
    "opened" -> "cecOpened", "checked" -> "cecChecked", "closed" -> "cecClosed", "openWindows" -> "cecOpenWindows",
    "stateRows" -> "cecStateRows", "extent" -> "cecExtent", "replay" -> "cecReplay",
    "dirty" -> "cecDirty", "logBytes" -> "cecLogBytes", "commitMs" -> "cecCommitMs", "agentMs" -> "cecAgentMs",
    "fileBytes" -> "cecFileBytes", "deadBytes" -> "cecDeadBytes", "spilledBytes" -> "cecSpilledBytes", "movedBytes" -> "cecMovedBytes",
    "fileReads" -> "cecFileReads")

  gauge("batch")(newest.map(_.batchId).getOrElse(-1L))
  summed.foreach { case (name, metric) => gauge(name)(readMetric(metric).sum) }
  gauge("recoveryEstimateMs")(readMetric("cecRecoveryEstimateMs").maxOption.getOrElse(0L))
  gauge("replayBatchesLeft")(QuerySource.remainingBatches.getOrDefault(checkpoint, 0L))

  def note(progress: StreamingQueryProgress): Unit = newest = Some(progress)

  def add(): Unit = QuerySource.synchronized {
    QuerySource.there += this
    register()
  }

  /** Spark removes every source whose name begins with this one's, so those of other queries are registered again. */
  def remove(): Unit = QuerySource.synchronized {
    QuerySource.remainingBatches.remove(checkpoint)
    QuerySource.there -= this
    unregister()
    val others = QuerySource.there.filter(_.sourceName.startsWith(sourceName)).toSeq
    others.foreach(_.unregister())
    others.foreach(_.register())
  }

  private def readMetric(metric: String): Seq[Long] =
    newest.toSeq.flatMap(_.stateOperators.toSeq).flatMap(_.customMetrics.asScala.get(metric)).map(_.longValue)
}

private[cec] object QuerySource {
  /** By checkpoint, the batches that a replay must still run. */
  private val remainingBatches = new ConcurrentHashMap[String, Long]()

  /** The sources in Spark's metrics system. */
  private val there = mutable.Set.empty[QuerySource]

  def replaying(checkpoint: String, batchesLeft: Long): Unit = remainingBatches.put(checkpoint, batchesLeft)
}
