package org.apache.spark.sql.cec.recovery

import scala.jdk.CollectionConverters._

import org.apache.spark.internal.Logging
import org.apache.spark.sql.SparkSession
import org.apache.spark.sql.catalyst.plans.logical.LogicalPlan
import org.apache.spark.sql.catalyst.rules.Rule
import org.apache.spark.sql.catalyst.streaming.WriteToStream
import org.apache.spark.sql.catalyst.trees.TreeNodeTag
import org.apache.spark.sql.cec.{CecStateStoreProvider, RunContext, RunNumber}
import org.apache.spark.sql.cec.agent._
import org.apache.spark.sql.cec.source.{CecTable, SinkTarget}
import org.apache.spark.sql.connector.catalog.Table
import org.apache.spark.sql.execution.streaming.Sink
import org.apache.spark.sql.classic.{SparkSession => ClassicSession}
import org.apache.spark.sql.internal.SQLConf

/**
 * The analyzer rule that prepares each streaming query with our provider or our sink. The rule sees a query at its
 * start, in the thread that calls `start()`, before the query's execution exists.
 */
case class PrepareQuery(session: SparkSession) extends Rule[LogicalPlan] with Logging {
  override def apply(plan: LogicalPlan): LogicalPlan = plan match {
    case write: WriteToStream if write.getTagValue(PrepareQuery.Done).isEmpty =>
      QueryRefusedException.orResult(new Preparation(session, write).prepare())
    case other => other
  }
}

private[cec] object PrepareQuery {
  /** Marks a prepared node, because the rule may see it again. */
  val Done: TreeNodeTag[Boolean] = TreeNodeTag[Boolean]("cec.prepared")

  val Provider: String = classOf[CecStateStoreProvider].getName
}

/**
 * Spark's own errors for a start of a query that runs already. Spark checks that after the rule, but the rule may then
 * touch neither the checkpoint nor that query.
 */
private object AlreadyActive {
  def name(name: String): IllegalArgumentException = new IllegalArgumentException(
    s"Cannot start query with name $name as a query with that name is already active in this SparkSession")

  def id(id: java.util.UUID): IllegalStateException = new IllegalStateException(
    s"Cannot start query with id $id as another query with same id is already active. Perhaps you are attempting to restart a query from " +
      "checkpoint that is already active. You may stop the old query by setting the SQL configuration: " +
      s"""spark.conf.set("${SQLConf.STREAMING_STOP_ACTIVE_RUN_ON_RESTART.key}", true) and retry.""")
}

/** The preparation of one start of one query. */
private final class Preparation(session: SparkSession, write: WriteToStream) extends Logging {
  private val checkpoint = write.resolvedCheckpointLocation
  private val conf = session.sessionState.conf.getAllConfs.filter(_._1.startsWith("spark.sql.streaming.stateStore."))
  private lazy val logs = new SparkLogs(session, checkpoint)
  private val usesProvider = session.sessionState.conf.stateStoreProviderClass == PrepareQuery.Provider
  private val cecSink = Option(write.sink).collect { case table: CecTable => table }

  /** Whether a pipeline's protocol decides when the query takes a checkpoint. */
  private val isUnderProtocol = conf.contains("spark.sql.streaming.stateStore.cec.protocol")
  private val speculation = session.sparkContext.conf.getBoolean("spark.speculation", false)
  private lazy val isStateful = write.inputQuery.exists(StatefulOperators.kind(_).isDefined)

