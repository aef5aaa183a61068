package org.apache.spark.sql.cec.metrics

import java.nio.file.{Files, Path}

import scala.util.Try

/**
 * The health of this JVM's agent in Spark's metrics system.
 *
 * @param pid of the agent, if it is alive
 * @param starts how many agents this JVM started; more than one means that one died
 */
private[cec] final class AgentSource(pid: () => Option[Long], starts: () => Long) extends Gauges("cec.agent") {
  gauge("alive")(if (pid().isDefined) 1L else 0L)
  gauge("starts")(starts())
  gauge("residentBytes")(pid().flatMap(AgentSource.residentBytes).getOrElse(0L))
}

private object AgentSource {
  /** Reads Linux's own number; None elsewhere. */
  private def residentBytes(pid: Long): Option[Long] = Try {
    val line = Files.readAllLines(Path.of(s"/proc/$pid/status")).stream.filter(_.startsWith("VmRSS:")).findFirst.get
    line.split("\\s+")(1).toLong * 1024
  }.toOption
}
