package org.apache.spark.sql.cec.recovery

import scala.jdk.CollectionConverters._
import scala.util.control.NonFatal

import org.apache.spark.sql.cec.RunContext
import org.apache.spark.sql.cec.agent.{Agent, Json}
import org.apache.spark.sql.cec.exchange.StoreLocations

/**
 * Has the stores of a run write what is dirty, and asks the log whether they have. An executor that is gone, or that the driver does not
 * know of, says nothing: that is no success; and one that does not answer may have had nothing to write.
 */
private[recovery] object Flush {
  /** Between two batches. Answers a line for each store that is not written up to `version`, and then what executors say of that. */
  def ask(run: RunContext, version: Long, conf: Map[String, String]): Seq[String] =
    verified(run, version, conf, StoreLocations.flush(run.checkpoint, run.generation, version, Agent.timeoutMs(conf)))

  /** The same at the run's end, after which the stores have no windows. */
  def end(run: RunContext, version: Long, conf: Map[String, String]): Seq[String] =
    verified(run, version, conf, StoreLocations.end(run.checkpoint, run.generation, version, flush = true, Agent.timeoutMs(conf)))

  private def verified(run: RunContext, version: Long, conf: Map[String, String], failed: Seq[String]): Seq[String] = {
    val request = Json.obj().put("home", run.home).put("version", version).put("generation", run.generation)
    val left = try Agent.call("left_dirty", request, conf).get("lines").elements.asScala.map(_.asText).toSeq catch {
      case NonFatal(failure) => Seq(s"the log cannot be asked which stores are written: ${failure.getMessage}")
    }
    if (left.isEmpty) Nil else left ++ failed
  }
}
