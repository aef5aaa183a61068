package org.apache.spark.sql.cec.recovery

import java.util.UUID
import java.util.concurrent.ConcurrentHashMap

import scala.util.control.NonFatal

import org.apache.spark.SparkContext
import org.apache.spark.internal.Logging
import org.apache.spark.sql.SparkSession
import org.apache.spark.sql.cec.ui.CecTab
import org.apache.spark.sql.streaming.StreamingQueryListener
import org.apache.spark.sql.streaming.StreamingQueryListener._

/** Passes the progress of a session's queries to their runs. No result depends on it. */
private[recovery] final class QueryProgressListener(context: SparkContext) extends StreamingQueryListener with Logging {
  private val running = new ConcurrentHashMap[UUID, StartedRun]()

  /** Registers the run with this run id of Spark's. */
  def follow(runId: UUID, started: StartedRun): Unit = running.put(runId, started)

  def forget(runId: UUID): Unit = running.remove(runId)

  override def onQueryProgress(event: QueryProgressEvent): Unit = {
    val progress = event.progress
    try Option(running.get(progress.runId)).foreach(_.note(progress)) catch {
      case NonFatal(e) => logWarning(s"Spark CEC: after batch ${progress.batchId} of query ${progress.id}", e)
    }
  }

  override def onQueryStarted(event: QueryStartedEvent): Unit = ()

  /** The tab shows why a query failed. The run itself may have ended before. */
  override def onQueryTerminated(event: QueryTerminatedEvent): Unit =
    event.exception.foreach(failure => CecTab.queries(context).foreach(_.end(event.runId, Some(failure))))
}

private[recovery] object QueryProgressListener {
  /** The session's listener. The first call makes and registers it. */
  def of(session: SparkSession): QueryProgressListener = synchronized {
    session.streams.listListeners().collectFirst { case watch: QueryProgressListener => watch }.getOrElse {
      val watch = new QueryProgressListener(session.sparkContext)
      session.streams.addListener(watch)
      watch
    }
  }
}
