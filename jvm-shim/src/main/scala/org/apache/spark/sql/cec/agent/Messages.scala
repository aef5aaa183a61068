// `make messages` writes this file from python/spark_cec/agent/messages.py, which explains the fields. Do not edit it.
package org.apache.spark.sql.cec.agent

import com.fasterxml.jackson.databind.JsonNode
import com.fasterxml.jackson.databind.node.ObjectNode

/** A request to the agent: the name of its call, its fields, and how its answer is read. */
private[cec] sealed abstract class AgentRequest(val call: String) {
  type Answer
  def toJson: ObjectNode
  def parse(answer: JsonNode): Answer
}

/** Refuses a start that cannot work, before it changes anything. `sink_path` is the path of the `cec` sink. */
private[cec] final case class CheckRequest(
    checkpoint: String, conf: Map[String, String], sinkPath: Option[String], committedBatch: Long, query: QueryFacts)
    extends AgentRequest("check") {
  override type Answer = CheckAnswer
  override def toJson: ObjectNode = {
    val node = Json.obj()
    node.put("checkpoint", checkpoint)
    node.set[JsonNode]("conf", Json.map(conf))
    node.set[JsonNode]("sink_path", Json.orNull(sinkPath)(value => Json.node(value)))
    node.put("committed_batch", committedBatch)
    node.set[JsonNode]("query", query.toJson)
    node
  }
  override def parse(answer: JsonNode): CheckAnswer = CheckAnswer.of(answer)
}

/** Begins a run, if the query can continue exactly. */
private[cec] final case class BeginRequest(
    checkpoint: String, conf: Map[String, String], home: String, logSeen: Option[String], committedBatch: Long,
    named: Boolean, decision: QueryDecision, sources: Option[Seq[SourceState]], sessionSettings: Map[String, String],
    loadWaves: Double, sink: String, waitS: Double)
    extends AgentRequest("begin") {
  override type Answer = BeginAnswer
  override def toJson: ObjectNode = {
    val node = Json.obj()
    node.put("checkpoint", checkpoint)
    node.set[JsonNode]("conf", Json.map(conf))
    node.put("home", home)
    node.set[JsonNode]("log_seen", Json.orNull(logSeen)(value => Json.node(value)))
    node.put("committed_batch", committedBatch)
    node.put("named", named)
    node.set[JsonNode]("decision", decision.toJson)
    node.set[JsonNode]("sources", Json.orNull(sources)(value => Json.list(value)(each => each.toJson)))
    node.set[JsonNode]("session_settings", Json.map(sessionSettings))
    node.put("load_waves", loadWaves)
    node.put("sink", sink)
    node.put("wait_s", waitS)
    node
  }
  override def parse(answer: JsonNode): BeginAnswer = BeginAnswer.of(answer)
}

/** Takes the lease for a run that has begun. `had_lease`: the run had it, and its agent died. */
private[cec] final case class HoldRequest(
    checkpoint: String, home: String, generation: Long, waitS: Double, hadLease: Boolean = false)
    extends AgentRequest("hold") {
  override type Answer = HoldAnswer
  override def toJson: ObjectNode = {
    val node = Json.obj()
    node.put("checkpoint", checkpoint)
    node.put("home", home)
    node.put("generation", generation)
    node.put("wait_s", waitS)
    node.put("had_lease", hadLease)
    node
  }
  override def parse(answer: JsonNode): HoldAnswer = HoldAnswer.of(answer)
}

/** Releases the lease of a run, if that run has it. */
private[cec] final case class ReleaseRequest(checkpoint: String, generation: Long)
    extends AgentRequest("release") {
  override type Answer = Unit
  override def toJson: ObjectNode = {
    val node = Json.obj()
    node.put("checkpoint", checkpoint)
    node.put("generation", generation)
    node
  }
  override def parse(answer: JsonNode): Unit = ()
}

/** Finds the log of a store that no analyzer rule has prepared. */
private[cec] final case class ResolveRequest(checkpoint: String, conf: Map[String, String])
    extends AgentRequest("resolve") {
  override type Answer = ResolveAnswer
  override def toJson: ObjectNode = {
    val node = Json.obj()
    node.put("checkpoint", checkpoint)
    node.set[JsonNode]("conf", Json.map(conf))
    node
  }
  override def parse(answer: JsonNode): ResolveAnswer = ResolveAnswer.of(answer)
}

/** Describes the input of batches `first` to `last`. `sources` are names, in the order of Spark's offset log. */
private[cec] final case class BatchInputRequest(checkpoint: String, first: Long, last: Long, sources: Seq[String])
    extends AgentRequest("batch_input") {
  override type Answer = BatchInputAnswer
  override def toJson: ObjectNode = {
    val node = Json.obj()
    node.put("checkpoint", checkpoint)
    node.put("first", first)
    node.put("last", last)
    node.set[JsonNode]("sources", Json.strings(sources))
    node
  }
  override def parse(answer: JsonNode): BatchInputAnswer = BatchInputAnswer.of(answer)
}

/** Asks for the session settings of batches `first` to `last`. */
private[cec] final case class ReplaySettingsRequest(checkpoint: String, first: Long, last: Long)
    extends AgentRequest("replay_settings") {
  override type Answer = ReplaySettingsAnswer
  override def toJson: ObjectNode = {
    val node = Json.obj()
    node.put("checkpoint", checkpoint)
    node.put("first", first)
    node.put("last", last)
    node
  }
  override def parse(answer: JsonNode): ReplaySettingsAnswer = ReplaySettingsAnswer.of(answer)
}

/** Records the progress of a replay of batches `first` to `last`. `done` is the newest replayed batch. */
private[cec] final case class ReplayingRequest(checkpoint: String, generation: Long, first: Long, last: Long, done: Long)
    extends AgentRequest("replaying") {
  override type Answer = Unit
  override def toJson: ObjectNode = {
    val node = Json.obj()
    node.put("checkpoint", checkpoint)
    node.put("generation", generation)
    node.put("first", first)
    node.put("last", last)
    node.put("done", done)
    node
  }
  override def parse(answer: JsonNode): Unit = ()
}

/** Writes the recovery report once all stores are loaded. `started_ms`: the wall clock at the call of `start()`. */
private[cec] final case class ReportRequest(checkpoint: String, home: String, generation: Long, plan: JsonNode, startedMs: Long)
    extends AgentRequest("report") {
  override type Answer = ReportAnswer
  override def toJson: ObjectNode = {
    val node = Json.obj()
    node.put("checkpoint", checkpoint)
    node.put("home", home)
    node.put("generation", generation)
    node.set[JsonNode]("plan", plan)
    node.put("started_ms", startedMs)
    node
  }
  override def parse(answer: JsonNode): ReportAnswer = ReportAnswer.of(answer)
}

/** Asks for orders between two batches. `version` is committed by Spark. `sources`: None if nothing was asked. */
private[cec] final case class BetweenBatchesRequest(checkpoint: String, home: String, version: Long, sources: Option[Seq[SourceState]])
    extends AgentRequest("between_batches") {
  override type Answer = BetweenBatchesAnswer
  override def toJson: ObjectNode = {
    val node = Json.obj()
    node.put("checkpoint", checkpoint)
    node.put("home", home)
    node.put("version", version)
    node.set[JsonNode]("sources", Json.orNull(sources)(value => Json.list(value)(each => each.toJson)))
    node
  }
  override def parse(answer: JsonNode): BetweenBatchesAnswer = BetweenBatchesAnswer.of(answer)
}

