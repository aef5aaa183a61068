package org.apache.spark.sql.cec.ui

import java.util.UUID

import org.apache.spark.sql.cec.recovery.Decision

/** What a query does now. */
private[ui] sealed abstract class Stage(val word: String, val isOver: Boolean)

private[ui] object Stage {
  /** It waits for its lease, which another run or a dead process may still have, or it makes its sources. */
  case object Starting extends Stage("starting", isOver = false)

  /** It runs batches `first` to `last` again; `done` is the newest that it ran. */
  final case class Replaying(first: Long, last: Long, done: Long) extends Stage("replaying", isOver = false) {
    def total: Long = last - first + 1
    def ran: Long = Math.max(done - first + 1, 0)
  }

  case object Running extends Stage("running", isOver = false)
  case object Stopped extends Stage("stopped", isOver = true)
  case object Failed extends Stage("failed", isOver = true)
}

/**
 * The names of one run of a query.
 *
 * @param id of the query, which a restart keeps
 * @param home where its log is
 */
private[cec] final case class RunIdentity(name: Option[String], id: UUID, runId: UUID, checkpoint: String, home: String)

/**
 * All that the JVM knows of a query at one moment.
 *
 * @param activity what Spark says that the query does
 * @param error why it failed
 * @param warning what a source is about to lose
 * @param samples of the last hour, oldest first
 */
private[ui] final case class QuerySnapshot(
    identity: RunIdentity, decision: Decision, stage: Stage, startedMs: Long, activity: Option[String], error: Option[String],
    warning: Option[String], samples: Seq[Sample])
