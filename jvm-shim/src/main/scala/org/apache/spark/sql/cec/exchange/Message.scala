package org.apache.spark.sql.cec.exchange

import com.fasterxml.jackson.databind.node.ObjectNode

import org.apache.spark.sql.cec.agent.Json
import org.apache.spark.sql.execution.streaming.state.StateStoreId

/** What the driver and the executors ask of each other about state stores. */
private[exchange] object Message {
  val End = "end"
  val Flush = "flush"
  val HandOver = "hand_over"

  def end(checkpoint: String, generation: Long, version: Long, flush: Boolean): ObjectNode =
    about(End, checkpoint, version).put("generation", generation).put("flush", flush)

  def flush(checkpoint: String, generation: Long, version: Long): ObjectNode =
    about(Flush, checkpoint, version).put("generation", generation)

  /**
   * An executor asks for a store at a version: whoever has it writes it and lets it go, in the same run of the query. What a run that is
   * over would write does not count any more. `generation` is -1 without word from the rule.
   */
  def handOver(from: String, checkpoint: String, generation: Option[Long], id: StateStoreId, version: Long, agentTimeoutMs: Int): ObjectNode =
    about(HandOver, checkpoint, version).put("from", from).put("agent_timeout_ms", agentTimeoutMs).put("generation", generation.getOrElse(-1L))
      .put("operator", id.operatorId).put("partition", id.partitionId).put("store", id.storeName)

  private def about(call: String, checkpoint: String, version: Long): ObjectNode =
    Json.obj().put("call", call).put("checkpoint", checkpoint).put("version", version)
}