/** Notes that all input up to `quiet_ms`, ms since the epoch, is in the output of batches up to `batch`. */
private[cec] final case class BoundaryRequest(
    home: String, batch: Long, generation: Long, quietMs: Option[Long], columns: Map[String, Long])
    extends AgentRequest("boundary") {
  override type Answer = Unit
  override def toJson: ObjectNode = {
    val node = Json.obj()
    node.put("home", home)
    node.put("batch", batch)
    node.put("generation", generation)
    node.set[JsonNode]("quiet_ms", Json.orNull(quietMs)(value => Json.node(value)))
    node.set[JsonNode]("columns", Json.longMap(columns))
    node
  }
  override def parse(answer: JsonNode): Unit = ()
}

/** Compares a flush with the log, and answers the request of `cec flush`, if there is one. */
private[cec] final case class FlushedRequest(
    checkpoint: String, home: String, version: Long, generation: Long, failed: Seq[String], request: Option[String])
    extends AgentRequest("flushed") {
  override type Answer = FlushedAnswer
  override def toJson: ObjectNode = {
    val node = Json.obj()
    node.put("checkpoint", checkpoint)
    node.put("home", home)
    node.put("version", version)
    node.put("generation", generation)
    node.set[JsonNode]("failed", Json.strings(failed))
    node.set[JsonNode]("request", Json.orNull(request)(value => Json.node(value)))
    node
  }
  override def parse(answer: JsonNode): FlushedAnswer = FlushedAnswer.of(answer)
}

/** Asks the protocol of a pipeline whether a flow checkpoints after `batch`. `stopping`: the query has ended. */
private[cec] final case class CheckpointDueRequest(checkpoint: String, batch: Long, stopping: Boolean)
    extends AgentRequest("checkpoint_due") {
  override type Answer = CheckpointDueAnswer
  override def toJson: ObjectNode = {
    val node = Json.obj()
    node.put("checkpoint", checkpoint)
    node.put("batch", batch)
    node.put("stopping", stopping)
    node
  }
  override def parse(answer: JsonNode): CheckpointDueAnswer = CheckpointDueAnswer.of(answer)
}

/** Records a flow's checkpoint after `batch`. `failed`: the errors of stores. */
private[cec] final case class CheckpointTakenRequest(checkpoint: String, home: String, batch: Long, failed: Seq[String])
    extends AgentRequest("checkpoint_taken") {
  override type Answer = Unit
  override def toJson: ObjectNode = {
    val node = Json.obj()
    node.put("checkpoint", checkpoint)
    node.put("home", home)
    node.put("batch", batch)
    node.set[JsonNode]("failed", Json.strings(failed))
    node
  }
  override def parse(answer: JsonNode): Unit = ()
}

/** Asks before which batch no replay begins, once `version` is committed. */
private[cec] final case class AcknowledgeRequest(home: String, version: Long)
    extends AgentRequest("acknowledge") {
  override type Answer = AcknowledgeAnswer
  override def toJson: ObjectNode = {
    val node = Json.obj()
    node.put("home", home)
    node.put("version", version)
    node
  }
  override def parse(answer: JsonNode): AcknowledgeAnswer = AcknowledgeAnswer.of(answer)
}

/** Removes segments that no recovery, reader or setting needs. `retained`: the batches that Spark keeps. */
private[cec] final case class TrimRequest(home: String, version: Long, generation: Long, retained: Long)
    extends AgentRequest("trim") {
  override type Answer = TrimAnswer
  override def toJson: ObjectNode = {
    val node = Json.obj()
    node.put("home", home)
    node.put("version", version)
    node.put("generation", generation)
    node.put("retained", retained)
    node
  }
  override def parse(answer: JsonNode): TrimAnswer = TrimAnswer.of(answer)
}

/** Opens the log. */
private[cec] final case class OpenLogRequest(
    home: String, conf: Map[String, String], logId: Option[String], again: Boolean = false, keep: Boolean = true)
    extends AgentRequest("open_log") {
  override type Answer = OpenLogAnswer
  override def toJson: ObjectNode = {
    val node = Json.obj()
    node.put("home", home)
    node.set[JsonNode]("conf", Json.map(conf))
    node.set[JsonNode]("log_id", Json.orNull(logId)(value => Json.node(value)))
    node.put("again", again)
    node.put("keep", keep)
    node
  }
  override def parse(answer: JsonNode): OpenLogAnswer = OpenLogAnswer.of(answer)
}

/** Closes the log for this JVM. */
private[cec] final case class CloseLogRequest(home: String)
    extends AgentRequest("close_log") {
  override type Answer = CloseLogAnswer
  override def toJson: ObjectNode = {
    val node = Json.obj()
    node.put("home", home)
    node
  }
  override def parse(answer: JsonNode): CloseLogAnswer = CloseLogAnswer.of(answer)
}

/** Loads the eventual checkpoint of a store at a version. */
private[cec] final case class LoadRequest(
    home: String, conf: Map[String, String], logId: Option[String], store: StoreId, version: Long,
    checkpointId: Option[String], checkpoint: Option[String], committedBatch: Option[Long], generation: Long,
    retained: Long, forecast: Option[JsonNode])
    extends AgentRequest("load") {
  override type Answer = LoadAnswer
  override def toJson: ObjectNode = {
    val node = Json.obj()
    node.put("home", home)
    node.set[JsonNode]("conf", Json.map(conf))
    node.set[JsonNode]("log_id", Json.orNull(logId)(value => Json.node(value)))
    node.set[JsonNode]("store", store.toJson)
    node.put("version", version)
    node.set[JsonNode]("checkpoint_id", Json.orNull(checkpointId)(value => Json.node(value)))
    node.set[JsonNode]("checkpoint", Json.orNull(checkpoint)(value => Json.node(value)))
    node.set[JsonNode]("committed_batch", Json.orNull(committedBatch)(value => Json.node(value)))
    node.put("generation", generation)
    node.put("retained", retained)
    node.set[JsonNode]("forecast", Json.orNull(forecast)(value => value))
    node
  }
  override def parse(answer: JsonNode): LoadAnswer = LoadAnswer.of(answer)
}

/** Asks for the footer of a store's frame, whose records may be damaged; the fields are those of `load`. */
private[cec] final case class FooterRequest(
    home: String, store: StoreId, version: Long, checkpoint: Option[String], committedBatch: Option[Long],
    generation: Long)
    extends AgentRequest("footer") {
  override type Answer = FooterAnswer
  override def toJson: ObjectNode = {
    val node = Json.obj()
    node.put("home", home)
    node.set[JsonNode]("store", store.toJson)
    node.put("version", version)
    node.set[JsonNode]("checkpoint", Json.orNull(checkpoint)(value => Json.node(value)))
    node.set[JsonNode]("committed_batch", Json.orNull(committedBatch)(value => Json.node(value)))
    node.put("generation", generation)
    node
  }
  override def parse(answer: JsonNode): FooterAnswer = FooterAnswer.of(answer)
}

/** Commits stores of one query and writes output of its tasks, with as few writes as possible. */
private[cec] final case class AppendRequest(home: String, logId: Option[String], commits: Seq[StoreCommit], outputs: Seq[OutputRows])
    extends AgentRequest("append") {
  override type Answer = AppendAnswer
  override def toJson: ObjectNode = {
    val node = Json.obj()
    node.put("home", home)
    node.set[JsonNode]("log_id", Json.orNull(logId)(value => Json.node(value)))
    node.set[JsonNode]("commits", Json.list(commits)(each => each.toJson))
    node.set[JsonNode]("outputs", Json.list(outputs)(each => each.toJson))
    node
  }
  override def parse(answer: JsonNode): AppendAnswer = AppendAnswer.of(answer)
}

