package org.apache.spark.sql.cec.ui

import java.util.UUID

import scala.collection.mutable

import org.apache.spark.sql.cec.recovery.Decision
import org.apache.spark.sql.streaming.StreamingQueryProgress

/**
 * The queries of this application that the tab shows, by checkpoint: all that run, and the newest that have ended. Safe
 * for several threads. A call takes microseconds, and none waits for the agent.
 */
private[cec] final class TrackedQueries {
  private val known = mutable.LinkedHashMap.empty[String, TrackedQuery]

  /** A run begins. */
  def begin(run: RunIdentity, decision: Decision, readActivity: () => Option[String]): Unit = synchronized {
    // The newest start comes last, so that the oldest ends go first.
    known.remove(run.checkpoint) match {
      case Some(query) =>
        query.restart(run, decision, readActivity)
        known.put(run.checkpoint, query)
      case None => known.put(run.checkpoint, new TrackedQuery(run, decision, readActivity))
    }
    forgetOldest()
  }

  private def forgetOldest(): Unit = {
    val over = known.iterator.collect { case (checkpoint, query) if query.isOver => checkpoint }.toSeq
    over.take(Math.max(over.size - TrackedQueries.MostEnded, 0)).foreach(known.remove)
  }

  def note(checkpoint: String, progress: StreamingQueryProgress): Unit = find(checkpoint).foreach(_.note(progress, System.currentTimeMillis()))

  /** A replay of batches `first` to `last` has run `done`. */
  def replay(checkpoint: String, first: Long, last: Long, done: Long): Unit = find(checkpoint).foreach(_.replay(first, last, done))

  /** A source is about to lose what a recovery needs, or no longer is. */
  def warn(checkpoint: String, why: Option[String]): Unit = find(checkpoint).foreach(_.warn(why))

  /** A run has ended. */
  def end(runId: UUID, failure: Option[String]): Unit = synchronized(known.values.find(_.isRun(runId))).foreach(_.end(failure))

  private def find(checkpoint: String): Option[TrackedQuery] = synchronized(known.get(checkpoint))

  private[ui] def snapshots(nowMs: Long): Seq[QuerySnapshot] = synchronized(known.values.toSeq).map(_.snapshot(nowMs))
}

private[cec] object TrackedQueries {
  /** The tab forgets the oldest of more ended queries. */
  private[ui] val MostEnded = 100
}
