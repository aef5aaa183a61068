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
  private val logs = new SparkLogs(session, checkpoint)
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
   * its own thread. If another run began meanwhile, its generation is newer, and this run ends before it writes
   * anything.
   */
  def prepare(): WriteToStream = {
    if (!needsPreparation) return write
    val startedMs = System.currentTimeMillis()
    if (isUnderProtocol) FencedSinks.refuseForgetful(write.sink)
    val checked = check() // 1
    val home = checked.get("home").asText
    val decision = decide(checked) // 2
    stopActiveRun()
    if (usesCecState) Agent.warnAboutIgnoredSettings(conf)
    val begun = askAgent("begin", describeStart(home, decision, checked)) // 3
    val plan = RecoveryPlan(begun.get("plan"))
    val run = RunContext(
      checkpoint, home, begun.get("log_id").asText, begun.get("generation").asLong, plan.committed + 1, plan.base, decision.deferred,
      decision.counted, checked.get("accept").asBoolean, silent = isUnderProtocol, startedMs, begun.get("forecast"))
    wrap(run, decision, plan, checked) // 4
  }

  private def needsPreparation: Boolean =
    usesCecState || cecSink.isDefined || isUnderProtocol || (isStateful && logs.recordedProvider.contains(PrepareQuery.Provider))

  private def check(): JsonNode = askAgent("check", makeRequest()
    .put("sink_path", cecSink.flatMap(_.path).orNull).put("recorded_provider", logs.recordedProvider.orNull)
    .put("committed_batch", logs.lastCommitted).put("planned", logs.lastOffset >= 0).put("provider", usesProvider).put("stateful", isStateful)
    .put("transform_with_state", write.inputQuery.exists(StatefulOperators.isTransformWithState(_))).put("speculation", speculation))

  private def usesCecState: Boolean = usesProvider && isStateful

  private def decide(checked: JsonNode): Decision = {
    val mode = checked.get("mode").asText
    val promises = Promises(
      checked.get("replayable_sources").elements.asScala.map(_.asText).toSeq, checked.get("order_free_functions").asBoolean)
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

  private def describeStart(home: String, decision: Decision, checked: JsonNode): ObjectNode = {
    val committed = logs.lastCommitted
    val named = usesCecState && session.sessionState.conf.stateStoreCheckpointFormatVersion >= 2
    val request = makeRequest().put("home", home).put("committed_batch", committed).put("named", named).put("load_waves", loadWaves)
      .put("wait_s", Agent.leaseWaitS(conf))
    request.set[JsonNode]("log_seen", checked.get("log_id"))
    request.set[JsonNode]("sources", if (usesCecState && committed >= 0) SourceProbe.once(write.inputQuery) else null)
    request.set[JsonNode]("decision", describe(decision))
    request.set[JsonNode]("session_settings", Json.map(SessionSettings.of(session.sessionState.conf)))
    request
  }

  private def describe(decision: Decision): ObjectNode = {
    val content = Json.obj().put("mode", decision.mode).put("reason", decision.reason).put("provider", usesCecState)
    val operators = content.putArray("operators")
    decision.operators.foreach { op =>
      operators.addObject().put("operator", op.id).put("kind", op.kind).put("deferred", op.deferred).put("reason", op.reason)
    }
    content
  }

  /** How many stores of an operator each core loads in sequence. */
  private def loadWaves: Double =
    Math.max(1.0, session.sessionState.conf.numShufflePartitions.toDouble / Math.max(session.sparkContext.defaultParallelism, 1))

  private def wrap(run: RunContext, decision: Decision, plan: RecoveryPlan, checked: JsonNode): WriteToStream = {
    val sink = cecSink.fold(write.sink)(table =>
      table.writingTo(SinkTarget(checkpoint, run.home, run.logId, run.generation, SourceProbe.names(write.inputQuery))))
    val defers = decision.deferred.nonEmpty || plan.isDue || isUnderProtocol
    // Spark would record the class of the wrapper in its commit log. A V1 sink is wrapped nevertheless, because it may
    // skip a batch.
    val recorded = session.sessionState.conf.enableStreamingSinkEvolution && !sink.isInstanceOf[Sink]
    val confirmed =
      if (!usesCecState || recorded) sink else FencedSinks.wrap(sink, halves = defers, () => Agent.confirm(checkpoint, run.home, run.generation, conf))
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
      session, run, conf, decision, plan.asTold, Option(write.name), session.sessionState.conf.minBatchesToRetain, usesCecState)
    val prepared = write.copy(sink = confirmed, inputQuery = started.gate(read))
    prepared.setTagValue(PrepareQuery.Done, true)
    prepared
  }

  /** Calls the agent and logs the messages of its answer. */
  private def askAgent(call: String, request: ObjectNode): JsonNode = {
    val answer = Agent.call(call, request, conf)
    answer.get("said").elements.asScala.foreach { word =>
      val line = s"Spark CEC: ${word.get("line").asText}"
      if (word.get("warns").asBoolean) logWarning(line) else logInfo(line)
    }
    answer
  }

  private def makeRequest(): ObjectNode = {
    val node = Json.obj().put("checkpoint", checkpoint)
    node.set[JsonNode]("conf", Json.map(conf))
    node
  }
}

/**
 * The plan of a recovery.
 *
 * @param committed V, the last committed batch
 * @param rewoundTo T, the batch before the first one to replay
 * @param base the version that the stores load: V + 1, or an older one if a frame is lost
 * @param asTold the agent's plan, which later calls send back because the agent keeps none
 */
private final case class RecoveryPlan(committed: Long, rewoundTo: Long, base: Long, asTold: JsonNode) {
  def isDue: Boolean = rewoundTo < committed
  def replayFrom: Long = rewoundTo + 1
}

private object RecoveryPlan {
  def apply(told: JsonNode): RecoveryPlan =
    RecoveryPlan(told.get("committed_batch").asLong, told.get("rewound_to").asLong, told.get("base").asLong, told)
}
