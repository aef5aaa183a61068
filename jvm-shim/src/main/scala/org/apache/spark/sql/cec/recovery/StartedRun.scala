package org.apache.spark.sql.cec.recovery

import java.util
import java.util.UUID
import java.util.concurrent.TimeUnit
import java.util.concurrent.atomic.AtomicBoolean

import scala.util.Try
import scala.util.control.NonFatal

import com.fasterxml.jackson.databind.JsonNode

import org.apache.spark.SparkContext
import org.apache.spark.internal.Logging
import org.apache.spark.sql.SparkSession
import org.apache.spark.sql.catalyst.plans.logical.LogicalPlan
import org.apache.spark.sql.catalyst.streaming.StreamingRelationV2
import org.apache.spark.sql.cec.RunContext
import org.apache.spark.sql.cec.agent.{Agent, CecException, QueryRefusedException, ReportRequest, TrimRequest}
import org.apache.spark.sql.cec.exchange.StoreLocations
import org.apache.spark.sql.cec.metrics.QuerySource
import org.apache.spark.sql.cec.ui.{CecTab, RunIdentity, TrackedQueries}
import org.apache.spark.sql.connector.catalog.{SupportsRead, Table}
import org.apache.spark.sql.connector.read.ScanBuilder
import org.apache.spark.sql.execution.streaming.continuous.ContinuousExecution
import org.apache.spark.sql.execution.streaming.runtime.{QueryExecutionThread, StreamExecution, StreamingRelation}
import org.apache.spark.sql.streaming.StreamingQueryProgress
import org.apache.spark.sql.util.CaseInsensitiveStringMap
import org.apache.spark.util.ThreadUtils

/**
 * A run of a query in its own thread. Before its first source exists, it takes the lease, opens the log and announces
 * itself to the stores. When the thread ends, it gives all of them back. If Spark refuses the start after our rule,
 * the run has no thread and takes nothing.
 *
 * @param decision the decision for its operators
 * @param plan of its recovery, from the agent
 * @param name of the query, if it has one
 * @param retained how many batches Spark keeps of it
 * @param hasState whether it has state of ours, and therefore a lease
 */
