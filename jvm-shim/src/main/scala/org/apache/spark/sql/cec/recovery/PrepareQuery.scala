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
import org.apache.spark.sql.cec.agent.{Agent, CecException, Json, Refused}
import org.apache.spark.sql.cec.exchange.StoreDirectory
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
      Refused.orResult(new Preparation(session, write).prepare())
    case other => other
  }
}

private[cec] object PrepareQuery {
  /** Marks a node that was prepared: the rule may meet it again. */
  val Done: TreeNodeTag[Boolean] = TreeNodeTag[Boolean]("cec.prepared")

  val Provider: String = classOf[CecStateStoreProvider].getName
}

/** Spark's own error for a second start of a query that runs: it checks after the rule, which must not touch the checkpoint then. */
private object AlreadyActive {
  def error(id: java.util.UUID): IllegalStateException = new IllegalStateException(
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
  private lazy val isStateful = write.inputQuery.exists(Stateful.kind(_).isDefined)

  /**
   * Prepares the query (design, section 6):
   *
   *  1. Refuse what cannot work, before anything is written.
   *  1. Decide which operators may be deferred. From here on no other run of this query may be alive.
   *  1. Plan the recovery: V, T. Up to here nothing is changed.
   *  1. Begin the run, if the sources have what it needs: generation, `query.json`, the word to the state stores.
   *  1. Wrap the sources, before the first of which the replay runs, and the sink.
   */
  def prepare(): WriteToStream = {
    if (!concernsUs) return write
    val startedMs = System.currentTimeMillis()
    if (isUnderProtocol) ConfirmedSinks.refuseForgetful(write.sink)
    val checked = check() // 1
    val home = checked.get("home").asText
    val decision = decide(checked) // 2
    holdingTheLease { turn =>
      logs.sweep()
      val plan = planRecovery(home) // 3
      val run = beginRun(home, decision, plan, checked, startedMs, turn) // 4
      wrap(run, decision, plan, checked) // 5
    }
  }

  /** Whoever uses our state has its lease from here to the query's end; a start that fails gives it back at once. */
  private def holdingTheLease(start: Long => WriteToStream): WriteToStream = {
    stopActiveRun()
    if (!usesOurState) start(0L)
    else {
      val turn = Agent.hold(checkpoint, conf)
      try start(turn) catch {
        case failure: Throwable =>
          Agent.release(checkpoint, turn, conf)
          throw failure
      }
    }
  }

  private def concernsUs: Boolean =
    usesOurState || ourSink.isDefined || isUnderProtocol || (isStateful && logs.recordedProvider.contains(PrepareQuery.Provider))

  private def check(): JsonNode = ask("check", arguments()
    .put("sink_path", ourSink.flatMap(_.path).orNull).put("recorded_provider", logs.recordedProvider.orNull)
    .put("committed_batch", logs.lastCommitted).put("planned", logs.lastOffset >= 0).put("provider", sessionUsesUs).put("stateful", isStateful)
    .put("transform_with_state", write.inputQuery.exists(Stateful.isTransformWithState(_))).put("speculation", speculation))

  private def usesOurState: Boolean = sessionUsesUs && isStateful

  private def decide(checked: JsonNode): Decision = {
    val mode = checked.get("mode").asText
    val promises = Promises(
      checked.get("replayable_sources").elements.asScala.map(_.asText).toSeq, checked.get("order_free_functions").asBoolean)
    val decision =
      if (usesOurState) new Deferral(write, session.sessionState.conf, speculation, mode, promises).decide()
      else Decision(Nil)
    if (mode == "deferred" && decision.operators.exists(!_.deferred)) {
      throw new CecException("Unsupported",
        s"spark.sql.streaming.stateStore.cec.mode=deferred, but not all commits can be deferred: ${decision.reason}. Use mode=auto, " +
          "which defers those that can")
    }
    decision
  }

  /** Ends a run of the same query in this process, as Spark is about to, but before its logs are read. */
  private def stopActiveRun(): Unit =
    session.sharedState.activeStreamingQueries.values.asScala.filter(_.resolvedCheckpointRoot == checkpoint).foreach { run =>
      if (!session.sessionState.conf.getConf(SQLConf.STREAMING_STOP_ACTIVE_RUN_ON_RESTART)) {
        throw AlreadyActive.error(run.id)
      }
      run.stop()
    }

  private def planRecovery(home: String): RecoveryPlan = {
    val named = usesOurState && session.sessionState.conf.stateStoreCheckpointFormatVersion >= 2
    val answer = ask("plan", arguments().put("home", home).put("committed_batch", logs.lastCommitted).put("named", named))
    RecoveryPlan(answer.get("committed_batch").asLong, answer.get("rewound_to").asLong, answer.get("base").asLong)
  }

  private def beginRun(
      home: String, decision: Decision, plan: RecoveryPlan, checked: JsonNode, startedMs: Long, turn: Long): RunContext = {
    val request = arguments().put("home", home).put("committed_batch", plan.committed).put("load_waves", loadWaves)
    if (usesOurState && plan.committed >= 0) { // those of an eager query are not asked: it needs nothing old
      request.set[JsonNode]("sources", if (plan.isDue || decision.deferred.nonEmpty) AskedSources.once(write.inputQuery) else Json.arr())
    }
    val content = Json.obj().put("mode", decision.mode).put("reason", decision.reason).put("provider", usesOurState)
    val operators = content.putArray("operators")
    decision.operators.foreach { op =>
      operators.addObject().put("operator", op.id).put("kind", op.kind).put("deferred", op.deferred).put("reason", op.reason)
    }
    request.set[JsonNode]("decision", content)
    request.set[JsonNode]("session_settings", Json.map(SessionSettings.of(session.sessionState.conf)))
    val begun = ask("begin_run", request)
    val logId = begun.get("log_id").asText
    Agent.openLog(home, Some(logId), conf)
    val run = RunContext(
      checkpoint, home, logId, begun.get("generation").asLong, plan.committed + 1, plan.base, decision.deferred, decision.counted,
      checked.get("accept").asBoolean, silent = isUnderProtocol, startedMs, begun.get("forecast"))
    run.announce(session.sparkContext)
    PlannedQueries.expect(session, checkpoint, decision)
    if (usesOurState) {
      Agent.holdAs(checkpoint, run.generation, home, conf)
      StoreDirectory.begin()
    }
    QueryWatch.of(session).expect(run, conf, session.sessionState.conf.minBatchesToRetain, Option.when(usesOurState)(turn))
    run
  }

  /** How many stores of an operator a core loads one after another. */
  private def loadWaves: Double =
    Math.max(1.0, session.sessionState.conf.numShufflePartitions.toDouble / Math.max(session.sparkContext.defaultParallelism, 1))

  private def wrap(run: RunContext, decision: Decision, plan: RecoveryPlan, checked: JsonNode): WriteToStream = {
    val sink = ourSink.fold(write.sink)(table =>
      table.writingTo(SinkTarget(checkpoint, run.home, run.logId, run.generation, AskedSources.names(write.inputQuery))))
    val defers = decision.deferred.nonEmpty || plan.isDue || isUnderProtocol
    // Spark would record the wrapper's class in its commit log; a V1 sink is wrapped all the same, since it may pass over a batch.
    val recorded = session.sessionState.conf.enableStreamingSinkEvolution && !sink.isInstanceOf[Sink]
    val confirmed =
      if (!usesOurState || recorded) sink else ConfirmedSinks.wrap(sink, halves = defers, () => Agent.confirm(checkpoint, run.generation, conf))
    val prepared =
      if (!defers) write.copy(sink = confirmed)
      else {
        val replay = Option.when(plan.isDue)(new Replay(session.asInstanceOf[ClassicSession], write, run, conf, plan.replayFrom, plan.committed))
        val looksBack = (decision.deferred.nonEmpty || isUnderProtocol) && checked.get("sources_margin").asDouble > 0
        val watch = Option.when(looksBack)(new AskedSources(write.inputQuery)).filter(_.canBeAsked).map(new SourceWatch(_))
        val hooks = new QueryRun(
          session, run, conf, plan.committed, replay, new Acknowledgements(run.home, conf),
          watch.map(new MarginKeeper(_, run, conf, isUnderProtocol)), flushes = checked.get("flush_at_stop").asBoolean && !isUnderProtocol, isUnderProtocol)
        write.copy(sink = confirmed, inputQuery = WrappedSources.wrap(write.inputQuery, hooks))
      }
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
 */
private final case class RecoveryPlan(committed: Long, rewoundTo: Long, base: Long) {
  def isDue: Boolean = rewoundTo < committed
  def replayFrom: Long = rewoundTo + 1
}
