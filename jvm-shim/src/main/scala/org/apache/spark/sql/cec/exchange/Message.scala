package org.apache.spark.sql.cec.exchange

import scala.jdk.CollectionConverters._
import scala.util.{Failure, Success, Try}

import com.fasterxml.jackson.databind.JsonNode
import com.fasterxml.jackson.databind.node.ObjectNode

import org.apache.spark.sql.cec.agent.{FootprintAges, Json}
import org.apache.spark.sql.cec.state.StoreOfOperator
import org.apache.spark.sql.execution.streaming.state.StateStoreId

/** A JVM that was asked has answered that it cannot do it, and why. */
private[exchange] final class StoreProblem(why: String) extends Exception(why)

/** The messages about state stores between driver and executors. */
private[exchange] object Message {
  val Ages = "ages"
  val End = "end"
  val Flush = "flush"
  val HandOver = "hand_over"
  val Write = "write"

  /** Asks for the ages of the windows of all stores of the query, whatever their run. */
  def ages(checkpoint: String): ObjectNode = Json.obj().put("call", Ages).put("checkpoint", checkpoint)

  /** The answer to `ages`: what is known of each store, or why nothing is. */
  def writeAges(found: Either[String, Seq[StoreWindows]]): ObjectNode = {
    val node = Json.obj()
    node.set[JsonNode]("problem", Json.orNull(found.left.toOption)(Json.node))
    node.set[JsonNode]("stores", Json.list(found.getOrElse(Nil)) { each =>
      val store = writeStore(each.store).put("generation", each.generation).put("version", each.version)
      store.set[JsonNode]("ages", Json.list(each.ages) { age =>
        val node = Json.obj().put("first", age.first).put("windows", age.windows)
        node.set[JsonNode]("last", Json.orNull(age.last)(Json.node))
      })
    })
    node
  }

  def readAges(answer: JsonNode): Either[String, Seq[StoreWindows]] = Json.text(answer.get("problem")).toLeft(
    Json.elements(answer.get("stores")) { node =>
      StoreWindows(readStore(node), node.get("generation").asLong, node.get("version").asLong, Json.elements(node.get("ages"))(FootprintAges.of))
    })

  /** The answer of a JVM that failed, whatever it was asked. */
  def writeProblem(why: String): ObjectNode = Json.obj().put("problem", why)

  /** An answer; a `StoreProblem` if the JVM failed. */
  def readAnswer(text: String): Try[JsonNode] = {
    val node = Json.parse(text)
    Json.text(node.get("problem")).fold[Try[JsonNode]](Success(node))(why => Failure(new StoreProblem(why)))
  }

  def end(checkpoint: String, generation: Long, version: Long, flush: Boolean): ObjectNode =
    makeMessage(End, checkpoint, version).put("generation", generation).put("flush", flush)

  def flush(checkpoint: String, generation: Long, version: Long): ObjectNode =
    makeMessage(Flush, checkpoint, version).put("generation", generation)

  def write(checkpoint: String, generation: Long, version: Long, named: NamedWrites): ObjectNode = {
    val message = makeMessage(Write, checkpoint, version).put("generation", generation)
    message.set[JsonNode]("commits", named.commits.foldLeft(Json.arr()) { case (list, (store, ids)) =>
      val node = writeStore(store)
      node.set[JsonNode]("ids", Json.strings(ids.toSeq))
      list.add(node)
    })
    message.set[JsonNode]("frames", Json.strings(named.frames.toSeq))
    message
  }

  /** The stores of a `write`, each with the ids of its commits. */
  def readCommits(message: JsonNode): Map[StoreOfOperator, Set[String]] =
    message.get("commits").elements.asScala.map(node => readStore(node) -> node.get("ids").elements.asScala.map(_.asText).toSet).toMap

  def writeStore(store: StoreOfOperator): ObjectNode =
    Json.obj().put("operator", store.operator).put("partition", store.partition).put("store", store.name)

  def readStore(node: JsonNode): StoreOfOperator =
    StoreOfOperator(node.get("operator").asLong, node.get("partition").asInt, node.get("store").asText)

  /**
   * Asks for a store at a version. The executor that has it in the same run writes it and drops its windows. The
   * frames of another run would not count. If no rule announced a run, `generation` is -1.
   */
  def handOver(from: String, checkpoint: String, generation: Option[Long], id: StateStoreId, version: Long, agentTimeoutMs: Int): ObjectNode =
    makeMessage(HandOver, checkpoint, version).put("from", from).put("agent_timeout_ms", agentTimeoutMs).put("generation", generation.getOrElse(-1L))
      .put("operator", id.operatorId).put("partition", id.partitionId).put("store", id.storeName)

  private def makeMessage(call: String, checkpoint: String, version: Long): ObjectNode =
    Json.obj().put("call", call).put("checkpoint", checkpoint).put("version", version)
}
