package org.apache.spark.sql.cec.exchange

import java.nio.file.{Files, Paths}
import java.util.concurrent.ConcurrentHashMap

import scala.jdk.CollectionConverters._
import scala.util.control.NonFatal

import org.apache.spark.internal.Logging
import org.apache.spark.sql.cec.agent.OutputRows
import org.apache.spark.sql.cec.state.AgentStoreClient

/**
 * The rows of one task for the `cec` sink, in a spool file of this machine.
 *
 * @param home of the log that they are for
 * @param conf of a call to the agent
 */
private[cec] final case class HeldOutput(checkpoint: String, home: String, logId: String, rows: OutputRows, conf: Map[String, String]) {
  def discard(): Unit = Files.deleteIfExists(Paths.get(rows.spool))
}

/** The output of this JVM's tasks that waits for the end of its batch, by the id of its frame. Thread-safe. */
private[cec] object HeldOutputs extends Logging {
  private val held = new ConcurrentHashMap[String, HeldOutput]()

  /** Keeps output until the driver asks this JVM to write. */
  def hold(output: HeldOutput): Unit = {
    LocalStores.prepareEnd()
    held.put(output.rows.frame, output)
    LocalStores.announce()
  }

  /**
   * Returns the output of a batch whose frames the driver names. Discards all other output of the run up to this batch,
   * and of earlier runs: its tasks or its batch failed.
   */
  def choose(checkpoint: String, generation: Long, batch: Long, frames: Set[String]): Seq[HeldOutput] = {
    val ours = held.values.asScala.toSeq.filter(each =>
      each.checkpoint == checkpoint && (each.rows.generation < generation || each.rows.generation == generation && each.rows.batch <= batch))
    val (chosen, others) = ours.partition(each => each.rows.generation == generation && frames(each.rows.frame))
    others.foreach(forget)
    chosen
  }

  /** Writes all output, as this JVM ends: the driver then finds it in the log. */
  def writeAll(): Unit = held.values.asScala.toSeq.groupBy(_.home).foreach { case (home, outputs) =>
    try {
      AgentStoreClient.writeAll(home, Some(outputs.head.logId), Nil, outputs.map(_.rows), outputs.head.conf)
      outputs.foreach(forget)
    } catch {
      case NonFatal(failure) => logWarning(s"${outputs.size} frames of output for $home are lost; their batch will run again", failure)
    }
  }

  /** Removes output that was written or that nobody wants. */
  def forget(output: HeldOutput): Unit = {
    held.remove(output.rows.frame)
    output.discard()
  }
}
