package org.apache.spark.sql.cec.recovery

import java.util.concurrent.TimeUnit
import java.util.concurrent.atomic.AtomicReference

import scala.util.control.NonFatal

import org.apache.spark.internal.Logging
import org.apache.spark.sql.cec.RunContext
import org.apache.spark.sql.cec.agent.SourceState

/**
 * Asks the sources of a running query for their offsets, again and again. The watch has a thread of its own, so that
 * batches do not wait.
 */
private[recovery] final class SourceWatch(sources: SourceProbe) extends Logging {
  private val newest = new AtomicReference[Seq[SourceState]]()
  private var thread: Option[Thread] = None
  @volatile private var stopped = false

  /** Returns the newest answer once. The first call starts the thread. Only one thread may call it. */
  def take(): Option[Seq[SourceState]] = {
    if (thread.isEmpty) thread = Some(SourceProbe.start("cec-source-watch", () => pollSources()))
    Option(newest.getAndSet(null))
  }

  /** Stops the thread. The flag is needed because a client's failure may swallow the interrupt. */
  def stop(): Unit = {
    stopped = true
    thread.foreach(_.interrupt())
  }

  private def pollSources(): Unit =
    try while (!stopped) {
      newest.set(sources.ask())
      TimeUnit.SECONDS.sleep(SourceWatch.EverySeconds)
    } catch {
      case _: InterruptedException => // the query has ended
      case NonFatal(failure) => logWarning("Spark CEC: the sources are not asked any more, so cec.sources.margin has no effect until a restart", failure)
    } finally sources.close()
}

private object SourceWatch {
  val EverySeconds = 10L
}

/**
 * Makes the stores of a running query write their dirty windows before a source loses input that a recovery needs
 * (`cec.sources.margin`). A recovery then needs no old input.
 *
 * A flow under a protocol shares its line with other flows. So the guard only warns.
 */
private[recovery] final class ThinMarginGuard(watch: SourceWatch, run: RunContext, conf: Map[String, String], isUnderProtocol: Boolean)
    extends Logging {
  private var flushedNs, warnedNs: Option[Long] = None

  /** The newest answer of the sources, once; None if there is none since the last call. */
  def takeAnswer(): Option[Seq[SourceState]] = watch.take()

  /**
   * Follows the agent's comparison of the sources with the needs of a recovery. Call it between two batches, after the
   * batch that made `version`.
   *
   * @param why a source is about to lose what a recovery needs
   * @param deletes whether it has ever deleted a record; if not, its topic is new, which happens once
   */
  def follow(why: String, version: Long, deletes: Boolean): Unit =
    if (!isUnderProtocol) flushStores(why, version, deletes) else if (deletes) warnAboutLine(why)

  private def flushStores(why: String, version: Long, deletes: Boolean): Unit = {
    val failed = Flush.ask(run, version, None, conf)
    if (failed.isEmpty) logFlush(why, version, deletes)
    failed.foreach(failure => logWarning(s"Spark CEC: not written, so a recovery still needs old input: $failure"))
  }

  def stop(): Unit = watch.stop()

  /**
   * Logs a flush. Flushes several times a minute cost much, and show that the source keeps too little, so they become
   * a warning.
   */
  private def logFlush(why: String, version: Long, deletes: Boolean): Unit = {
    val now = System.nanoTime()
    val line = s"Spark CEC: all that was dirty at batch ${version - 1} is written, so that a recovery needs nothing older: $why"
    if (flushedNs.exists(isRecent(_, now)) && !warnedNs.exists(isRecent(_, now))) {
      warnedNs = Some(now)
      logWarning(s"$line. This happens again and again: the source keeps too little for this query. Let it keep more (retention.ms, " +
        "retention.bytes), or let a recovery need less (spark.sql.streaming.stateStore.cec.U, CI)")
    } else logInfo(line)
    if (deletes) flushedNs = Some(now)
  }

  private def warnAboutLine(why: String): Unit = {
    val now = System.nanoTime()
    if (!warnedNs.exists(isRecent(_, now))) {
      warnedNs = Some(now)
      logWarning(s"Spark CEC: a failure would take this flow back to a line that needs what its source is about to lose: $why. Let it keep " +
        "more (retention.ms, retention.bytes), or take checkpoints more often (checkpoint_interval)")
    }
  }

  private def isRecent(past: Long, now: Long) = now - past < TimeUnit.MINUTES.toNanos(1)
}
