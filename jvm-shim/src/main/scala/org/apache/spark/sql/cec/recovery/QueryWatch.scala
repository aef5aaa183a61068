package org.apache.spark.sql.cec.recovery

import java.util.UUID
import java.util.concurrent.ConcurrentHashMap

import scala.jdk.CollectionConverters._
import scala.util.control.NonFatal

import org.apache.hadoop.fs.Path

import org.apache.spark.internal.Logging
import org.apache.spark.sql.SparkSession
import org.apache.spark.sql.cec.RunContext
import org.apache.spark.sql.cec.agent.{Agent, Json}
import org.apache.spark.sql.cec.metrics.QuerySource
import org.apache.spark.sql.execution.streaming.runtime.StreamMetadata
import org.apache.spark.sql.streaming.StreamingQueryListener
import org.apache.spark.sql.streaming.StreamingQueryListener._

/**
 * Follows the progress of a session's queries: asks the agent for the report once a recovery is over, and, now and then,
 * to trim the log. Nothing that it does is needed for a result to be right.
 */
private[recovery] final class QueryWatch(session: SparkSession) extends StreamingQueryListener with Logging {
  private final class Watched(
      val run: RunContext, val conf: Map[String, String], val retained: Int, val turn: Option[Long]) {
    @volatile var reported: Boolean = run.replayTo == 0 || turn.isEmpty
    @volatile var source: Option[QuerySource] = None
  }

  private val expected = new ConcurrentHashMap[String, Watched]()
  private val running = new ConcurrentHashMap[UUID, Watched]()

  /** The run of a query that is about to start, and its turn with the checkpoint's lease; None: it has no state, and nothing to recover. */
  def expect(run: RunContext, conf: Map[String, String], retained: Int, turn: Option[Long]): Unit =
    expected.put(run.checkpoint, new Watched(run, conf, retained, turn))

  override def onQueryStarted(event: QueryStartedEvent): Unit =
    try watched(event.runId, event.id).filter(_.turn.isDefined).foreach { query =>
      val source = new QuerySource(Option(event.name).getOrElse(event.id.toString), query.run.checkpoint)
      query.source = Some(source)
      source.register()
    } catch {
      case NonFatal(e) => logWarning(s"Spark CEC: query ${event.id} is not in Spark's metrics", e)
    }

  override def onQueryProgress(event: QueryProgressEvent): Unit = {
    val progress = event.progress
    try watched(progress.runId, progress.id).foreach { query =>
      query.source.foreach(_.note(progress))
      if (!query.reported) report(query)
      if (progress.batchId % QueryWatch.TrimEvery == QueryWatch.TrimEvery - 1) trim(query, progress.batchId)
    } catch {
      case NonFatal(e) => logWarning(s"Spark CEC: after batch ${progress.batchId} of query ${progress.id}", e)
    }
  }

  override def onQueryTerminated(event: QueryTerminatedEvent): Unit = {
    val ended = watched(event.runId, event.id)
    running.remove(event.runId)
    ended.foreach { query =>
      query.source.foreach(_.remove())
      try if (!query.reported) report(query) // a run that was over before it had progress to tell of
      finally {
        Agent.closeLog(query.run.home)
        query.turn.foreach(Agent.release(query.run.checkpoint, _, query.conf))
      }
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

  private def report(query: Watched): Unit = {
    val arguments = Json.obj()
      .put("checkpoint", query.run.checkpoint).put("home", query.run.home).put("generation", query.run.generation)
      .put("committed_batch", query.run.replayTo - 1)
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

  /** The watch of a session, made and registered when first asked for. */
  def of(session: SparkSession): QueryWatch = synchronized {
    session.streams.listListeners().collectFirst { case watch: QueryWatch => watch }.getOrElse {
      val watch = new QueryWatch(session)
      session.streams.addListener(watch)
      watch
    }
  }
}