/** Looks in the log for commits, and for frames of output by their ids. */
private[cec] final case class FindWritesRequest(home: String, commits: Seq[NamedCommit], frames: Seq[String])
    extends AgentRequest("find_writes") {
  override type Answer = FindWritesAnswer
  override def toJson: ObjectNode = {
    val node = Json.obj()
    node.put("home", home)
    node.set[JsonNode]("commits", Json.list(commits)(each => each.toJson))
    node.set[JsonNode]("frames", Json.strings(frames))
    node
  }
  override def parse(answer: JsonNode): FindWritesAnswer = FindWritesAnswer.of(answer)
}

/** Records a store's load at a recovery. `digest_ok`: None if nothing was compared. */
private[cec] final case class LoadedRequest(
    home: String, store: StoreId, version: Long, generation: Long, forecast: Option[JsonNode], ecLoadMs: Double,
    digestOk: Option[Boolean], held: Long, unsure: Seq[String])
    extends AgentRequest("loaded") {
  override type Answer = Unit
  override def toJson: ObjectNode = {
    val node = Json.obj()
    node.put("home", home)
    node.set[JsonNode]("store", store.toJson)
    node.put("version", version)
    node.put("generation", generation)
    node.set[JsonNode]("forecast", Json.orNull(forecast)(value => value))
    node.put("ec_load_ms", ecLoadMs)
    node.set[JsonNode]("digest_ok", Json.orNull(digestOk)(value => Json.node(value)))
    node.put("held", held)
    node.set[JsonNode]("unsure", Json.strings(unsure))
    node
  }
  override def parse(answer: JsonNode): Unit = ()
}

/** Makes a batch of output visible. `schema` is Spark's JSON, `sources` are names in Spark's order. */
private[cec] final case class PublishRequest(
    checkpoint: String, home: String, batch: Long, frames: Seq[String], rows: Long, schema: String, truncate: Boolean,
    generation: Long, sources: Seq[String], times: Seq[ColumnTimes] = Nil)
    extends AgentRequest("publish") {
  override type Answer = PublishAnswer
  override def toJson: ObjectNode = {
    val node = Json.obj()
    node.put("checkpoint", checkpoint)
    node.put("home", home)
    node.put("batch", batch)
    node.set[JsonNode]("frames", Json.strings(frames))
    node.put("rows", rows)
    node.put("schema", schema)
    node.put("truncate", truncate)
    node.put("generation", generation)
    node.set[JsonNode]("sources", Json.strings(sources))
    node.set[JsonNode]("times", Json.list(times)(each => each.toJson))
    node
  }
  override def parse(answer: JsonNode): PublishAnswer = PublishAnswer.of(answer)
}

/** Asks for the columns of a log's output. `path`: a checkpoint, or the path of a sink. */
private[cec] final case class ViewSchemaRequest(path: String, conf: Map[String, String], mayWait: Boolean, mayLose: Boolean)
    extends AgentRequest("view_schema") {
  override type Answer = ViewSchemaAnswer
  override def toJson: ObjectNode = {
    val node = Json.obj()
    node.put("path", path)
    node.set[JsonNode]("conf", Json.map(conf))
    node.put("may_wait", mayWait)
    node.put("may_lose", mayLose)
    node
  }
  override def parse(answer: JsonNode): ViewSchemaAnswer = ViewSchemaAnswer.of(answer)
}

/** Asks for the bounds of a log's output, since a time, or for the end of a stream's next batch. */
private[cec] final case class ViewOffsetsRequest(
    path: String, conf: Map[String, String], mayWait: Boolean, mayLose: Boolean = false,
    startingTimestampMs: Option[Long] = None, after: Option[Long] = None, upTo: Option[Long] = None,
    maxBatches: Option[Long] = None, maxRows: Option[Long] = None, seen: Option[String] = None, checked: Boolean = false,
    source: String = "")
    extends AgentRequest("view_offsets") {
  override type Answer = ViewOffsetsAnswer
  override def toJson: ObjectNode = {
    val node = Json.obj()
    node.put("path", path)
    node.set[JsonNode]("conf", Json.map(conf))
    node.put("may_wait", mayWait)
    node.put("may_lose", mayLose)
    node.set[JsonNode]("starting_timestamp_ms", Json.orNull(startingTimestampMs)(value => Json.node(value)))
    node.set[JsonNode]("after", Json.orNull(after)(value => Json.node(value)))
    node.set[JsonNode]("up_to", Json.orNull(upTo)(value => Json.node(value)))
    node.set[JsonNode]("max_batches", Json.orNull(maxBatches)(value => Json.node(value)))
    node.set[JsonNode]("max_rows", Json.orNull(maxRows)(value => Json.node(value)))
    node.set[JsonNode]("seen", Json.orNull(seen)(value => Json.node(value)))
    node.put("checked", checked)
    node.put("source", source)
    node
  }
  override def parse(answer: JsonNode): ViewOffsetsAnswer = ViewOffsetsAnswer.of(answer)
}

/** Records the progress of a stream, so that the log can delete output that no reader needs. */
private[cec] final case class NoteReaderRequest(
    path: String, conf: Map[String, String], reader: String, mayWait: Boolean, begins: Option[Long] = None,
    resumes: Option[Long] = None, ends: Option[Long] = None, retained: Long = 0L)
    extends AgentRequest("note_reader") {
  override type Answer = Unit
  override def toJson: ObjectNode = {
    val node = Json.obj()
    node.put("path", path)
    node.set[JsonNode]("conf", Json.map(conf))
    node.put("reader", reader)
    node.put("may_wait", mayWait)
    node.set[JsonNode]("begins", Json.orNull(begins)(value => Json.node(value)))
    node.set[JsonNode]("resumes", Json.orNull(resumes)(value => Json.node(value)))
    node.set[JsonNode]("ends", Json.orNull(ends)(value => Json.node(value)))
    node.put("retained", retained)
    node
  }
  override def parse(answer: JsonNode): Unit = ()
}

/** Asks where a batch ends of a flow that reads a source, in all replicas of the pipeline. */
private[cec] final case class AgreeRequest(place: String, replica: String, batch: Long, start: String, end: String, decides: Boolean)
    extends AgentRequest("agree") {
  override type Answer = AgreeAnswer
  override def toJson: ObjectNode = {
    val node = Json.obj()
    node.put("place", place)
    node.put("replica", replica)
    node.put("batch", batch)
    node.put("start", start)
    node.put("end", end)
    node.put("decides", decides)
    node
  }
  override def parse(answer: JsonNode): AgreeAnswer = AgreeAnswer.of(answer)
}

/** Asks where a stream's next batch ends. The stream reads its channel by buckets, with others of one union. */
private[cec] final case class BucketEndRequest(
    path: String, conf: Map[String, String], mayWait: Boolean, mayLose: Boolean, union: JsonNode, own: Long,
    query: String, source: String, leader: String, leads: Boolean, untilMs: Long, batch: Long, first: Long,
    seen: Option[String] = None, checked: Boolean = false, maxRows: Option[Long] = None, replica: String = "",
    absent: Option[Seq[String]] = None)
    extends AgentRequest("bucket_end") {
  override type Answer = BucketEndAnswer
  override def toJson: ObjectNode = {
    val node = Json.obj()
    node.put("path", path)
    node.set[JsonNode]("conf", Json.map(conf))
    node.put("may_wait", mayWait)
    node.put("may_lose", mayLose)
    node.set[JsonNode]("union", union)
    node.put("own", own)
    node.put("query", query)
    node.put("source", source)
    node.put("leader", leader)
    node.put("leads", leads)
    node.put("until_ms", untilMs)
    node.put("batch", batch)
    node.put("first", first)
    node.set[JsonNode]("seen", Json.orNull(seen)(value => Json.node(value)))
    node.put("checked", checked)
    node.set[JsonNode]("max_rows", Json.orNull(maxRows)(value => Json.node(value)))
    node.put("replica", replica)
    node.set[JsonNode]("absent", Json.orNull(absent)(value => Json.strings(value)))
    node
  }
  override def parse(answer: JsonNode): BucketEndAnswer = BucketEndAnswer.of(answer)
}

