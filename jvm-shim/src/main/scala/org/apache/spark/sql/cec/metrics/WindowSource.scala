package org.apache.spark.sql.cec.metrics

import java.nio.file.{Files, Path}

import scala.util.Try

import com.codahale.metrics.{Gauge, MetricRegistry}

import org.apache.spark.SparkEnv
import org.apache.spark.metrics.source.Source

/**
 * The memory of all windows of this JVM in Spark's metrics system.
 *
 * @param heapBytes that the windows take
 * @param besideBytes the part of it that is not in pages
 */
private[cec] final class WindowSource(heapBytes: () => Long, besideBytes: () => Long) extends Source {
  override val sourceName: String = "cec.windows"
  override val metricRegistry: MetricRegistry = new MetricRegistry

  gauge("heapBytes")(heapBytes())
  gauge("besideBytes")(besideBytes())
  gauge("majorFaults")(WindowSource.majorFaults)

  def register(): Unit = for (env <- Option(SparkEnv.get); metrics <- Option(env.metricsSystem)) metrics.registerSource(this)

  private def gauge(name: String)(value: => Long): Unit =
    metricRegistry.register(name, new Gauge[Long] { override def getValue: Long = value })
}

private object WindowSource {
  /** The place of `majflt` behind the name of the program in Linux's file. */
  private val MajorFaults = 9

  /** How often this process waited for the disk to read memory, such as a mapped file. 0 where the system is not Linux. */
  private def majorFaults: Long =
    Try(Files.readString(Path.of("/proc/self/stat")).split("\\) ").last.split(" ")(MajorFaults).toLong).getOrElse(0L)
}