private[recovery] final class StartedRun(
    session: SparkSession, run: RunContext, conf: Map[String, String], decision: Decision, plan: JsonNode, name: Option[String],
    retained: Int, hasState: Boolean)
    extends Logging {
  private var turn: Option[Long] = None
  private var isLogOpen = false
  @volatile private var isReported = run.replayTo == 0 || !hasState
  @volatile private var source: Option[QuerySource] = None
  @volatile private var tab: Option[TrackedQueries] = None

  /** Writes the report and trims the log. An object store may take long for that. */
  private lazy val housekeeper = ThreadUtils.newDaemonSingleThreadExecutor("cec-housekeeper")
  private val isKeeping = new AtomicBoolean(false)

  /** Begins once. After a failure each later source fails in the same way. */
  private lazy val begun: Try[Unit] = Try(take())

  /**
   * Begins the run, in the stream's thread, before a source exists. Fails if another run has gone on meanwhile; this run
   * has then written nothing.
   */
  def begin(): Unit = begun.get

  private def take(): Unit = {
    val runId = UUID.fromString(session.sparkContext.getLocalProperty(SparkContext.SPARK_JOB_GROUP_ID)) // Spark names a query's jobs by the run id
    val watch = QueryProgressListener.of(session)
    StartedRun.whenOver(Thread.currentThread, {
      watch.forget(runId)
      endRun()
      tab.foreach(_.end(runId, None))
    })
    watch.follow(runId, this)
    showInTab(runId)
    if (hasState) {
      val lease = Agent.hold(run.checkpoint, run.home, run.generation, conf)
      turn = Some(lease.turn)
      run.number.becomes(lease.generation)
    }
    new SparkLogs(session, run.checkpoint).sweep()
    Agent.openLog(run.home, Some(run.logId), conf)
    isLogOpen = true
    run.announce(session.sparkContext, runId)
    DeferralRegistry.expect(session, run.checkpoint, decision)
    if (hasState) {
      StoreLocations.begin()
      registerMetrics()
    }
  }

  private def showInTab(runId: UUID): Unit = {
    val id = UUID.fromString(session.sparkContext.getLocalProperty(StreamExecution.QUERY_ID_KEY))
    val streams = session.streams // the tab keeps this after the run, so it must not hold the run
    tab = CecTab.attach(session.sparkContext)
    tab.foreach(_.begin(
      RunIdentity(name, id, runId, run.checkpoint, run.home), decision, () => Option(streams.get(id)).map(_.status.message)))
  }

  private def registerMetrics(): Unit = {
    val known = name.getOrElse(session.sparkContext.getLocalProperty(StreamExecution.QUERY_ID_KEY))
    try {
      val metrics = new QuerySource(known, run.checkpoint)
      metrics.add()
      source = Some(metrics)
    } catch {
      case NonFatal(e) => logWarning(s"Spark CEC: query $known is not in Spark's metrics", e)
    }
  }

  /** Handles the progress of a batch. Spark's events wait for this method, so a thread of the run calls the agent. */
  def note(progress: StreamingQueryProgress): Unit = {
    source.foreach(_.note(progress))
    val isTrimDue = progress.batchId % StartedRun.TrimEvery == StartedRun.TrimEvery - 1
    if ((isTrimDue || !isReported) && !housekeeper.isShutdown && isKeeping.compareAndSet(false, true)) housekeeper.execute(() =>
      try {
        report()
        if (isTrimDue) trim(progress.batchId)
      } catch {
        case NonFatal(e) => logWarning(s"Spark CEC: after batch ${progress.batchId} of the query with checkpoint ${run.checkpoint}", e)
      } finally isKeeping.set(false))
    tab.foreach(_.note(run.checkpoint, progress)) // last: it is for people alone
  }

  private def trim(batch: Long): Unit = Agent.call(TrimRequest(run.home, batch + 1, run.generation, retained), conf)

  /** Makes the agent write the recovery's report, once all stores are back. */
  private def report(): Unit = synchronized {
    if (isLogOpen && !isReported) {
      isReported = Agent.call(ReportRequest(run.checkpoint, run.home, run.generation, plan, run.startedMs), conf).done
    }
  }

  private def endRun(): Unit =
    try {
      source.foreach(_.remove())
      housekeeper.shutdown()
      housekeeper.awaitTermination(StartedRun.HousekeepingSeconds, TimeUnit.SECONDS)
      report() // a run may end before its first progress
    } catch {
      case NonFatal(e) => logWarning(s"Spark CEC: at the end of the query with checkpoint ${run.checkpoint}", e)
    } finally {
      if (isLogOpen) Agent.closeLog(run.home)
      turn.foreach(Agent.release(run.checkpoint, _, conf))
    }

  /** Wraps the sources of the plan, so that the first one begins the run. */
  def gate(plan: LogicalPlan): LogicalPlan = {
    // A relation that occurs twice is one source to Spark, which compares by equality.
    val gated = new util.HashMap[LogicalPlan, LogicalPlan]()
    Plans.transform(plan) {
      case relation @ (_: StreamingRelationV2 | _: StreamingRelation) => gated.computeIfAbsent(relation, gateRelation(_))
    }
  }

  private def gateRelation(relation: LogicalPlan): LogicalPlan = relation match {
    case v2: StreamingRelationV2 => v2.copy(table = gateTable(v2.table), v1Relation = v2.v1Relation.map(gateRelation))
    case v1: StreamingRelation => v1.copy(dataSource = new WrappedDataSource(v1.dataSource, source => {
      begin()
      source
    }))
    case other => other
  }

  private def gateTable(table: Table): Table = table match {
    case readable: SupportsRead => new TableDelegate(readable) with SupportsRead {
      override def newScanBuilder(options: CaseInsensitiveStringMap): ScanBuilder = {
        refuseContinuous()
        begin()
        readable.newScanBuilder(options)
      }
    }
    case other => other
  }

  /**
   * Refuses continuous processing, whose epochs do not come again with their recorded ends. Neither rule nor sink learns
   * the trigger. But Spark asks the sources in the constructor of such a query, within `start()`.
   */
  private def refuseContinuous(): Unit = if (StartedRun.isContinuous) QueryRefusedException.orResult(throw new CecException("Unsupported",
    s"the query with checkpoint ${run.checkpoint} has trigger(continuous=...), whose epochs may come again with other rows after a crash: use " +
      "trigger(processingTime=...)"))
}

private object StartedRun {
  /** Whether Spark makes a query for continuous processing in this thread. */
  private def isContinuous: Boolean =
    StackWalker.getInstance().walk[Boolean](_.anyMatch(_.getClassName == classOf[ContinuousExecution].getName))

  /** Batches between two trims of the log. */
  private val TrimEvery = 20

  /** How long the end of a run waits for its housekeeper. */
  private val HousekeepingSeconds = 10L

  /**
   * Runs `action` when the query's thread ends. Spark's event could get lost, in a full queue or with a closed
   * session.
   */
  def whenOver(stream: Thread, action: => Unit): Unit = stream match {
    case query: QueryExecutionThread =>
      SourceProbe.start("cec-run-end", () => {
        query.join()
        action
      })
    case other => throw new IllegalStateException(s"a run begins in the thread of its query, not in $other")
  }
}