/** The run of a stream by buckets is over, so the agent forgets it. The fields as in `BucketEndRequest`. */
private[cec] final case class BucketLeaveRequest(query: String, source: String)
    extends AgentRequest("bucket_leave") {
  override type Answer = Unit
  override def toJson: ObjectNode = {
    val node = Json.obj()
    node.put("query", query)
    node.put("source", source)
    node
  }
  override def parse(answer: JsonNode): Unit = ()
}

/** Plans a read of a view. */
private[cec] final case class ViewSplitsRequest(
    path: String, conf: Map[String, String], view: String, first: Long = 0L, last: Long = 0L, whole: Boolean = false,
    mayLose: Boolean = false, seen: Option[String] = None, schema: Option[String] = None, operator: Long = 0L,
    store: String = "default", version: Option[Long] = None, buckets: Option[BucketRange] = None,
    reader: Option[String] = None, orFlow: Boolean = false)
    extends AgentRequest("view_splits") {
  override type Answer = ViewSplitsAnswer
  override def toJson: ObjectNode = {
    val node = Json.obj()
    node.put("path", path)
    node.set[JsonNode]("conf", Json.map(conf))
    node.put("view", view)
    node.put("first", first)
    node.put("last", last)
    node.put("whole", whole)
    node.put("may_lose", mayLose)
    node.set[JsonNode]("seen", Json.orNull(seen)(value => Json.node(value)))
    node.set[JsonNode]("schema", Json.orNull(schema)(value => Json.node(value)))
    node.put("operator", operator)
    node.put("store", store)
    node.set[JsonNode]("version", Json.orNull(version)(value => Json.node(value)))
    node.set[JsonNode]("buckets", Json.orNull(buckets)(value => value.toJson))
    node.set[JsonNode]("reader", Json.orNull(reader)(value => Json.node(value)))
    node.put("or_flow", orFlow)
    node
  }
  override def parse(answer: JsonNode): ViewSplitsAnswer = ViewSplitsAnswer.of(answer)
}

/** Reads one piece of work. `columns`: None for all. `may_lose`: lost output is skipped. */
private[cec] final case class ReadSplitRequest(
    path: String, conf: Map[String, String], split: JsonNode, columns: Option[Seq[String]] = None,
    mayLose: Boolean = false)
    extends AgentRequest("read_split") {
  override type Answer = ReadSplitAnswer
  override def toJson: ObjectNode = {
    val node = Json.obj()
    node.put("path", path)
    node.set[JsonNode]("conf", Json.map(conf))
    node.set[JsonNode]("split", split)
    node.set[JsonNode]("columns", Json.orNull(columns)(value => Json.strings(value)))
    node.put("may_lose", mayLose)
    node
  }
  override def parse(answer: JsonNode): ReadSplitAnswer = ReadSplitAnswer.of(answer)
}

/** Asks for the newest epoch of the flow at the checkpoint `path`. */
private[cec] final case class EpochRequest(path: String, conf: Map[String, String])
    extends AgentRequest("epoch") {
  override type Answer = EpochAnswer
  override def toJson: ObjectNode = {
    val node = Json.obj()
    node.put("path", path)
    node.set[JsonNode]("conf", Json.map(conf))
    node
  }
  override def parse(answer: JsonNode): EpochAnswer = EpochAnswer.of(answer)
}

/** Asks what the next batch of a stream by buckets reads of an epoch. Ask it after `BucketEndRequest`. */
private[cec] final case class EpochEndRequest(
    path: String, conf: Map[String, String], union: JsonNode, own: Long, query: String, source: String, untilMs: Long,
    present: Option[EpochReading] = None)
    extends AgentRequest("epoch_end") {
  override type Answer = EpochEndAnswer
  override def toJson: ObjectNode = {
    val node = Json.obj()
    node.put("path", path)
    node.set[JsonNode]("conf", Json.map(conf))
    node.set[JsonNode]("union", union)
    node.put("own", own)
    node.put("query", query)
    node.put("source", source)
    node.put("until_ms", untilMs)
    node.set[JsonNode]("present", Json.orNull(present)(value => value.toJson))
    node
  }
  override def parse(answer: JsonNode): EpochEndAnswer = EpochEndAnswer.of(answer)
}

/** Creates a file of a checkpoint, whole: `path` is relative to the checkpoint, `content` is in base 64. */
private[cec] final case class CreateFileRequest(checkpoint: String, path: String, content: String, overwrites: Boolean)
    extends AgentRequest("create_file") {
  override type Answer = Unit
  override def toJson: ObjectNode = {
    val node = Json.obj()
    node.put("checkpoint", checkpoint)
    node.put("path", path)
    node.put("content", content)
    node.put("overwrites", overwrites)
    node
  }
  override def parse(answer: JsonNode): Unit = ()
}

/** Reads a file of a checkpoint, whole. */
private[cec] final case class ReadFileRequest(checkpoint: String, path: String)
    extends AgentRequest("read_file") {
  override type Answer = ReadFileAnswer
  override def toJson: ObjectNode = {
    val node = Json.obj()
    node.put("checkpoint", checkpoint)
    node.put("path", path)
    node
  }
  override def parse(answer: JsonNode): ReadFileAnswer = ReadFileAnswer.of(answer)
}

/** Lists a directory of a checkpoint. */
private[cec] final case class ListFilesRequest(checkpoint: String, directory: String)
    extends AgentRequest("list_files") {
  override type Answer = ListFilesAnswer
  override def toJson: ObjectNode = {
    val node = Json.obj()
    node.put("checkpoint", checkpoint)
    node.put("directory", directory)
    node
  }
  override def parse(answer: JsonNode): ListFilesAnswer = ListFilesAnswer.of(answer)
}

/** Deletes the files of a checkpoint that exist. */
private[cec] final case class DeleteFilesRequest(checkpoint: String, paths: Seq[String])
    extends AgentRequest("delete_files") {
  override type Answer = Unit
  override def toJson: ObjectNode = {
    val node = Json.obj()
    node.put("checkpoint", checkpoint)
    node.set[JsonNode]("paths", Json.strings(paths))
    node
  }
  override def parse(answer: JsonNode): Unit = ()
}

/** Asks how a query keeps its bounds, for a page of Spark's user interface. The log must be open. */
private[cec] final case class LookRequest(checkpoint: String, home: String)
    extends AgentRequest("look") {
  override type Answer = LookAnswer
  override def toJson: ObjectNode = {
    val node = Json.obj()
    node.put("checkpoint", checkpoint)
    node.put("home", home)
    node
  }
  override def parse(answer: JsonNode): LookAnswer = LookAnswer.of(answer)
}

/** Asks how old the windows of a log are, for a page of Spark's user interface. The log must be open. */
private[cec] final case class AgesRequest(home: String)
    extends AgentRequest("ages") {
  override type Answer = AgesAnswer
  override def toJson: ObjectNode = {
    val node = Json.obj()
    node.put("home", home)
    node
  }
  override def parse(answer: JsonNode): AgesAnswer = AgesAnswer.of(answer)
}

/** Asks for the pipeline with this home. */
private[cec] final case class PipelineLookRequest(home: String)
    extends AgentRequest("pipeline_look") {
  override type Answer = PipelineLookAnswer
  override def toJson: ObjectNode = {
    val node = Json.obj()
    node.put("home", home)
    node
  }
  override def parse(answer: JsonNode): PipelineLookAnswer = PipelineLookAnswer.of(answer)
}

