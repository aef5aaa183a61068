package org.apache.spark.sql.cec.metrics

import java.nio.file.{Files, Path}

import scala.util.Try

/**
 * The memory of all windows of this JVM in Spark's metrics system.
 *
 * @param heapBytes that the windows take
 * @param besideBytes the part of it that is not in pages
 */
private[cec] final class WindowSource(heapBytes: () => Long, besideBytes: () => Long) extends Gauges("cec.windows") {
  gauge("heapBytes")(heapBytes())
  gauge("besideBytes")(besideBytes())
  gauge("majorFaults")(WindowSource.majorFaults)
}

private object WindowSource {
  /** The place of `majflt` behind the name of the program in Linux's file. */
  private val MajorFaults = 9

  /** How often this process waited for the disk to read memory, such as a mapped file. 0 where the system is not Linux. */
  private def majorFaults: Long =
    Try(Files.readString(Path.of("/proc/self/stat")).split("\\) ").last.split(" ")(MajorFaults).toLong).getOrElse(0L)
}
