package org.apache.spark.sql.cec.metrics

import java.util.concurrent.ConcurrentHashMap

import scala.jdk.CollectionConverters._

import com.codahale.metrics.{Gauge, MetricRegistry}

import org.apache.spark.SparkEnv
import org.apache.spark.metrics.source.Source
import org.apache.spark.sql.streaming.StreamingQueryProgress

/**
 * A query's numbers in Spark's metrics system, and so in Prometheus, JMX, Graphite, as Spark is told: as of its newest batch.
 * They are sums over partitions and operators, but for the estimate of a recovery, which is the slowest store's.
 */
private[cec] final class QuerySource(query: String, checkpoint: String) extends Source {
  @volatile private var newest: Option[StreamingQueryProgress] = None

  override val sourceName: String = s"cec.query.$query"
  override val metricRegistry: MetricRegistry = new MetricRegistry

  /** Custom metrics of the state stores, by the names that they have here. */
  private val summed = Seq(
    "opened" -> "cecOpened", "checked" -> "cecChecked", "closed" -> "cecClosed", "openWindows" -> "cecOpenWindows",
    "stateRows" -> "cecStateRows", "extent" -> "cecExtent", "replay" -> "cecReplay",
    "dirty" -> "cecDirty", "logBytes" -> "cecLogBytes", "commitMs" -> "cecCommitMs", "agentMs" -> "cecAgentMs")

  gauge("batch")(newest.map(_.batchId).getOrElse(-1L))
  summed.foreach { case (name, metric) => gauge(name)(valuesOf(metric).sum) }
  gauge("recoveryEstimateMs")(valuesOf("cecRecoveryEstimateMs").maxOption.getOrElse(0L))
  gauge("replayBatchesLeft")(QuerySource.left.getOrDefault(checkpoint, 0L))

  def note(progress: StreamingQueryProgress): Unit = newest = Some(progress)

  def register(): Unit = Option(SparkEnv.get).foreach(_.metricsSystem.registerSource(this))

  def remove(): Unit = {
    QuerySource.left.remove(checkpoint)
    Option(SparkEnv.get).foreach(_.metricsSystem.removeSource(this))
  }

  private def valuesOf(metric: String): Seq[Long] =
    newest.toSeq.flatMap(_.stateOperators.toSeq).flatMap(_.customMetrics.asScala.get(metric)).map(_.longValue)

  private def gauge(name: String)(value: => Long): Unit =
    metricRegistry.register(name, new Gauge[Long] { override def getValue: Long = value })
}

private[cec] object QuerySource {
  /** By checkpoint, the batches that a replay has yet to run. */
  private val left = new ConcurrentHashMap[String, Long]()

  def replaying(checkpoint: String, batchesLeft: Long): Unit = left.put(checkpoint, batchesLeft)
}
