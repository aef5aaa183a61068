package org.apache.spark.sql.cec.ui

import scala.jdk.CollectionConverters._

import com.fasterxml.jackson.databind.JsonNode

import org.apache.spark.sql.cec.agent.{Json, PipelineLookAnswer}

/**
 * A flow of a pipeline.
 *
 * @param behind how many batches of its inputs it left for later
 * @param cores the cores that it keeps busy
 * @param completeToMs its watermark
 * @param why what it waits for, or its error
 */
private[ui] final case class FlowView(
    name: String, inputs: Seq[String], isSink: Boolean, state: String, level: Level, batch: Option[Long], behind: Option[Long],
    cores: Option[Double], completeToMs: Option[Long], restarts: Long, why: Option[String])

/**
 * What the page of a pipeline shows.
 *
 * @param capacity its executors, in words
 * @param writtenMs when its driver wrote the status
 * @param note why the status is not what it should be
 */
private[ui] final case class PipelineView(
    name: String, home: String, level: Level, capacity: Option[String], protocol: String, writtenMs: Long, flows: Seq[FlowView], note: Option[Note])

private[ui] object PipelineView {
  /** The driver writes its status each second, if the storage answers. A status this old is not today's. */
  private val SilentMs = 75000L

  /** While Spark starts, which may wait for a cluster, the driver writes none. */
  private val StartsMs = 600000L

  /** The home of the pipeline that a query with this checkpoint would be a flow of. */
  def homeOf(checkpoint: String): Option[String] = checkpoint.lastIndexOf("/flows/") match {
    case -1 => None
    case end => Some(checkpoint.take(end))
  }

  /** The view; None for the answer about a query that is no flow. */
  def of(look: Timed[PipelineLookAnswer], nowMs: Long): Option[PipelineView] =
    for {
      answer <- look.value
      home <- answer.home
      status <- answer.status
      graph <- answer.graph
    } yield {
      val known = graph.path("flows")
      val flows = status.path("flows").elements.asScala.map(flow => readFlow(flow, known.path(flow.get("name").asText), nowMs)).toVector
      val written = status.path("wall_ms").asLong
      val mostMs = if (flows.forall(_.state == "starting")) StartsMs else SilentMs
      val silent = Option.when(nowMs - written > mostMs && flows.exists(flow => !Over.contains(flow.state)))(
        Note(Level.Bad, s"its driver (process ${status.path("pid").asLong}) has written no status for ${(nowMs - written) / 1000} s"))
      val note = silent.orElse(look.problem.map(why => Note(Level.Warning, s"this status may be old: $why")))
      PipelineView(
        status.path("name").asText, home, Level.worst(note.map(_.level).toSeq ++ flows.map(_.level)), describeCapacity(status.path("capacity")),
        status.path("protocol").asText("cec"), written, flows, note)
    }

  private val Over = Set("failed", "ended", "stopped")

  private def readFlow(flow: JsonNode, node: JsonNode, nowMs: Long): FlowView = {
    val state = flow.get("state").asText
    FlowView(
      flow.get("name").asText,
      node.path("inputs").elements.asScala.map(_.asText).toVector,
      node.path("sink").asBoolean,
      state,
      judge(state, flow),
      Json.option(flow.get("batch"))(_.asLong),
      Json.option(flow.get("behind"))(_.asLong),
      Json.option(flow.get("cores"))(_.asDouble),
      Json.option(flow.get("complete_to_ms"))(_.asLong),
      flow.path("restarts").asLong,
      explain(flow, state, nowMs))
  }

  private def judge(state: String, flow: JsonNode): Level = state match {
    case "failed" => Level.Bad
    case "running" => if (readNames(flow, "waits_for").isEmpty && flow.path("away_since_ms").asLong == 0) Level.Good else Level.Warning
    case "ended" | "stopped" => Level.Plain
    case _ => Level.Warning
  }

  private def readNames(flow: JsonNode, field: String): Seq[String] = flow.path(field).elements.asScala.map(_.asText).toVector

  private def explain(flow: JsonNode, state: String, nowMs: Long): Option[String] = {
    val (starves, waits) = (readNames(flow, "starves_for"), readNames(flow, "waits_for"))
    val held = flow.path("held_for").elements.asScala.map(each => s"${Format.bytes(each.path("bytes").asLong)} wait for ${each.path("flow").asText}").toVector
    val away = Json.option(flow.get("away_since_ms"))(_.asLong).filterNot(_ => Over.contains(state))
    val said = Seq(
      Option.when(starves.nonEmpty)(s"${starves.mkString(", ")} failed, so no new input comes"),
      Option.when(waits.nonEmpty)(s"waits for ${waits.mkString(", ")}"),
      Option.when(held.nonEmpty)(s"held: ${held.mkString("; ")}"),
      away.map(since => s"a source has not answered for ${Math.max(nowMs - since, 0L) / 1000} s"),
      Json.option(flow.get("epoch"))(_.asLong).map { _ =>
        val (absent, blocked) = (readNames(flow, "absent"), readNames(flow, "blocked"))
        val waits = if (blocked.isEmpty) "" else s"; new rows of ${blocked.mkString(", ")} may wait in a join"
        s"answers tentatively${if (absent.isEmpty) "" else s" without ${absent.mkString(", ")}"}$waits"
      },
      Json.text(flow.get("error")).filter(_ => state == "failed" || state == "restarting").map(ErrorText.summarize)).flatten
    Option.when(said.nonEmpty)(said.mkString("; "))
  }

  private def describeCapacity(capacity: JsonNode): Option[String] = Option.when(capacity.isObject) {
    val (executors, cores) = (capacity.path("executors").asLong, capacity.path("cores").asLong)
    val has = s"$executors ${if (executors == 1) "executor" else "executors"}, $cores ${if (cores == 1) "core" else "cores"}, " +
      f"${capacity.path("wanted").asDouble}%.1f wanted"
    Json.option(capacity.get("recovering_s"))(_.asLong).fold(has)(seconds => s"in recovery for $seconds s: $has")
  }
}
