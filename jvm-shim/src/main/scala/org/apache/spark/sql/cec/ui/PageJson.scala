package org.apache.spark.sql.cec.ui

import com.fasterxml.jackson.databind.JsonNode
import com.fasterxml.jackson.databind.node.{JsonNodeFactory, ObjectNode}
import org.json4s.JValue
import org.json4s.jackson.JsonMethods

import org.apache.spark.sql.cec.agent.{Json, OperatorStanding, SourceStanding}

/** The pages' data as JSON, for scripts. Names end in units; null stands for an unknown number. */
private[ui] object PageJson {
  /** As Spark's pages answer it. */
  def toSpark(node: JsonNode): JValue = JsonMethods.parse(node.toString)

  /** The overview: all but what each batch did. */
  def overview(queries: Seq[QueryView], pipelines: Seq[PipelineView]): ObjectNode = {
    val node = Json.obj()
    node.set[JsonNode]("queries", Json.list(queries)(query))
    node.set[JsonNode]("pipelines", Json.list(pipelines)(pipeline))
    node
  }

  /** The answer about what the application does not have. */
  def unknown(what: String): ObjectNode = Json.obj().put("error", s"this application knows no such $what")

  /** One query, with the samples of the last hour. */
  def detail(view: QueryView): ObjectNode = {
    val node = query(view)
    node.set[JsonNode]("samples", Json.list(view.samples)(sample))
    node.set[JsonNode]("footprint_ages", Json.list(view.ages.classes) { ages =>
      val age = Json.obj().put("first_batches", ages.first)
      age.set[JsonNode]("last_batches", Json.orNull(ages.last)(Json.node))
      age.put("windows", ages.windows)
    })
    node.set[JsonNode]("footprint_ages_missing", Json.strings(view.ages.missing))
    node
  }

  private def query(view: QueryView): ObjectNode = {
    val node = Json.obj()
    node.put("name", view.identity.name.orNull).put("id", view.identity.id.toString).put("run_id", view.identity.runId.toString)
    node.put("checkpoint", view.identity.checkpoint).put("log", view.identity.home)
    node.put("state", view.state).put("level", view.level.word).put("activity", view.activity.orNull).put("started_ms", view.startedMs)
    node.set[JsonNode]("replay_progress", Json.orNull(view.progress) { case (ran, all) => Json.obj().put("batches_done", ran).put("batches", all) })
    node.put("mode", view.mode).put("settings", view.settings)
    node.set[JsonNode]("operators", Json.list(view.operators)(operator))
    node.set[JsonNode]("batch", Json.orNull(view.batch)(Json.node))
    node.set[JsonNode]("newest", Json.orNull(view.newest)(sample))
    node.set[JsonNode]("q", Json.orNull(view.extent)(bounded))
    node.set[JsonNode]("u", Json.orNull(view.replay)(bounded))
    node.set[JsonNode]("reach", Json.orNull(view.reach) { reach =>
      val found = Json.obj().put("first_batch", reach.first).put("batches", reach.batches).put("text", reach.text)
      found.set[JsonNode]("planned_ms", Json.orNull(reach.plannedMs)(Json.node))
      found.set[JsonNode]("sources", Json.list(reach.sources)(source))
      found.set[JsonNode]("sources_asked_ms", Json.orNull(reach.askedMs)(Json.node))
      found
    })
    node.set[JsonNode]("recovery_estimate_ms", Json.orNull(view.recoveryMs)(Json.node))
    node.set[JsonNode]("log_bytes", Json.orNull(view.storedBytes)(Json.node))
    node.set[JsonNode]("recoveries", Json.list(view.recoveries)(recovery))
    node.put("error", view.error.orNull)
    node.set[JsonNode]("notes", Json.list(view.notes)(note => Json.obj().put("level", note.level.word).put("text", note.text)))
    node.set[JsonNode]("answered_ms", Json.orNull(view.answeredMs)(Json.node))
    node
  }

  private def source(standing: SourceStanding): ObjectNode = {
    val node = Json.obj().put("source", standing.source).put("needed_offsets", standing.needed).put("gone", standing.gone).put("text", standing.text)
    node.set[JsonNode]("spare_offsets", Json.orNull(standing.spare)(Json.node))
    node.set[JsonNode]("spare_share", Json.orNull(standing.share)(real))
    node
  }

  private def operator(view: OperatorView): ObjectNode = {
    val node = Json.obj().put("id", view.id).put("kind", view.kind).put("mode", view.mode).put("reason", view.reason)
    node.set[JsonNode]("stores", Json.list(view.stores)(store))
    node
  }

  private def store(standing: OperatorStanding): ObjectNode = {
    val node = Json.obj().put("store", standing.store).put("partitions", standing.partitions).put("open_windows", standing.openWindows)
      .put("dirty_windows", standing.dirtyWindows).put("q", standing.extent).put("u", standing.replay)
    node.set[JsonNode]("q_bound", Json.orNull(standing.extentBound)(Json.node))
    node.set[JsonNode]("q_share", Json.orNull(standing.extentShare)(real))
    node.set[JsonNode]("u_bound", Json.orNull(standing.replayBound)(Json.node))
    node.set[JsonNode]("u_share", Json.orNull(standing.replayShare)(real))
    node
  }

  private def bounded(found: Bounded): ObjectNode = {
    val node = Json.obj().put("value", found.value).put("level", found.level.word)
    node.set[JsonNode]("bound", Json.orNull(found.bound)(Json.node))
    node.set[JsonNode]("share", Json.orNull(found.share)(real))
    node
  }

  private def sample(found: Sample): ObjectNode = Json.obj()
    .put("at_ms", found.atMs).put("batch", found.batch).put("batches", found.batches).put("rows", found.rows).put("batch_ms", found.batchMs)
    .put("commit_ms", found.commitMs).put("log_bytes", found.bytes).put("q", found.extent).put("u", found.replay)
    .put("dirty_windows", found.dirty).put("open_windows", found.windows).put("recovery_estimate_ms", found.recoveryMs)

  private def recovery(view: RecoveryView): ObjectNode = {
    val node = Json.obj().put("started_ms", view.startedMs).put("took_ms", view.tookMs).put("replayed_batches", view.batches)
    node.set[JsonNode]("foretold_ms", Json.orNull(view.foretoldMs)(Json.node))
    node.set[JsonNode]("proved_right", Json.orNull(view.proved)(Json.node))
    node
  }

  def pipeline(view: PipelineView): ObjectNode = {
    val node = Json.obj().put("name", view.name).put("home", view.home).put("level", view.level.word)
    node.put("capacity", view.capacity.orNull).put("protocol", view.protocol).put("written_ms", view.writtenMs)
    node.set[JsonNode]("flows", Json.list(view.flows) { flow =>
      val found = Json.obj().put("name", flow.name).put("state", flow.state).put("level", flow.level.word).put("sink", flow.isSink)
      found.set[JsonNode]("inputs", Json.strings(flow.inputs))
      found.set[JsonNode]("batch", Json.orNull(flow.batch)(Json.node))
      found.set[JsonNode]("behind_batches", Json.orNull(flow.behind)(Json.node))
      found.set[JsonNode]("cores", Json.orNull(flow.cores)(real))
      found.set[JsonNode]("complete_to_ms", Json.orNull(flow.completeToMs)(Json.node))
      found.put("restarts", flow.restarts).put("why", flow.why.orNull)
    })
    node
  }

  private def real(value: Double): JsonNode = JsonNodeFactory.instance.numberNode(value)
}
