package org.apache.spark.sql.cec.recovery

import java.util.concurrent.TimeUnit
import java.util.concurrent.atomic.AtomicReference

import com.fasterxml.jackson.databind.JsonNode
import com.fasterxml.jackson.databind.node.ArrayNode

import org.apache.spark.internal.Logging
import org.apache.spark.sql.cec.RunContext
import org.apache.spark.sql.cec.agent.{Agent, Json}
import org.apache.spark.sql.cec.exchange.StoreLocations

/**
 * Asks the sources of a running query what they still have, again and again, in a thread of its own: batches do not wait
 * for an answer.
 */
private[recovery] final class SourceWatch(sources: SourceProbe) {
  private val newest = new AtomicReference[ArrayNode]()
  private var thread: Option[Thread] = None
  @volatile private var stopped = false

  /** The newest answer, once; begins to ask when it is first called. In one thread. */
  def take(): Option[ArrayNode] = {
    if (thread.isEmpty) thread = Some(SourceProbe.start("cec-source-watch", () => askForEver()))
    Option(newest.getAndSet(null))
  }

  /** Asks no more. An interruption alone may get lost in a client's failure. */
  def stop(): Unit = {
    stopped = true
    thread.foreach(_.interrupt())
  }

  private def askForEver(): Unit =
    try while (!stopped) {
      newest.set(sources.ask())
      TimeUnit.SECONDS.sleep(SourceWatch.EverySeconds)
    } catch {
      case _: InterruptedException => // the query has ended
    } finally sources.close()
}

private object SourceWatch {
  val EverySeconds = 10L
}

/**
 * Has the stores of a running query write what is dirty when a source is about to lose what a recovery would need
 * (`cec.sources.margin`). A recovery needs nothing old after that, but of a flow under a protocol: its line is not its own, so that
 * people are told.
 */
private[recovery] final class RetentionGuard(watch: SourceWatch, run: RunContext, conf: Map[String, String], isUnderProtocol: Boolean)
    extends Logging {
  private var flushedNs, warnedNs: Option[Long] = None

  /** Compares the newest answer, if there is one; between two batches, after the one that made `version`. */
  def keep(version: Long): Unit = watch.take().foreach { sources =>
    val request = Json.obj().put("checkpoint", run.checkpoint).put("home", run.home).put("version", version)
    request.set[JsonNode]("sources", sources)
    val answer = Agent.call("sources_now", request, conf)
    val deletes = answer.get("deletes").asBoolean // else it is a topic that is new, which will not happen again
    Json.text(answer.get("thin")).foreach(why => if (isUnderProtocol) { if (deletes) tellOfLine(why) } else write(why, version, deletes))
  }

  private def write(why: String, version: Long, deletes: Boolean): Unit = {
    val failed = Flush.ask(run, version, conf)
    if (failed.isEmpty) tell(why, version, deletes)
    failed.foreach(failure => logWarning(s"Spark CEC: not written, so a recovery still needs old input: $failure"))
  }

  def stop(): Unit = watch.stop()

  /** Once is what this is for; several times a minute is costly, and says that the source keeps too little. */
  private def tell(why: String, version: Long, deletes: Boolean): Unit = {
    val now = System.nanoTime()
    val line = s"Spark CEC: all that was dirty at batch ${version - 1} is written, so that a recovery needs nothing older: $why"
    if (flushedNs.exists(isRecent(_, now)) && !warnedNs.exists(isRecent(_, now))) {
      warnedNs = Some(now)
      logWarning(s"$line. This happens again and again: the source keeps too little for this query. Let it keep more (retention.ms, " +
        "retention.bytes), or let a recovery need less (spark.sql.streaming.stateStore.cec.U, CI)")
    } else logInfo(line)
    if (deletes) flushedNs = Some(now)
  }

  private def tellOfLine(why: String): Unit = {
    val now = System.nanoTime()
    if (!warnedNs.exists(isRecent(_, now))) {
      warnedNs = Some(now)
      logWarning(s"Spark CEC: a failure would take this flow back to a line that needs what its source is about to lose: $why. Let it keep " +
        "more (retention.ms, retention.bytes), or take checkpoints more often (checkpoint_interval)")
    }
  }

  private def isRecent(past: Long, now: Long) = now - past < TimeUnit.MINUTES.toNanos(1)
}
