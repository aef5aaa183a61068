package org.apache.spark.sql.cec.recovery

import com.fasterxml.jackson.databind.JsonNode
import com.fasterxml.jackson.databind.node.ObjectNode
import scala.jdk.CollectionConverters._

import org.apache.spark.internal.Logging
import org.apache.spark.sql.SparkSession
import org.apache.spark.sql.catalyst.plans.logical.LogicalPlan
import org.apache.spark.sql.catalyst.rules.Rule
import org.apache.spark.sql.catalyst.streaming.WriteToStream
import org.apache.spark.sql.catalyst.trees.TreeNodeTag
import org.apache.spark.sql.cec.{CecStateStoreProvider, RunContext}
import org.apache.spark.sql.cec.agent.{Agent, CecException, Json, QueryRefusedException}
import org.apache.spark.sql.cec.source.{CecTable, SinkTarget}
import org.apache.spark.sql.execution.streaming.Sink
import org.apache.spark.sql.classic.{SparkSession => ClassicSession}
import org.apache.spark.sql.internal.SQLConf

/**
 * The analyzer rule: it sees every streaming query at its start, in the thread that calls `start()`, before the query's
 * execution exists, and prepares those that use our provider or our sink.
 */
case class PrepareQuery(session: SparkSession) extends Rule[LogicalPlan] with Logging {
  override def apply(plan: LogicalPlan): LogicalPlan = plan match {
    case write: WriteToStream if write.getTagValue(PrepareQuery.Done).isEmpty =>
      QueryRefusedException.orResult(new Preparation(session, write).prepare())
    case other => other
  }
}

private[cec] object PrepareQuery {
  /** Marks a node that was prepared: the rule may meet it again. */
  val Done: TreeNodeTag[Boolean] = TreeNodeTag[Boolean]("cec.prepared")

  val Provider: String = classOf[CecStateStoreProvider].getName
}

