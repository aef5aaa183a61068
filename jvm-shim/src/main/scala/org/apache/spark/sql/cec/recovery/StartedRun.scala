package org.apache.spark.sql.cec.recovery

import java.util
import java.util.UUID

import scala.util.Try
import scala.util.control.NonFatal

import com.fasterxml.jackson.databind.JsonNode

import org.apache.spark.SparkContext
import org.apache.spark.internal.Logging
import org.apache.spark.sql.SparkSession
import org.apache.spark.sql.catalyst.plans.logical.LogicalPlan
import org.apache.spark.sql.catalyst.streaming.StreamingRelationV2
import org.apache.spark.sql.cec.RunContext
import org.apache.spark.sql.cec.agent.{Agent, Json}
import org.apache.spark.sql.cec.exchange.StoreLocations
import org.apache.spark.sql.cec.metrics.QuerySource
import org.apache.spark.sql.connector.catalog.{SupportsRead, Table}
import org.apache.spark.sql.connector.read.ScanBuilder
import org.apache.spark.sql.execution.streaming.runtime.{QueryExecutionThread, StreamExecution, StreamingRelation}
import org.apache.spark.sql.streaming.StreamingQueryProgress
import org.apache.spark.sql.util.CaseInsensitiveStringMap

/**
 * A run of a query in its own thread: it takes the lease, opens the log and tells the stores there, before its first source is made, and
 * gives all that back when the thread has ended, however it ended. A start that Spark refuses after our rule has no thread, and
 * has taken nothing.
 *
 * @param decision what was decided for its operators
 * @param plan of its recovery, as the agent made it
 * @param name the query's, if it has one
 * @param retained how many batches Spark keeps of it
 * @param hasState whether it has state of ours, and with that a lease
 */
private[recovery] final class StartedRun(
    session: SparkSession, run: RunContext, conf: Map[String, String], decision: Decision, plan: JsonNode, name: Option[String],
    retained: Int, hasState: Boolean)
    extends Logging {
  private var turn: Option[Long] = None
  private var isOpen = false
  private var isReported = run.replayTo == 0 || !hasState
  @volatile private var source: Option[QuerySource] = None

  /** Once, with its first source; a run that could not begin has no other source. */
  private lazy val begun: Try[Unit] = Try(take())

  /** In the stream's thread, before a source is made. Fails if another run has begun meanwhile: nothing was written then. */
  def begin(): Unit = begun.get

  private def take(): Unit = {
    val runId = UUID.fromString(session.sparkContext.getLocalProperty(SparkContext.SPARK_JOB_GROUP_ID)) // so Spark names a query's jobs
    val watch = QueryProgressListener.of(session)
    StartedRun.whenOver(Thread.currentThread, {
      watch.forget(runId)
      end()
    })
    watch.follow(runId, this)
    if (hasState) turn = Some(Agent.hold(run.checkpoint, run.home, conf, Some(run.generation)))
    Agent.openLog(run.home, Some(run.logId), conf)
    isOpen = true
    run.announce(session.sparkContext)
    DeferralRegistry.expect(session, run.checkpoint, decision)
    if (hasState) {
      StoreLocations.begin()
      register()
    }
  }

  private def register(): Unit = {
    val known = name.getOrElse(session.sparkContext.getLocalProperty(StreamExecution.QUERY_ID_KEY))
    try {
      val metrics = new QuerySource(known, run.checkpoint)
      metrics.register()
      source = Some(metrics)
    } catch {
      case NonFatal(e) => logWarning(s"Spark CEC: query $known is not in Spark's metrics", e)
    }
  }

  /** A batch is done. */
  def note(progress: StreamingQueryProgress): Unit = {
    source.foreach(_.note(progress))
    report()
    if (progress.batchId % StartedRun.TrimEvery == StartedRun.TrimEvery - 1) trim(progress.batchId)
  }

  private def trim(batch: Long): Unit = {
    val arguments = Json.obj().put("home", run.home).put("version", batch + 1).put("generation", run.generation).put("retained", retained)
    Agent.call("trim", arguments, conf)
  }

  /** Has the agent write what the recovery was, once all stores are back. */
  private def report(): Unit = synchronized {
    if (isOpen && !isReported) {
      val arguments = Json.obj()
        .put("checkpoint", run.checkpoint).put("home", run.home).put("generation", run.generation).put("started_ms", run.startedMs)
      arguments.set[JsonNode]("plan", plan)
      isReported = Agent.call("report", arguments, conf).get("done").asBoolean
    }
  }

  private def end(): Unit =
    try {
      source.foreach(_.remove())
      report() // a run that was over before it had progress to tell of
    } catch {
      case NonFatal(e) => logWarning(s"Spark CEC: at the end of the query with checkpoint ${run.checkpoint}", e)
    } finally {
      if (isOpen) Agent.closeLog(run.home)
      turn.foreach(Agent.release(run.checkpoint, _, conf))
    }

  /** The plan, in which the run begins with the first source. The sources themselves are those that there were. */
  def gate(plan: LogicalPlan): LogicalPlan = {
    // A relation that occurs twice is one source to Spark, which tells by equality.
    val gated = new util.HashMap[LogicalPlan, LogicalPlan]()
    Plans.transform(plan) {
      case relation @ (_: StreamingRelationV2 | _: StreamingRelation) => gated.computeIfAbsent(relation, gatedRelation(_))
    }
  }

  private def gatedRelation(relation: LogicalPlan): LogicalPlan = relation match {
    case v2: StreamingRelationV2 => v2.copy(table = gatedTable(v2.table), v1Relation = v2.v1Relation.map(gatedRelation))
    case v1: StreamingRelation => v1.copy(dataSource = new WrappedDataSource(v1.dataSource, source => {
      begin()
      source
    }))
    case other => other
  }

  private def gatedTable(table: Table): Table = table match {
    case readable: SupportsRead => new TableDelegate(readable) with SupportsRead {
      override def newScanBuilder(options: CaseInsensitiveStringMap): ScanBuilder = {
        begin()
        readable.newScanBuilder(options)
      }
    }
    case other => other
  }
}

private object StartedRun {
  /** Batches between two looks for segments that can go. */
  private val TrimEvery = 20

  /** Runs `action` when a query's thread has ended. An event of its end may get lost: a queue may be full, or a session be over. */
  def whenOver(stream: Thread, action: => Unit): Unit = stream match {
    case query: QueryExecutionThread =>
      SourceProbe.start("cec-run-end", () => {
        query.join()
        action
      })
    case other => throw new IllegalStateException(s"a run begins in the thread of its query, not in $other")
  }
}
