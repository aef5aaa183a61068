package org.apache.spark.sql.cec.recovery

import java.util.ArrayDeque

import scala.util.control.NonFatal

import org.apache.spark.internal.Logging
import org.apache.spark.sql.cec.agent.{Agent, Json}

/**
 * Acknowledgements to the sources, held back for as long as a recovery may ask for the batches again: an upstream must
 * not discard what a replay would need.
 *
 * @param home the query's log
 */
private[recovery] final class Acknowledgements(home: String, conf: Map[String, String]) extends Logging {
  private val waiting = new ArrayDeque[Held]()

  /** Keeps the acknowledgement of a batch, and passes on those that no recovery will need. */
  def hold(batch: Long, acknowledge: () => Unit): Unit = synchronized {
    waiting.add(new Held(batch, acknowledge))
    give(batch)
  }

  /** Passes on what no recovery needs once `batch` is committed. That a source hears of it later does no harm. */
  def give(batch: Long): Unit = synchronized {
    if (!waiting.isEmpty) {
      val oldestNeeded = try dirtyFrom(batch + 1) catch {
        case NonFatal(failure) =>
          logWarning(s"Spark CEC: ${waiting.size} acknowledgements to the sources wait, because the agent cannot say what is needed", failure)
          -1L
      }
      while (!waiting.isEmpty && waiting.peek.batch < oldestNeeded) waiting.poll().acknowledge()
    }
  }

  /** D over all stores at a version whose commits are in the log: no replay begins before it. */
  private def dirtyFrom(version: Long): Long = {
    val answer = Agent.call("acknowledge", Json.obj().put("home", home).put("version", version), conf)
    Json.text(answer.get("dirty_from")).map(_.toLong).getOrElse(-1L)
  }
}

private final class Held(val batch: Long, val acknowledge: () => Unit)