/** The lowest D of all stores; None if a store is missing. */
private[cec] final case class AcknowledgeAnswer(dirtyFrom: Option[Long])

private[cec] object AcknowledgeAnswer {
  def of(node: JsonNode): AcknowledgeAnswer = AcknowledgeAnswer(
    Json.option(node.get("dirty_from"))(value => value.asLong))
}

/** The stores of the log that this agent has written. */
private[cec] final case class AgesAnswer(stores: Seq[StoreAges])

private[cec] object AgesAnswer {
  def of(node: JsonNode): AgesAnswer = AgesAnswer(
    Json.elements(node.get("stores"))(value => StoreAges.of(value)))
}

/** Where the batch ends in the source, as an offset in JSON; None if nobody has decided. */
private[cec] final case class AgreeAnswer(end: Option[String], follows: Boolean)

private[cec] object AgreeAnswer {
  def of(node: JsonNode): AgreeAnswer = AgreeAnswer(
    Json.option(node.get("end"))(value => value.asText),
    node.get("follows").asBoolean)
}

/** The commits, in the order of the request. The output is durable, too. */
private[cec] final case class AppendAnswer(commits: Seq[DurableCommit])

private[cec] object AppendAnswer {
  def of(node: JsonNode): AppendAnswer = AppendAnswer(
    Json.elements(node.get("commits"))(value => DurableCommit.of(value)))
}

/** The input in words. */
private[cec] final case class BatchInputAnswer(words: String)

private[cec] object BatchInputAnswer {
  def of(node: JsonNode): BatchInputAnswer = BatchInputAnswer(
    node.get("words").asText)
}

/** The run, V, T (`rewound_to`), and the version from which the stores begin (`base`). */
private[cec] final case class BeginAnswer(
    generation: Long, logId: String, committedBatch: Long, rewoundTo: Long, base: Long, plan: JsonNode,
    forecast: JsonNode, writeAt: String, said: Seq[StartMessage])

private[cec] object BeginAnswer {
  def of(node: JsonNode): BeginAnswer = BeginAnswer(
    node.get("generation").asLong,
    node.get("log_id").asText,
    node.get("committed_batch").asLong,
    node.get("rewound_to").asLong,
    node.get("base").asLong,
    node.get("plan"),
    node.get("forecast"),
    node.get("write_at").asText,
    Json.elements(node.get("said"))(value => StartMessage.of(value)))
}

/** Why the stores must write their dirty windows now, if they must. */
private[cec] final case class BetweenBatchesAnswer(request: Option[String], thin: Option[String], deletes: Boolean)

private[cec] object BetweenBatchesAnswer {
  def of(node: JsonNode): BetweenBatchesAnswer = BetweenBatchesAnswer(
    Json.option(node.get("request"))(value => value.asText),
    Json.option(node.get("thin"))(value => value.asText),
    node.get("deletes").asBoolean)
}

/** Where a stream's next batch ends: `until_ms`, `batch` and `first` as in the request. */
private[cec] final case class BucketEndAnswer(
    untilMs: Long, batch: Long, first: Long, of: Option[String], newest: Long, waitsFor: Seq[String], heldMs: Seq[Long],
    back: Seq[String] = Nil, givenUp: Seq[String] = Nil, replica: String = "", since: Option[Long] = None,
    others: Map[String, Long], unread: Seq[String] = Nil, dueBytes: Seq[Long] = Nil, waitingBytes: Seq[Long] = Nil)

private[cec] object BucketEndAnswer {
  def of(node: JsonNode): BucketEndAnswer = BucketEndAnswer(
    node.get("until_ms").asLong,
    node.get("batch").asLong,
    node.get("first").asLong,
    Json.option(node.get("of"))(value => value.asText),
    node.get("newest").asLong,
    Json.elements(node.get("waits_for"))(value => value.asText),
    Json.elements(node.get("held_ms"))(value => value.asLong),
    Json.elements(node.get("back"))(value => value.asText),
    Json.elements(node.get("given_up"))(value => value.asText),
    node.get("replica").asText,
    Json.option(node.get("since"))(value => value.asLong),
    Json.entries(node.get("others"))(value => value.asLong),
    Json.elements(node.get("unread"))(value => value.asText),
    Json.elements(node.get("due_bytes"))(value => value.asLong),
    Json.elements(node.get("waiting_bytes"))(value => value.asLong))
}

/** The rows whose time in a column is at `after_ms` or later, but below `until_ms`. */
private[cec] final case class BucketRange(
    column: String, afterMs: Long, untilMs: Long, freshFrom: Long, reader: Option[String] = None,
    replicated: Boolean = false, delayMs: Long = 0L, bucketMs: Long = 1L) {
  def toJson: ObjectNode = {
    val node = Json.obj()
    node.put("column", column)
    node.put("after_ms", afterMs)
    node.put("until_ms", untilMs)
    node.put("fresh_from", freshFrom)
    node.set[JsonNode]("reader", Json.orNull(reader)(value => Json.node(value)))
    node.put("replicated", replicated)
    node.put("delay_ms", delayMs)
    node.put("bucket_ms", bucketMs)
    node
  }
}

/** The log's home, the id of the log there (None: no log), and the settings that the analyzer rule needs. */
private[cec] final case class CheckAnswer(
    home: String, logId: Option[String], mode: String, accept: Boolean, flushAtStop: Boolean, sourcesMargin: Double,
    quietInputsMs: Option[Double], replayableSources: Seq[String], orderFreeFunctions: Boolean, said: Seq[StartMessage])

private[cec] object CheckAnswer {
  def of(node: JsonNode): CheckAnswer = CheckAnswer(
    node.get("home").asText,
    Json.option(node.get("log_id"))(value => value.asText),
    node.get("mode").asText,
    node.get("accept").asBoolean,
    node.get("flush_at_stop").asBoolean,
    node.get("sources_margin").asDouble,
    Json.option(node.get("quiet_inputs_ms"))(value => value.asDouble),
    Json.elements(node.get("replayable_sources"))(value => value.asText),
    node.get("order_free_functions").asBoolean,
    Json.elements(node.get("said"))(value => StartMessage.of(value)))
}

/** Whether the flow must write all its stores now. */
private[cec] final case class CheckpointDueAnswer(due: Boolean)

private[cec] object CheckpointDueAnswer {
  def of(node: JsonNode): CheckpointDueAnswer = CheckpointDueAnswer(
    node.get("due").asBoolean)
}

/** Whether the log was open. */
private[cec] final case class CloseLogAnswer(closed: Boolean)

private[cec] object CloseLogAnswer {
  def of(node: JsonNode): CloseLogAnswer = CloseLogAnswer(
    node.get("closed").asBoolean)
}

/** The times in a column of the rows of one task, in ms since the epoch, rounded down; None without a time. */
private[cec] final case class ColumnTimes(column: String, firstMs: Option[Long], lastMs: Option[Long], nulls: Long) {
  def toJson: ObjectNode = {
    val node = Json.obj()
    node.put("column", column)
    node.set[JsonNode]("first_ms", Json.orNull(firstMs)(value => Json.node(value)))
    node.set[JsonNode]("last_ms", Json.orNull(lastMs)(value => Json.node(value)))
    node.put("nulls", nulls)
    node
  }
}

/** The plan for a store's next commit; the fields are those of `checkpoint.policy.Plan`. */
private[cec] final case class CommitPlan(
    replayBound: Long, extentRecords: Long, extentPerWindow: Double, share: Double, floorMs: Double, forcedBefore: Long,
    rewriteWindows: Long, worthBound: Option[Long], replaySteps: Seq[ReplayStep], extentSteps: Seq[ExtentStep])

