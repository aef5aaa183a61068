package org.apache.spark.sql.cec.recovery

import java.util.ArrayDeque

import scala.util.control.NonFatal

import org.apache.spark.internal.Logging
import org.apache.spark.sql.cec.agent.{AcknowledgeRequest, Agent}

/**
 * Holds acknowledgements to the sources back while a recovery may need their batches. After an acknowledgement a
 * source may discard its input.
 *
 * @param home the query's log
 */
private[recovery] final class Acknowledgements(home: String, conf: Map[String, String]) extends Logging {
  private val waiting = new ArrayDeque[HeldAcknowledgement]()

  /** Keeps the acknowledgement of a batch, and sends those that no recovery needs now. */
  def hold(batch: Long, acknowledge: () => Unit): Unit = synchronized {
    waiting.add(new HeldAcknowledgement(batch, acknowledge))
    give(batch)
  }

  /**
   * Sends the acknowledgements of batches that no recovery needs once `batch` is committed. A late acknowledgement
   * does no harm.
   */
  def give(batch: Long): Unit = synchronized {
    if (!waiting.isEmpty) {
      val oldestNeeded = try readDirtyFrom(batch + 1) catch {
        case NonFatal(failure) =>
          logWarning(s"Spark CEC: ${waiting.size} acknowledgements to the sources wait, because the agent cannot say what is needed", failure)
          -1L
      }
      while (!waiting.isEmpty && waiting.peek.batch < oldestNeeded) waiting.poll().acknowledge()
    }
  }

  /** Asks for D over all stores at a version whose commits are in the log. No replay begins before D. */
  private def readDirtyFrom(version: Long): Long =
    Agent.call(AcknowledgeRequest(home, version), conf).dirtyFrom.getOrElse(-1L)
}

private final class HeldAcknowledgement(val batch: Long, val acknowledge: () => Unit)