  /**
   * Prepares the query (docs/design.md, One recovery, steps 1 to 4):
   *
   *  1. Refuse settings that cannot work, before anything is written.
   *  1. Decide which operators may be deferred. Then stop a run of the query in this process; the lease keeps other
   *     processes out.
   *  1. Report the facts of the query, and let the agent decide where it continues. The agent numbers and records the
   *     run, or refuses it.
   *  1. Wrap the sources and the sink. The first wrapped source starts the run and its replay, in the run's own
   *     thread.
   *
   * Spark may still refuse the start, so the agent holds the lease only in step 3. The run takes the lease again in
   * its own thread. If another run has committed a batch meanwhile, this run ends before it writes anything.
   */
  def prepare(): WriteToStream = {
    if (!needsPreparation) return write
    val startedMs = System.currentTimeMillis()
    if (isUnderProtocol) FencedSinks.refuseForgetful(write.sink)
    val checked = check() // 1
    val decision = decide(checked) // 2
    stopActiveRun()
    if (usesCecState) Agent.warnAboutIgnoredSettings(conf)
    val begun = begin(decision, checked) // 3
    val run = RunContext(
      checkpoint, checked.home, begun.logId, new RunNumber(begun.generation), begun.committedBatch + 1, begun.base, decision.deferred,
      decision.counted, checked.accept, silent = isUnderProtocol, together = begun.writeAt != "task", startedMs, begun.forecast)
    wrap(run, decision, begun, checked) // 4
  }

  private def needsPreparation: Boolean =
    usesCecState || cecSink.isDefined || isUnderProtocol || (isStateful && logs.recordedProvider.contains(PrepareQuery.Provider))

  private def check(): CheckAnswer = {
    val query = QueryFacts(
      usesProvider, isStateful, planned = logs.lastOffset >= 0, logs.recordedProvider,
      write.inputQuery.exists(StatefulOperators.isTransformWithState(_)), speculation)
    val checked = Agent.call(CheckRequest(checkpoint, conf, cecSink.flatMap(_.path), logs.lastCommitted, query), conf)
    report(checked.said)
    checked
  }

  private def usesCecState: Boolean = usesProvider && isStateful

  private def decide(checked: CheckAnswer): Decision = {
    val mode = checked.mode
    val promises = Promises(checked.replayableSources, checked.orderFreeFunctions)
    val decision =
      if (usesCecState) new DeferralAnalysis(write, session.sessionState.conf, speculation, mode, promises).decide()
      else Decision(Nil)
    if (mode == "deferred" && decision.operators.exists(!_.deferred)) {
      throw new CecException("Unsupported",
        s"spark.sql.streaming.stateStore.cec.mode=deferred, but not all commits can be deferred: ${decision.reason}. Use mode=auto, " +
          "which defers those that can")
    }
    decision
  }

  /**
   * Stops a run of the same query in this process. Spark would do it later, but this rule must read the logs after it.
   */
  private def stopActiveRun(): Unit = {
    Option(write.name).filter(name => session.streams.active.exists(_.name == name)).foreach(name => throw AlreadyActive.name(name))
    session.sharedState.activeStreamingQueries.values.asScala.filter(_.resolvedCheckpointRoot == checkpoint).foreach { run =>
      if (!session.sessionState.conf.getConf(SQLConf.STREAMING_STOP_ACTIVE_RUN_ON_RESTART)) {
        throw AlreadyActive.id(run.id)
      }
      run.stop()
    }
  }

  private def begin(decision: Decision, checked: CheckAnswer): BeginAnswer = {
    val committed = logs.lastCommitted
    val begun = Agent.call(BeginRequest(
      checkpoint,
      conf,
      checked.home,
      checked.logId,
      committed,
      named = usesCecState && session.sessionState.conf.stateStoreCheckpointFormatVersion >= 2,
      describe(decision),
      Option.when(usesCecState && committed >= 0)(SourceProbe.once(write.inputQuery)),
      SessionSettings.of(session.sessionState.conf),
      loadWaves,
      sink = if (!waits(write.sink) || isUnderProtocol) "free" else if (cecSink.isDefined) "log" else "waits",
      Agent.leaseWaitS(conf)), conf)
    report(begun.said)
    begun
  }

  private def describe(decision: Decision): QueryDecision = QueryDecision(
    decision.mode, decision.reason, usesCecState,
    decision.operators.map(op => OperatorDecision(op.id, op.kind, op.deferred, op.reason)))