private[cec] object CommitPlan {
  def of(node: JsonNode): CommitPlan = CommitPlan(
    node.get("replay_bound").asLong,
    node.get("extent_records").asLong,
    node.get("extent_per_window").asDouble,
    node.get("share").asDouble,
    node.get("floor_ms").asDouble,
    node.get("forced_before").asLong,
    node.get("rewrite_windows").asLong,
    Json.option(node.get("worth_bound"))(value => value.asLong),
    Json.elements(node.get("replay_steps"))(value => ReplayStep.of(value)),
    Json.elements(node.get("extent_steps"))(value => ExtentStep.of(value)))
}

/** A durable commit: q (`extent`), u (`replay`), its bytes in the log, and the plan of the next commit. */
private[cec] final case class DurableCommit(
    plan: CommitPlan, extent: Long, replay: Long, recoveryEstimateMs: Double, bytes: Long, agentUs: Long)

private[cec] object DurableCommit {
  def of(node: JsonNode): DurableCommit = DurableCommit(
    CommitPlan.of(node.get("plan")),
    node.get("extent").asLong,
    node.get("replay").asLong,
    node.get("recovery_estimate_ms").asDouble,
    node.get("bytes").asLong,
    node.get("agent_us").asLong)
}

/** The newest epoch of a flow. `number`: None if it never had one. */
private[cec] final case class EpochAnswer(
    number: Option[Long] = None, beginsAfter: Long = -1L, follows: Long = -1L, newest: Long = -1L,
    hasRows: Boolean = false, closedAfter: Option[Long] = None, hasPassed: Boolean = false)

private[cec] object EpochAnswer {
  def of(node: JsonNode): EpochAnswer = EpochAnswer(
    Json.option(node.get("number"))(value => value.asLong),
    node.get("begins_after").asLong,
    node.get("follows").asLong,
    node.get("newest").asLong,
    node.get("has_rows").asBoolean,
    Json.option(node.get("closed_after"))(value => value.asLong),
    node.get("has_passed").asBoolean)
}

/** The epoch whose rows count in the stream's next batch; None if none does. */
private[cec] final case class EpochEndAnswer(reading: Option[EpochReading] = None)

private[cec] object EpochEndAnswer {
  def of(node: JsonNode): EpochEndAnswer = EpochEndAnswer(
    Json.option(node.get("reading"))(value => EpochReading.of(value)))
}

/** What a stream by buckets has of an epoch, and the read that its last batch needs. */
private[cec] final case class EpochReading(
    replica: String, number: Long, afterMs: Long, since: Long, untilMs: Long, batch: Long, first: Long,
    of: Option[String] = None) {
  def toJson: ObjectNode = {
    val node = Json.obj()
    node.put("replica", replica)
    node.put("number", number)
    node.put("after_ms", afterMs)
    node.put("since", since)
    node.put("until_ms", untilMs)
    node.put("batch", batch)
    node.put("first", first)
    node.set[JsonNode]("of", Json.orNull(of)(value => Json.node(value)))
    node
  }
}

private[cec] object EpochReading {
  def of(node: JsonNode): EpochReading = EpochReading(
    node.get("replica").asText,
    node.get("number").asLong,
    node.get("after_ms").asLong,
    node.get("since").asLong,
    node.get("until_ms").asLong,
    node.get("batch").asLong,
    node.get("first").asLong,
    Json.option(node.get("of"))(value => value.asText))
}

/** If the `windows` with footprints before version `before` are rewritten, a recovery scans `cost` records. */
private[cec] final case class ExtentStep(before: Long, cost: Long, windows: Long)

private[cec] object ExtentStep {
  def of(node: JsonNode): ExtentStep = ExtentStep(
    node.get(0).asLong,
    node.get(1).asLong,
    node.get(2).asLong)
}

/** Those that the log has, by their ids. */
private[cec] final case class FindWritesAnswer(commits: Seq[String], frames: Seq[String])

private[cec] object FindWritesAnswer {
  def of(node: JsonNode): FindWritesAnswer = FindWritesAnswer(
    Json.elements(node.get("commits"))(value => value.asText),
    Json.elements(node.get("frames"))(value => value.asText))
}

/** A line for each store that is not written up to the version, then the errors of executors; empty without one. */
private[cec] final case class FlushedAnswer(unwritten: Seq[String])

private[cec] object FlushedAnswer {
  def of(node: JsonNode): FlushedAnswer = FlushedAnswer(
    Json.elements(node.get("unwritten"))(value => value.asText))
}

/** The footer's numbers; None if the frame is lost. `checkpoint_id` may still be known then, by Spark's record. */
private[cec] final case class FooterAnswer(footer: Option[FooterNumbers], checkpointId: Option[String])

private[cec] object FooterAnswer {
  def of(node: JsonNode): FooterAnswer = FooterAnswer(
    Json.option(node.get("footer"))(value => FooterNumbers.of(value)),
    Json.option(node.get("checkpoint_id"))(value => value.asText))
}

/** The fields of a commit's footer that the shim uses; `digest` is a decimal number of 64 bits, without a sign. */
private[cec] final case class FooterNumbers(
    checkpointId: String, openWindows: Long, digest: String, sketched: Boolean, normalized: Boolean)

private[cec] object FooterNumbers {
  def of(node: JsonNode): FooterNumbers = FooterNumbers(
    node.get("checkpoint_id").asText,
    node.get("open_windows").asLong,
    node.get("digest").asText,
    node.get("sketched").asBoolean,
    node.get("normalized").asBoolean)
}

/** Open windows whose newest record is `first` to `last` batches old; `last` is None without an end. */
private[cec] final case class FootprintAges(first: Long, last: Option[Long], windows: Long)

private[cec] object FootprintAges {
  def of(node: JsonNode): FootprintAges = FootprintAges(
    node.get("first").asLong,
    Json.option(node.get("last"))(value => value.asLong),
    node.get("windows").asLong)
}

/** The number of the run from now on. */
private[cec] final case class HoldAnswer(generation: Long)

private[cec] object HoldAnswer {
  def of(node: JsonNode): HoldAnswer = HoldAnswer(
    node.get("generation").asLong)
}

/** The names of the files directly in the directory, sorted; empty if the directory is missing. */
private[cec] final case class ListFilesAnswer(names: Seq[String])

private[cec] object ListFilesAnswer {
  def of(node: JsonNode): ListFilesAnswer = ListFilesAnswer(
    Json.elements(node.get("names"))(value => value.asText))
}

/** An eventual checkpoint: its rows in a spool file, the head's numbers, and the plan of the next commit. */
private[cec] final case class LoadAnswer(
    spool: Option[String], rows: Long, scanned: Long, chain: Long, footer: FooterNumbers, dirtyFrom: Long,
    dirtyWindows: Long, inputs: Map[String, Long], plan: CommitPlan, recoveryEstimateMs: Double, agentMs: Double)

private[cec] object LoadAnswer {
  def of(node: JsonNode): LoadAnswer = LoadAnswer(
    Json.option(node.get("spool"))(value => value.asText),
    node.get("rows").asLong,
    node.get("scanned").asLong,
    node.get("chain").asLong,
    FooterNumbers.of(node.get("footer")),
    node.get("dirty_from").asLong,
    node.get("dirty_windows").asLong,
    Json.entries(node.get("inputs"))(value => value.asLong),
    CommitPlan.of(node.get("plan")),
    node.get("recovery_estimate_ms").asDouble,
    node.get("agent_ms").asDouble)
}

