package org.apache.spark.sql.cec.recovery

import scala.jdk.CollectionConverters._
import scala.util.control.NonFatal

import org.apache.spark.sql.cec.RunContext
import org.apache.spark.sql.cec.agent.{Agent, Json}
import org.apache.spark.sql.cec.exchange.StoreLocations

/**
 * Makes the stores of a run write their dirty windows, then asks the log whether they did. The log decides: a lost or
 * unknown executor sends no answer, and a late executor may have had nothing to write.
 */
private[recovery] object Flush {
  /**
   * Flushes between two batches. Returns a line for each store that is not written up to `version`, then the errors of
   * the executors.
   */
  def ask(run: RunContext, version: Long, conf: Map[String, String]): Seq[String] =
    findUnwritten(run, version, conf, StoreLocations.flush(run.checkpoint, run.generation, version, Agent.timeoutMs(conf)))

  /** Flushes at the end of the run. The stores then drop their windows. */
  def end(run: RunContext, version: Long, conf: Map[String, String]): Seq[String] =
    findUnwritten(run, version, conf, StoreLocations.end(run.checkpoint, run.generation, version, flush = true, Agent.timeoutMs(conf)))

  private def findUnwritten(run: RunContext, version: Long, conf: Map[String, String], failed: Seq[String]): Seq[String] = {
    val request = Json.obj().put("home", run.home).put("version", version).put("generation", run.generation)
    val left = try Agent.call("left_dirty", request, conf).get("lines").elements.asScala.map(_.asText).toSeq catch {
      case NonFatal(failure) => Seq(s"the log cannot be asked which stores are written: ${failure.getMessage}")
    }
    if (left.isEmpty) Nil else left ++ failed
  }
}