  /** Logs the messages of the agent. */
  private def report(said: Seq[StartMessage]): Unit = said.foreach { message =>
    if (message.warns) logWarning(s"Spark CEC: ${message.line}") else logInfo(s"Spark CEC: ${message.line}")
  }

  /** How many stores of an operator each core loads in sequence. */
  private def loadWaves: Double =
    Math.max(1.0, session.sessionState.conf.numShufflePartitions.toDouble / Math.max(session.sparkContext.defaultParallelism, 1))

  /**
   * Whether the sink is wrapped, so that its commit waits for the end of the batch. Spark would record the class of the
   * wrapper in its commit log. A V1 sink is wrapped nevertheless, because it may skip a batch.
   */
  private def waits(sink: Table): Boolean = {
    val isRecorded = session.sessionState.conf.enableStreamingSinkEvolution && !sink.isInstanceOf[Sink]
    usesCecState && !isRecorded && FencedSinks.wraps(sink)
  }

  /** Notes a boundary with the output; None if the output has no log. */
  private def passOn(run: RunContext, committed: Long): Option[InputBoundary => Unit] = Option.when(cecSink.isDefined) { boundary =>
    val batch = SourceEvents.lastBatch(session).getOrElse(committed)
    Agent.call(BoundaryRequest(run.home, batch, run.generation, boundary.quietMs, boundary.columns), conf)
  }

  private def wrap(run: RunContext, decision: Decision, begun: BeginAnswer, checked: CheckAnswer): WriteToStream = {
    val committed = begun.committedBatch
    val isReplayDue = begun.rewoundTo < committed
    val sink = cecSink.fold(write.sink)(table =>
      table.writingTo(SinkTarget(checkpoint, run.home, run.logId, run.number, SourceProbe.names(write.inputQuery), run.together)))
    val defers = decision.deferred.nonEmpty || isReplayDue || isUnderProtocol
    val end = new BatchEnd(session, run, conf, isAsync = begun.writeAt == "async")
    val confirmed = if (!waits(sink)) sink else FencedSinks.wrap(sink, halves = defers, end)
    val asksInputs = checked.quietInputsMs.isDefined || QuietInputs.findSources(write.inputQuery).exists(QuietInputs.isReadByBuckets)
    val quiet = Option.when(asksInputs)(new QuietInputs(
      session, write.inputQuery, write.outputMode, checked.quietInputsMs.map(_.round), passOn(run, committed))).filterNot(_.isEmpty)
    val read =
      if (!defers && !end.isAsync && quiet.isEmpty) write.inputQuery
      else if (!isStateful && !isUnderProtocol) {
        quiet.fold(write.inputQuery)(inputs => WrappedSources.wrap(write.inputQuery, new StatelessRun(session, inputs)))
      }
      else {
        val replay = Option.when(isReplayDue)(
          new Replay(session.asInstanceOf[ClassicSession], write, run, conf, begun.rewoundTo + 1, committed))
        val looksBack = (decision.deferred.nonEmpty || isUnderProtocol) && checked.sourcesMargin > 0
        val watch = Option.when(looksBack)(new SourceProbe(write.inputQuery)).filter(_.canBeAsked).map(new SourceWatch(_))
        val hooks = new QueryLifecycle(
          session, run, conf, committed, replay, end, quiet, new Acknowledgements(run.home, conf),
          watch.map(new ThinMarginGuard(_, run, conf, isUnderProtocol)), flushes = checked.flushAtStop && !isUnderProtocol, isUnderProtocol)
        WrappedSources.wrap(write.inputQuery, hooks)
      }
    val started = new StartedRun(
      session, run, conf, decision, begun.plan, Option(write.name), session.sessionState.conf.minBatchesToRetain, usesCecState)
    val agreed = AgreedSources.of(session, conf, logs.lastOffset).fold(read)(_.wrap(read))
    val prepared = write.copy(sink = confirmed, inputQuery = started.gate(agreed))
    prepared.setTagValue(PrepareQuery.Done, true)
    prepared
  }
}