/** Spark's own errors for a start beside a query that runs: it checks after the rule, which must not touch the checkpoint, nor that query, then. */
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
  private val logs = new SparkLogs(session, checkpoint)
  private val sessionUsesUs = session.sessionState.conf.stateStoreProviderClass == PrepareQuery.Provider
  private val ourSink = Option(write.sink).collect { case table: CecTable => table }

  /** Whether a pipeline's protocol says when the query is checkpointed. */
  private val isUnderProtocol = conf.contains("spark.sql.streaming.stateStore.cec.protocol")
  private val speculation = session.sparkContext.conf.getBoolean("spark.speculation", false)
  private lazy val isStateful = write.inputQuery.exists(StatefulOperators.kind(_).isDefined)

  /**
   * Prepares the query (docs/design.md, One recovery, steps 1 to 5):
   *
   *  1. Refuse what cannot work, before anything is written.
   *  1. Decide which operators may be deferred. From here on no other run of this query may be alive.
   *  1. Plan the recovery: V, T. Up to here nothing is changed.
   *  1. Begin the run, if the sources have what it needs: generation, `query.json`.
   *  1. Wrap the sources, before the first of which the run begins in its own thread, and the replay runs, and the sink.
   *
   * Spark may refuse the start after that, so nothing is held any more then: the run takes the lease again in its own thread. If
   * another one has begun meanwhile, its generation is newer, and this run ends before it has written anything.
   */
  def prepare(): WriteToStream = {
    if (!concernsUs) return write
    val startedMs = System.currentTimeMillis()
    if (isUnderProtocol) FencedSinks.refuseForgetful(write.sink)
    val checked = check() // 1
    val home = checked.get("home").asText
    val decision = decide(checked) // 2
    stopActiveRun()
    holdingTheLease(home) {
      logs.sweep()
      val plan = planRecovery(home) // 3
      val run = beginRun(home, decision, plan, checked, startedMs) // 4
      wrap(run, decision, plan, checked) // 5
    }
  }

  /** What a query with our state does to its checkpoint, it does with the lease. */
  private def holdingTheLease(home: String)(start: => WriteToStream): WriteToStream =
    if (!usesOurState) start
    else {
      val turn = Agent.hold(checkpoint, home, conf)
      try start finally Agent.release(checkpoint, turn, conf)
    }

  private def concernsUs: Boolean =
    usesOurState || ourSink.isDefined || isUnderProtocol || (isStateful && logs.recordedProvider.contains(PrepareQuery.Provider))

  private def check(): JsonNode = ask("check", arguments()
    .put("sink_path", ourSink.flatMap(_.path).orNull).put("recorded_provider", logs.recordedProvider.orNull)
    .put("committed_batch", logs.lastCommitted).put("planned", logs.lastOffset >= 0).put("provider", sessionUsesUs).put("stateful", isStateful)
    .put("transform_with_state", write.inputQuery.exists(StatefulOperators.isTransformWithState(_))).put("speculation", speculation))

  private def usesOurState: Boolean = sessionUsesUs && isStateful

  private def decide(checked: JsonNode): Decision = {
    val mode = checked.get("mode").asText
    val promises = Promises(
      checked.get("replayable_sources").elements.asScala.map(_.asText).toSeq, checked.get("order_free_functions").asBoolean)
    val decision =
      if (usesOurState) new DeferralAnalysis(write, session.sessionState.conf, speculation, mode, promises).decide()
      else Decision(Nil)
    if (mode == "deferred" && decision.operators.exists(!_.deferred)) {
      throw new CecException("Unsupported",
        s"spark.sql.streaming.stateStore.cec.mode=deferred, but not all commits can be deferred: ${decision.reason}. Use mode=auto, " +
          "which defers those that can")
    }
    decision
  }

  /** Ends a run of the same query in this process, as Spark is about to, but before its logs are read. */
  private def stopActiveRun(): Unit = {
    Option(write.name).filter(name => session.streams.active.exists(_.name == name)).foreach(name => throw AlreadyActive.name(name))
    session.sharedState.activeStreamingQueries.values.asScala.filter(_.resolvedCheckpointRoot == checkpoint).foreach { run =>
      if (!session.sessionState.conf.getConf(SQLConf.STREAMING_STOP_ACTIVE_RUN_ON_RESTART)) {
        throw AlreadyActive.id(run.id)
      }
      run.stop()
    }
  }

  private def planRecovery(home: String): RecoveryPlan = {
    val named = usesOurState && session.sessionState.conf.stateStoreCheckpointFormatVersion >= 2
    RecoveryPlan(ask("plan", arguments().put("home", home).put("committed_batch", logs.lastCommitted).put("named", named)).get("plan"))
  }

  private def beginRun(home: String, decision: Decision, plan: RecoveryPlan, checked: JsonNode, startedMs: Long): RunContext = {
    val request = arguments().put("home", home).put("load_waves", loadWaves)
    request.set[JsonNode]("plan", plan.asTold)
    request.set[JsonNode]("log_seen", checked.get("log_id"))
    if (usesOurState && plan.committed >= 0) { // those of an eager query are not asked: it needs nothing old
      request.set[JsonNode]("sources", if (plan.isDue || decision.deferred.nonEmpty) SourceProbe.once(write.inputQuery) else Json.arr())
    }
    val content = Json.obj().put("mode", decision.mode).put("reason", decision.reason).put("provider", usesOurState)
    val operators = content.putArray("operators")
    decision.operators.foreach { op =>
      operators.addObject().put("operator", op.id).put("kind", op.kind).put("deferred", op.deferred).put("reason", op.reason)
    }
    request.set[JsonNode]("decision", content)
    request.set[JsonNode]("session_settings", Json.map(SessionSettings.of(session.sessionState.conf)))
    val begun = ask("begin_run", request)
    RunContext(
      checkpoint, home, begun.get("log_id").asText, begun.get("generation").asLong, plan.committed + 1, plan.base, decision.deferred,
      decision.counted, checked.get("accept").asBoolean, silent = isUnderProtocol, startedMs, begun.get("forecast"))
  }

  /** How many stores of an operator a core loads one after another. */
  private def loadWaves: Double =
    Math.max(1.0, session.sessionState.conf.numShufflePartitions.toDouble / Math.max(session.sparkContext.defaultParallelism, 1))

  private def wrap(run: RunContext, decision: Decision, plan: RecoveryPlan, checked: JsonNode): WriteToStream = {
    val sink = ourSink.fold(write.sink)(table =>
      table.writingTo(SinkTarget(checkpoint, run.home, run.logId, run.generation, SourceProbe.names(write.inputQuery))))
    val defers = decision.deferred.nonEmpty || plan.isDue || isUnderProtocol
    // Spark would record the wrapper's class in its commit log; a V1 sink is wrapped all the same, since it may pass over a batch.
    val recorded = session.sessionState.conf.enableStreamingSinkEvolution && !sink.isInstanceOf[Sink]
    val confirmed =
      if (!usesOurState || recorded) sink else FencedSinks.wrap(sink, halves = defers, () => Agent.confirm(checkpoint, run.home, run.generation, conf))
    val read =
      if (!defers) write.inputQuery
      else {
        val replay = Option.when(plan.isDue)(new Replay(session.asInstanceOf[ClassicSession], write, run, conf, plan.replayFrom, plan.committed))
        val looksBack = (decision.deferred.nonEmpty || isUnderProtocol) && checked.get("sources_margin").asDouble > 0
        val watch = Option.when(looksBack)(new SourceProbe(write.inputQuery)).filter(_.canBeAsked).map(new SourceWatch(_))
        val hooks = new QueryLifecycle(
          session, run, conf, plan.committed, replay, new Acknowledgements(run.home, conf),
          watch.map(new RetentionGuard(_, run, conf, isUnderProtocol)), flushes = checked.get("flush_at_stop").asBoolean && !isUnderProtocol, isUnderProtocol)
        WrappedSources.wrap(write.inputQuery, hooks)
      }
    val started = new StartedRun(
      session, run, conf, decision, plan.asTold, Option(write.name), session.sessionState.conf.minBatchesToRetain, usesOurState)
    val prepared = write.copy(sink = confirmed, inputQuery = started.gate(read))
    prepared.setTagValue(PrepareQuery.Done, true)
    prepared
  }

  /** Asks the agent, and passes on what it has to say to people. */
  private def ask(call: String, request: ObjectNode): JsonNode = {
    val answer = Agent.call(call, request, conf)
    answer.get("said").elements.asScala.foreach { word =>
      val line = s"Spark CEC: ${word.get("line").asText}"
      if (word.get("warns").asBoolean) logWarning(line) else logInfo(line)
    }
    answer
  }

  private def arguments(): ObjectNode = {
    val node = Json.obj().put("checkpoint", checkpoint)
    node.set[JsonNode]("conf", Json.map(conf))
    node
  }
}

/**
 * How a query comes back.
 *
 * @param committed the last committed batch, V
 * @param rewoundTo the last batch that all stores have in the log, T
 * @param base the version that the stores begin from: V + 1, or an older one where a frame is lost
 * @param asTold the plan of the agent, which keeps none: it comes back with later calls
 */
private final case class RecoveryPlan(committed: Long, rewoundTo: Long, base: Long, asTold: JsonNode) {
  def isDue: Boolean = rewoundTo < committed
  def replayFrom: Long = rewoundTo + 1
}

private object RecoveryPlan {
  def apply(told: JsonNode): RecoveryPlan =
    RecoveryPlan(told.get("committed_batch").asLong, told.get("rewound_to").asLong, told.get("base").asLong, told)
}