/** What the log says of a query after `batch`, -1 before the first one. */
private[cec] final case class LookAnswer(
    batch: Long, wallMs: Option[Long], settings: String, operators: Seq[OperatorStanding], recoveryMs: Double,
    reach: Option[Reach], recoveries: Seq[Recovery], damages: Seq[String], storedBytes: Long)

private[cec] object LookAnswer {
  def of(node: JsonNode): LookAnswer = LookAnswer(
    node.get("batch").asLong,
    Json.option(node.get("wall_ms"))(value => value.asLong),
    node.get("settings").asText,
    Json.elements(node.get("operators"))(value => OperatorStanding.of(value)),
    node.get("recovery_ms").asDouble,
    Json.option(node.get("reach"))(value => Reach.of(value)),
    Json.elements(node.get("recoveries"))(value => Recovery.of(value)),
    Json.elements(node.get("damages"))(value => value.asText),
    node.get("stored_bytes").asLong)
}

/** A commit of a store, by its checkpoint id. */
private[cec] final case class NamedCommit(store: StoreId, version: Long, checkpointId: String) {
  def toJson: ObjectNode = {
    val node = Json.obj()
    node.set[JsonNode]("store", store.toJson)
    node.put("version", version)
    node.put("checkpoint_id", checkpointId)
    node
  }
}

/** The id of the log. */
private[cec] final case class OpenLogAnswer(logId: String)

private[cec] object OpenLogAnswer {
  def of(node: JsonNode): OpenLogAnswer = OpenLogAnswer(
    node.get("log_id").asText)
}

/** Whether the commits of a stateful operator are deferred, and the reason. `kind` is in words. */
private[cec] final case class OperatorDecision(operator: Long, kind: String, deferred: Boolean, reason: String) {
  def toJson: ObjectNode = {
    val node = Json.obj()
    node.put("operator", operator)
    node.put("kind", kind)
    node.put("deferred", deferred)
    node.put("reason", reason)
    node
  }
}

/** The stores of one kind of one operator. */
private[cec] final case class OperatorStanding(
    operator: Long, store: String, partitions: Long, openWindows: Long, dirtyWindows: Long, extent: Long,
    extentBound: Option[Long], extentShare: Option[Double], replay: Long, replayBound: Option[Long],
    replayShare: Option[Double])

private[cec] object OperatorStanding {
  def of(node: JsonNode): OperatorStanding = OperatorStanding(
    node.get("operator").asLong,
    node.get("store").asText,
    node.get("partitions").asLong,
    node.get("open_windows").asLong,
    node.get("dirty_windows").asLong,
    node.get("extent").asLong,
    Json.option(node.get("extent_bound"))(value => value.asLong),
    Json.option(node.get("extent_share"))(value => value.asDouble),
    node.get("replay").asLong,
    Json.option(node.get("replay_bound"))(value => value.asLong),
    Json.option(node.get("replay_share"))(value => value.asDouble))
}

/** The rows that one task gives to the `cec` sink: one output frame, invisible until a manifest names it. */
private[cec] final case class OutputRows(
    frame: String, batch: Long, partition: Long, attempt: Long, generation: Long, rows: Long, spool: String) {
  def toJson: ObjectNode = {
    val node = Json.obj()
    node.put("frame", frame)
    node.put("batch", batch)
    node.put("partition", partition)
    node.put("attempt", attempt)
    node.put("generation", generation)
    node.put("rows", rows)
    node.put("spool", spool)
    node
  }
}

/** The home of a pipeline, its graph and its newest status; None if they are missing or unreadable. */
private[cec] final case class PipelineLookAnswer(home: Option[String], graph: Option[JsonNode], status: Option[JsonNode])

private[cec] object PipelineLookAnswer {
  def of(node: JsonNode): PipelineLookAnswer = PipelineLookAnswer(
    Json.option(node.get("home"))(value => value.asText),
    Json.option(node.get("graph"))(value => value),
    Json.option(node.get("status"))(value => value))
}

/** Whether this manifest was the batch's first. The first one wins. */
private[cec] final case class PublishAnswer(first: Boolean)

private[cec] object PublishAnswer {
  def of(node: JsonNode): PublishAnswer = PublishAnswer(
    node.get("first").asBoolean)
}

/** The decision for a query. `provider`: the query has state, and its provider is ours. */
private[cec] final case class QueryDecision(mode: String, reason: String, provider: Boolean, operators: Seq[OperatorDecision]) {
  def toJson: ObjectNode = {
    val node = Json.obj()
    node.put("mode", mode)
    node.put("reason", reason)
    node.put("provider", provider)
    node.set[JsonNode]("operators", Json.list(operators)(each => each.toJson))
    node
  }
}

/** A query that starts. */
private[cec] final case class QueryFacts(
    provider: Boolean, stateful: Boolean, planned: Boolean = false, recordedProvider: Option[String] = None,
    transformWithState: Boolean = false, speculation: Boolean = false) {
  def toJson: ObjectNode = {
    val node = Json.obj()
    node.put("provider", provider)
    node.put("stateful", stateful)
    node.put("planned", planned)
    node.set[JsonNode]("recorded_provider", Json.orNull(recordedProvider)(value => Json.node(value)))
    node.put("transform_with_state", transformWithState)
    node.put("speculation", speculation)
    node
  }
}

/** How far back a recovery would go: from batch `first` on, which makes so many `batches`. */
private[cec] final case class Reach(
    first: Long, batches: Long, plannedMs: Option[Long], text: String, sources: Seq[SourceStanding],
    askedMs: Option[Long])

private[cec] object Reach {
  def of(node: JsonNode): Reach = Reach(
    node.get("first").asLong,
    node.get("batches").asLong,
    Json.option(node.get("planned_ms"))(value => value.asLong),
    node.get("text").asText,
    Json.elements(node.get("sources"))(value => SourceStanding.of(value)),
    Json.option(node.get("asked_ms"))(value => value.asLong))
}

/** The bytes of the file, in base 64; None: there is no such file. */
private[cec] final case class ReadFileAnswer(content: Option[String])

private[cec] object ReadFileAnswer {
  def of(node: JsonNode): ReadFileAnswer = ReadFileAnswer(
    Json.option(node.get("content"))(value => value.asText))
}

/** The rows, in a spool file that the caller deletes, and the lost output that the read skipped. */
private[cec] final case class ReadSplitAnswer(spool: Option[String], rows: Long, lost: Seq[String])

private[cec] object ReadSplitAnswer {
  def of(node: JsonNode): ReadSplitAnswer = ReadSplitAnswer(
    Json.option(node.get("spool"))(value => value.asText),
    node.get("rows").asLong,
    Json.elements(node.get("lost"))(value => value.asText))
}

/** One recovery: when its start was called, ms since the epoch, and how long it took, in ms. */
private[cec] final case class Recovery(
    startedMs: Long, durationMs: Long, predictedMs: Option[Double], replayedBatches: Long, digestOk: Option[Boolean])

private[cec] object Recovery {
  def of(node: JsonNode): Recovery = Recovery(
    node.get("started_ms").asLong,
    node.get("duration_ms").asLong,
    Json.option(node.get("predicted_ms"))(value => value.asDouble),
    node.get("replayed_batches").asLong,
    Json.option(node.get("digest_ok"))(value => value.asBoolean))
}

/** The batches in spans of equal settings. */
private[cec] final case class ReplaySettingsAnswer(spans: Seq[SettingsSpan])

private[cec] object ReplaySettingsAnswer {
  def of(node: JsonNode): ReplaySettingsAnswer = ReplaySettingsAnswer(
    Json.elements(node.get("spans"))(value => SettingsSpan.of(value)))
}

/** If all windows dirty since before version `before` are checked, a recovery replays `cost` input tuples. */
private[cec] final case class ReplayStep(before: Long, cost: Long)

