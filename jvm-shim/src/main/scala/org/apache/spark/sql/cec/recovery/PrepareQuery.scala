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
import org.apache.spark.sql.cec.source.CecTable
import org.apache.spark.sql.execution.streaming.Sink
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

/** The preparation of one start of one query. */
private final class Preparation(session: SparkSession, write: WriteToStream) extends Logging {
  private val checkpoint = write.resolvedCheckpointLocation
  private val conf = session.sessionState.conf.getAllConfs.filter(_._1.startsWith("spark.sql.streaming.stateStore."))
  private val logs = new SparkLogs(session, checkpoint)
  private val sessionUsesUs = session.sessionState.conf.stateStoreProviderClass == PrepareQuery.Provider
  private val ourSink = Option(write.sink).collect { case table: CecTable => table }
  private val clock = new BatchClock(session.sparkContext)
  private lazy val isStateful = write.inputQuery.exists(Stateful.kind(_).isDefined)

  /**
   * Prepares the query (design, section 6):
   *
   *  1. Refuse what cannot work, before anything is written.
   *  1. Decide which operators may be deferred. From here on no other run of this query may be alive.
   *  1. Plan the recovery: V, T.
   *  1. Rewind: save the recorded offsets, then cut Spark's logs.
   *  1. Begin the run: generation, `query.json`, the word to the state stores.
   *  1. Wrap the sources and the sink.
   */
  def prepare(): WriteToStream = {
    if (!concernsUs) return write
    val startedMs = System.currentTimeMillis()
    val checked = check() // 1
    val home = checked.get("home").asText
    val decision = decide(checked) // 2
    holdingTheLease { turn =>
      val plan = planRecovery(home, checked) // 3
      val recording = new Recording(session, checkpoint, rewind(plan)) // 4
      val generation = beginRun(home, decision, plan, checked, startedMs, turn) // 5
      wrap(home, generation, decision, plan, recording) // 6
    }
  }

  /** Whoever uses our state has its lease from here to the query's end; a start that fails gives it back at once. */
  private def holdingTheLease(start: Long => WriteToStream): WriteToStream =
    if (!usesOurState) start(0L)
    else {
      stopActiveRun()
      val turn = Agent.hold(checkpoint, conf)
      try start(turn) catch {
        case failure: Throwable =>
          Agent.release(checkpoint, turn, conf)
          throw failure
      }
    }

  private def concernsUs: Boolean = {
    val recorded = logs.recordedProvider
    if (sessionUsesUs && isStateful && recorded.exists(_ != PrepareQuery.Provider)) {
      throw new CecException("UnsuitableCheckpoint",
        s"the checkpoint $checkpoint was begun with the state store provider ${recorded.get}, and Spark goes on with that one: start a " +
          s"new checkpoint to use ${PrepareQuery.Provider}, or set ${SQLConf.STATE_STORE_PROVIDER_CLASS.key}=${recorded.get}")
    }
    if (!sessionUsesUs && isStateful && recorded.contains(PrepareQuery.Provider)) {
      throw new CecException("UnsuitableCheckpoint",
        s"the checkpoint $checkpoint was begun with ${PrepareQuery.Provider}, and its state is in a Spark CEC log: set " +
          s"${SQLConf.STATE_STORE_PROVIDER_CLASS.key}=${PrepareQuery.Provider}, or start a new checkpoint")
    }
    (sessionUsesUs && isStateful) || ourSink.isDefined
  }

  private def check(): JsonNode = {
    write.inputQuery.foreach { node =>
      if (sessionUsesUs && Stateful.isTransformWithState(node)) {
        throw new CecException("Unsupported",
          "transformWithState cannot run on Spark CEC: Spark 4.3 ties it to RocksDBStateStoreProvider by name. Use " +
            "flatMapGroupsWithState or applyInPandasWithState, or that provider for this query")
      }
    }
    val answer = Agent.call("check", arguments("sink_path" -> ourSink.flatMap(_.path).orNull), conf)
    answer.get("warnings").elements.asScala.foreach(warning => logWarning(warning.asText))
    val started = logs.lastCommit >= 0
    if (usesOurState && started && !answer.get("log_exists").asBoolean) {
      val why = if (logs.hasForeignState) "it holds state of another provider" else "its log is gone"
      throw new CecException("UnsuitableCheckpoint",
        s"the checkpoint $checkpoint has committed batches but no Spark CEC log at ${answer.get("home").asText}: $why. Restore the " +
          "log, or start a new checkpoint")
    }
    answer
  }

  private def usesOurState: Boolean = sessionUsesUs && isStateful

