package org.apache.spark.sql.cec.recovery

import scala.util.control.NonFatal

import org.apache.spark.sql.cec.RunContext
import org.apache.spark.sql.cec.agent.{Agent, FlushedRequest}
import org.apache.spark.sql.cec.exchange.StoreLocations

/**
 * Makes the stores of a run write their dirty windows, then asks the log whether they did. The log decides: a lost or
 * unknown executor sends no answer, and a late executor may have had nothing to write.
 */
private[recovery] object Flush {
  /**
   * Flushes between two batches, and answers `request`. Returns a line for each store that is not written up to
   * `version`, then the errors of the executors.
   */
  def ask(run: RunContext, version: Long, request: Option[String], conf: Map[String, String]): Seq[String] =
    report(run, version, request, conf, StoreLocations.flush(run.checkpoint, run.generation, version, Agent.timeoutMs(conf)))

  /** Flushes at the end of the run. The stores then drop their windows. */
  def end(run: RunContext, version: Long, conf: Map[String, String]): Seq[String] =
    report(run, version, None, conf, StoreLocations.end(run.checkpoint, run.generation, version, flush = true, Agent.timeoutMs(conf)))

  private def report(run: RunContext, version: Long, request: Option[String], conf: Map[String, String], failed: Seq[String]): Seq[String] = {
    val facts = FlushedRequest(run.checkpoint, run.home, version, run.generation, failed, request)
    try Agent.call(facts, conf).unwritten catch {
      case NonFatal(failure) => s"the log cannot be asked which stores are written: ${failure.getMessage}" +: failed
    }
  }
}