private[cec] object ReplayStep {
  def of(node: JsonNode): ReplayStep = ReplayStep(
    node.get(0).asLong,
    node.get(1).asLong)
}

/** `done` is false while a store is missing. `path` is the report's, in the checkpoint's `cec` directory. */
private[cec] final case class ReportAnswer(done: Boolean, path: Option[String] = None)

private[cec] object ReportAnswer {
  def of(node: JsonNode): ReportAnswer = ReportAnswer(
    node.get("done").asBoolean,
    Json.option(node.get("path"))(value => value.asText))
}

/** The home, the log and the newest run of a query. `log_id` is None without a run; then a log may be created. */
private[cec] final case class ResolveAnswer(home: String, logId: Option[String], generation: Long)

private[cec] object ResolveAnswer {
  def of(node: JsonNode): ResolveAnswer = ResolveAnswer(
    node.get("home").asText,
    Json.option(node.get("log_id"))(value => value.asText),
    node.get("generation").asLong)
}

/** The settings of batches `first` to `last`; None if they are unknown. */
private[cec] final case class SettingsSpan(first: Long, last: Long, settings: Option[Map[String, String]])

private[cec] object SettingsSpan {
  def of(node: JsonNode): SettingsSpan = SettingsSpan(
    node.get("first").asLong,
    node.get("last").asLong,
    Json.option(node.get("settings"))(value => Json.entries(value)(value => value.asText)))
}

/** What a source still has, against what a recovery would read of it. */
private[cec] final case class SourceStanding(
    source: String, needed: Long, spare: Option[Long], share: Option[Double], gone: Boolean, text: String)

private[cec] object SourceStanding {
  def of(node: JsonNode): SourceStanding = SourceStanding(
    node.get("source").asText,
    node.get("needed").asLong,
    Json.option(node.get("spare"))(value => value.asLong),
    Json.option(node.get("share"))(value => value.asDouble),
    node.get("gone").asBoolean,
    node.get("text").asText)
}

/** A source of a query, by Spark's name for it. */
private[cec] final case class SourceState(name: String, available: Option[String] = None, error: Option[String] = None) {
  def toJson: ObjectNode = {
    val node = Json.obj()
    node.put("name", name)
    node.set[JsonNode]("available", Json.orNull(available)(value => Json.node(value)))
    node.set[JsonNode]("error", Json.orNull(error)(value => Json.node(value)))
    node
  }
}

/** A line for the driver's log. `warns`: something is wrong, or nearly wrong. */
private[cec] final case class StartMessage(line: String, warns: Boolean = true)

private[cec] object StartMessage {
  def of(node: JsonNode): StartMessage = StartMessage(
    node.get("line").asText,
    node.get("warns").asBoolean)
}

/** The open windows of a store at its `version`, by the age of their newest record. */
private[cec] final case class StoreAges(store: StoreId, version: Long, ages: Seq[FootprintAges])

private[cec] object StoreAges {
  def of(node: JsonNode): StoreAges = StoreAges(
    StoreId.of(node.get("store")),
    node.get("version").asLong,
    Json.elements(node.get("ages"))(value => FootprintAges.of(value)))
}

/** One version of one store; the counts are those of `log.meta.CommitMeta`. */
private[cec] final case class StoreCommit(
    store: StoreId, version: Long, generation: Long, retained: Long, forecast: Option[JsonNode], checkpointId: String,
    baseCheckpointId: Option[String], spool: Option[String], openWindows: Long, dirtyFrom: Long, dirtyWindows: Long,
    opened: Long, checked: Long, closed: Long, inputs: Long, digest: String, stateRows: Long, elapsedUs: Long,
    flags: Long, liveIsWhole: Boolean, live: Seq[(Long, Long)], timedBatch: Option[TimedBatch] = None,
    sinceStartMs: Long = 0L) {
  def toJson: ObjectNode = {
    val node = Json.obj()
    node.set[JsonNode]("store", store.toJson)
    node.put("version", version)
    node.put("generation", generation)
    node.put("retained", retained)
    node.set[JsonNode]("forecast", Json.orNull(forecast)(value => value))
    node.put("checkpoint_id", checkpointId)
    node.set[JsonNode]("base_checkpoint_id", Json.orNull(baseCheckpointId)(value => Json.node(value)))
    node.set[JsonNode]("spool", Json.orNull(spool)(value => Json.node(value)))
    node.put("open_windows", openWindows)
    node.put("dirty_from", dirtyFrom)
    node.put("dirty_windows", dirtyWindows)
    node.put("opened", opened)
    node.put("checked", checked)
    node.put("closed", closed)
    node.put("inputs", inputs)
    node.put("digest", digest)
    node.put("state_rows", stateRows)
    node.put("elapsed_us", elapsedUs)
    node.put("flags", flags)
    node.put("live_is_whole", liveIsWhole)
    node.set[JsonNode]("live", Json.list(live)(each => Json.arr().add(each._1).add(each._2)))
    node.set[JsonNode]("timed_batch", Json.orNull(timedBatch)(value => value.toJson))
    node.put("since_start_ms", sinceStartMs)
    node
  }
}

/** One state store: the paper's operator. `operator` and `partition` are Spark's ids, `name` the store's name. */
private[cec] final case class StoreId(operator: Long, partition: Long, name: String = "default") {
  def toJson: ObjectNode = {
    val node = Json.obj()
    node.put("operator", operator)
    node.put("partition", partition)
    node.put("name", name)
    node
  }
}

private[cec] object StoreId {
  def of(node: JsonNode): StoreId = StoreId(
    node.get("operator").asLong,
    node.get("partition").asLong,
    node.get("name").asText)
}

/** The newest batch that Spark timed, and its time in ms. */
private[cec] final case class TimedBatch(batch: Long, ms: Long) {
  def toJson: ObjectNode = {
    val node = Json.obj()
    node.put("batch", batch)
    node.put("ms", ms)
    node
  }
}

/** The removed segments. */
private[cec] final case class TrimAnswer(removed: Seq[String])

private[cec] object TrimAnswer {
  def of(node: JsonNode): TrimAnswer = TrimAnswer(
    Json.elements(node.get("removed"))(value => value.asText))
}

/** The first batch, the last one to read, and the newest one worth reading; -1 for none. */
private[cec] final case class ViewOffsetsAnswer(
    first: Long, last: Long, newest: Long, of: Option[String] = None, quietMs: Option[Long] = None,
    columns: Map[String, Long])

private[cec] object ViewOffsetsAnswer {
  def of(node: JsonNode): ViewOffsetsAnswer = ViewOffsetsAnswer(
    node.get("first").asLong,
    node.get("last").asLong,
    node.get("newest").asLong,
    Json.option(node.get("of"))(value => value.asText),
    Json.option(node.get("quiet_ms"))(value => value.asLong),
    Json.entries(node.get("columns"))(value => value.asLong))
}

/** The schemas (Spark's JSON) of the newest and the oldest batch; none before the first batch. */
private[cec] final case class ViewSchemaAnswer(schemas: Seq[String])

private[cec] object ViewSchemaAnswer {
  def of(node: JsonNode): ViewSchemaAnswer = ViewSchemaAnswer(
    Json.elements(node.get("schemas"))(value => value.asText))
}

/** The pieces of work of a read, for `read_split`, and the lost output that the read skips. */
private[cec] final case class ViewSplitsAnswer(splits: Seq[JsonNode], lost: Seq[String])

private[cec] object ViewSplitsAnswer {
  def of(node: JsonNode): ViewSplitsAnswer = ViewSplitsAnswer(
    Json.elements(node.get("splits"))(value => value),
    Json.elements(node.get("lost"))(value => value.asText))
}