  private def decide(checked: JsonNode): Decision = {
    val mode = checked.get("mode").asText
    val vouchedFor = checked.get("replayable_sources").elements.asScala.map(_.asText).toSeq
    val speculation = session.sparkContext.conf.getBoolean("spark.speculation", false)
    val decision =
      if (usesOurState) new Deferral(write.inputQuery, session.sessionState.conf, speculation, mode, vouchedFor).decide()
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
        throw new CecException("Fenced", s"the query with checkpoint $checkpoint is running already in this application: stop it first")
      }
      run.stop()
    }

  private def planRecovery(home: String, checked: JsonNode): JsonNode = {
    val request = arguments("home" -> home).put("last_offset", logs.lastOffset)
    val committed = request.putArray("commits")
    logs.committed.foreach(committed.add)
    val first = Math.max(logs.lastOffset - 1, 0)
    request.set[JsonNode]("offsets", offsetsNode(logs.offsetsOf(first, logs.lastOffset)))
    if (!checked.get("log_exists").asBoolean) {
      Json.obj().put("committed_batch", logs.lastCommit).put("rewound_to", logs.lastCommit)
    } else Agent.call("plan", request, conf).asInstanceOf[ObjectNode]
  }

  /** Saves the recording, then cuts Spark's logs; answers the recorded offsets. A crash in between runs the same steps again. */
  private def rewind(plan: JsonNode): Map[Long, Seq[Option[String]]] = {
    val (committed, rewoundTo) = (plan.get("committed_batch").asLong, plan.get("rewound_to").asLong)
    val pending = Option(plan.get("recorded")).filterNot(_.isNull).map(offsetsOf)
    if (rewoundTo >= committed) pending.getOrElse(Map.empty)
    else {
      val recorded = pending.getOrElse(logs.offsetsOf(rewoundTo + 1, logs.lastOffset))
      val missing = (rewoundTo + 1 to committed).filterNot(recorded.contains) ++ Some(rewoundTo).filterNot(logs.has)
      if (missing.nonEmpty) {
        throw new CecException("UnsuitableCheckpoint",
          s"Spark's logs in $checkpoint no longer have batch ${missing.min}, which the recovery of batch $committed begins with or " +
            "replays: restore the checkpoint whole from a copy")
      }
      val retained = session.sessionState.conf.minBatchesToRetain
      if (retained < committed - rewoundTo + 2) {
        throw new CecException("UnsuitableCheckpoint",
          s"${SQLConf.MIN_BATCHES_TO_RETAIN.key}=$retained is too few for this start: the recovery of batch $committed replays from batch " +
            s"${rewoundTo + 1}, and Spark would forget its offsets before the replay is over. Set it to at least ${committed - rewoundTo + 2}")
      }
      if (pending.isEmpty) {
        val request = arguments().put("committed_batch", committed).put("rewound_to", rewoundTo)
        request.set[JsonNode]("offsets", offsetsNode(recorded))
        Agent.call("record", request, conf)
      }
      logs.rewind(rewoundTo)
      recorded
    }
  }

  private def beginRun(home: String, decision: Decision, plan: JsonNode, checked: JsonNode, startedMs: Long, turn: Long): Long = {
    val request = arguments("home" -> home).put("load_waves", loadWaves)
    val content = Json.obj().put("mode", decision.mode).put("reason", decision.reason).put("provider", usesOurState)
    val operators = content.putArray("operators")
    decision.operators.foreach { op =>
      operators.addObject().put("operator", op.id).put("kind", op.kind).put("deferred", op.deferred).put("reason", op.reason)
    }
    request.set[JsonNode]("decision", content)
    val begun = Agent.call("begin_run", request, conf)
    val generation = begun.get("generation").asLong
    Agent.openLog(home, conf)
    val committed = plan.get("committed_batch").asLong
    val run = RunContext(checkpoint, home, generation, committed + 1, decision.deferred, startedMs, begun.get("forecast"))
    run.announce(session.sparkContext)
    logInfo(s"Spark CEC: ${decision.mode} (${decision.reason}); ${checked.get("describe").asText}; log at $home; last committed batch " +
      s"$committed, replay from batch ${plan.get("rewound_to").asLong + 1}")
    if (usesOurState) {
      Agent.holdAs(checkpoint, generation, conf)
      QueryWatch.of(session).expect(run, replays(plan), conf, session.sessionState.conf.minBatchesToRetain, clock, turn)
    }
    generation
  }

  /** How many stores of an operator a core loads one after another. */
  private def loadWaves: Double =
    Math.max(1.0, session.sessionState.conf.numShufflePartitions.toDouble / Math.max(session.sparkContext.defaultParallelism, 1))

  private def replays(plan: JsonNode): Boolean = plan.get("rewound_to").asLong < plan.get("committed_batch").asLong

  private def wrap(home: String, generation: Long, decision: Decision, plan: JsonNode, recording: Recording): WriteToStream = {
    val committed = plan.get("committed_batch").asLong
    val sink = ourSink.map(_.writingTo(home, generation)).getOrElse(write.sink)
    val mayPassOver = decision.deferred.nonEmpty && sink.isInstanceOf[Sink]
    val gated = if (replays(plan) || mayPassOver) GatedSinks.wrap(sink, committed, () => Agent.confirm(checkpoint, generation, conf)) else sink
    val input =
      if (decision.deferred.isEmpty && recording.offsets.isEmpty) write.inputQuery
      else {
        val acknowledgements = new Acknowledgements(home, conf, recording)
        ReplayableSources.wrap(write.inputQuery, position => new SourceControl(position, recording, acknowledgements, clock))
      }
    val prepared = write.copy(sink = gated, inputQuery = input)
    prepared.setTagValue(PrepareQuery.Done, true)
    prepared
  }

  private def arguments(more: (String, String)*): ObjectNode = {
    val node = Json.obj().put("checkpoint", checkpoint)
    node.set[JsonNode]("conf", Json.map(conf))
    more.foreach { case (key, value) => node.put(key, value) }
    node
  }

  private def offsetsNode(offsets: Map[Long, Seq[Option[String]]]): ObjectNode = {
    val node = Json.obj()
    offsets.foreach { case (batch, each) =>
      val values = node.putArray(batch.toString)
      each.foreach(offset => values.add(offset.orNull))
    }
    node
  }

  private def offsetsOf(node: JsonNode): Map[Long, Seq[Option[String]]] =
    node.properties.asScala.map { entry =>
      entry.getKey.toLong -> entry.getValue.elements.asScala.map(Json.text).toSeq
    }.toMap
}
