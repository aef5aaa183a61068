package org.apache.spark.sql.cec.ui

import scala.util.Try

import org.apache.spark.sql.cec.recovery.Decision
import org.apache.spark.sql.streaming.StreamingQueryProgress

/**
 * A query of this application, as the tab knows it. A restart goes on with its samples. Safe for several threads.
 *
 * @param readActivity what Spark says that the query does; asked only for a page
 */
private[ui] final class TrackedQuery(begun: RunIdentity, decided: Decision, readBegun: () => Option[String]) {
  private val ring = new SampleRing
  private var identity = begun
  private var decision = decided
  private var readActivity = readBegun
  private var stage: Stage = Stage.Starting
  private var startedMs = System.currentTimeMillis()
  private var error, warning: Option[String] = None

  /** Begins another run of the query. */
  def restart(run: RunIdentity, anew: Decision, read: () => Option[String]): Unit = synchronized {
    identity = run
    decision = anew
    readActivity = read
    stage = Stage.Starting
    startedMs = System.currentTimeMillis()
    error = None
    warning = None
  }

  def replay(first: Long, last: Long, done: Long): Unit = synchronized {
    if (!stage.isOver) stage = if (done < last) Stage.Replaying(first, last, done) else Stage.Running
  }

  def note(progress: StreamingQueryProgress, nowMs: Long): Unit = {
    ring.add(Sample.of(progress, nowMs))
    synchronized(if (!stage.isOver) stage = Stage.Running)
  }

  def warn(why: Option[String]): Unit = synchronized {
    warning = why
  }

  /** Ends the run. A later call brings the error, or changes nothing. */
  def end(failure: Option[String]): Unit = synchronized {
    error = failure.orElse(error)
    stage = if (error.isDefined) Stage.Failed else Stage.Stopped
    readActivity = () => None // it holds the session
  }

  def isRun(runId: java.util.UUID): Boolean = synchronized(identity.runId == runId)

  def isOver: Boolean = synchronized(stage.isOver)

  def snapshot(nowMs: Long): QuerySnapshot = {
    val (read, over) = synchronized((readActivity, stage.isOver))
    // Spark's own answer may need a lock of Spark's, so it comes before ours.
    val activity = if (over) None else Try(read()).toOption.flatten
    synchronized(QuerySnapshot(identity, decision, stage, startedMs, activity, error, warning, ring.read(nowMs)))
  }
}
