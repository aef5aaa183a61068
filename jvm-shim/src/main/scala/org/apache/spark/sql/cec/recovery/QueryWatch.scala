package org.apache.spark.sql.cec.recovery

import java.util.{UUID, WeakHashMap}
import java.util.concurrent.ConcurrentHashMap

import scala.jdk.CollectionConverters._
import scala.util.control.NonFatal

import org.apache.hadoop.fs.Path

import org.apache.spark.internal.Logging
import org.apache.spark.sql.SparkSession
import org.apache.spark.sql.cec.RunContext
import org.apache.spark.sql.cec.agent.{Agent, Json}
import org.apache.spark.sql.execution.streaming.runtime.StreamMetadata
import org.apache.spark.sql.streaming.StreamingQueryListener
import org.apache.spark.sql.streaming.StreamingQueryListener._

/**
 * Follows the progress of a session's queries: asks the agent for the report once a recovery is over, and, now and then,
 * to trim the log. Nothing that it does is needed for a result to be right.
 */
private[recovery] final class QueryWatch(session: SparkSession) extends StreamingQueryListener with Logging {
  private final class Watched(
      val run: RunContext, replays: Boolean, val conf: Map[String, String], val retained: Int, val clock: BatchClock, val turn: Long) {
    @volatile var reported: Boolean = run.replayTo == 0
    @volatile var replaying: Boolean = replays
  }

  private val expected = new ConcurrentHashMap[String, Watched]()
  private val running = new ConcurrentHashMap[UUID, Watched]()

  /** The run of a query that is about to start; `replays` tells whether it begins with batches that were committed before. */
  def expect(run: RunContext, replays: Boolean, conf: Map[String, String], retained: Int, clock: BatchClock, turn: Long): Unit =
    expected.put(run.checkpoint, new Watched(run, replays, conf, retained, clock, turn))

  override def onQueryStarted(event: QueryStartedEvent): Unit = ()

  override def onQueryProgress(event: QueryProgressEvent): Unit = {
    val progress = event.progress
    try watched(progress.runId, progress.id).foreach { query =>
      query.clock.note(progress)
      if (progress.batchId >= query.run.replayTo - 1) {
        query.replaying = false
        if (!query.reported) report(query, progress.batchId)
      }
      if (progress.batchId % QueryWatch.TrimEvery == QueryWatch.TrimEvery - 1) trim(query, progress.batchId)
    } catch {
      case NonFatal(e) => logWarning(s"Spark CEC: after batch ${progress.batchId} of query ${progress.id}", e)
    }
  }

  override def onQueryTerminated(event: QueryTerminatedEvent): Unit = {
    val ended = watched(event.runId, event.id)
    running.remove(event.runId)
    ended.foreach { query =>
      if (query.replaying && event.exception.isEmpty) {
        logWarning(s"Spark CEC: query ${event.id} was stopped before its replay was over, so the next start begins it again. A start " +
          "that runs one batch only, as Trigger.Once does, gets no further that way: use Trigger.AvailableNow")
      }
      Agent.release(query.run.checkpoint, query.turn, query.conf)
    }
  }

  /** The query of a run; which checkpoint it has is told by the query id, which Spark keeps there. */
  private def watched(runId: UUID, queryId: UUID): Option[Watched] = Option(running.get(runId)).orElse {
    val hadoopConf = session.sessionState.newHadoopConf()
    val found = expected.keys.asScala.find { checkpoint =>
      StreamMetadata.read(new Path(checkpoint, "metadata"), hadoopConf).exists(_.id == queryId.toString)
    }
    found.map { checkpoint =>
      val query = expected.remove(checkpoint)
      running.put(runId, query)
      query
    }
  }

  private def report(query: Watched, batch: Long): Unit = {
    val arguments = Json.obj()
      .put("checkpoint", query.run.checkpoint).put("home", query.run.home).put("generation", query.run.generation)
      .put("committed_batch", query.run.replayTo - 1).put("last_commit", batch)
    query.reported = Agent.call("report", arguments, query.conf).get("done").asBoolean
  }

  private def trim(query: Watched, batch: Long): Unit = {
    val arguments = Json.obj()
      .put("home", query.run.home).put("version", batch + 1).put("generation", query.run.generation).put("retained", query.retained)
    Agent.call("trim", arguments, query.conf)
  }
}

private[recovery] object QueryWatch {
  /** Batches between two looks for segments that can go. */
  private val TrimEvery = 20

  private val watches = new WeakHashMap[SparkSession, QueryWatch]()

  /** The watch of a session, made and registered when first asked for. */
  def of(session: SparkSession): QueryWatch = synchronized {
    var watch = watches.get(session)
    if (watch == null) {
      watch = new QueryWatch(session)
      session.streams.addListener(watch)
      watches.put(session, watch)
    }
    watch
  }
}
