package org.apache.spark.sql.cec.metrics

import com.codahale.metrics.{Gauge, MetricRegistry}

import org.apache.spark.SparkEnv
import org.apache.spark.metrics.MetricsSystem
import org.apache.spark.metrics.source.Source

/** Numbers in Spark's metrics system. A JVM that has none keeps working. */
private[metrics] abstract class Gauges(override val sourceName: String) extends Source {
  override val metricRegistry: MetricRegistry = new MetricRegistry

  final def register(): Unit = system.foreach(_.registerSource(this))

  protected final def unregister(): Unit = system.foreach(_.removeSource(this))

  protected final def gauge(name: String)(value: => Long): Unit =
    metricRegistry.register(name, new Gauge[Long] { override def getValue: Long = value })

  private def system: Option[MetricsSystem] = Option(SparkEnv.get).flatMap(env => Option(env.metricsSystem))
}
