package org.apache.spark.sql.cec.agent

import com.fasterxml.jackson.databind.{JsonNode, ObjectMapper}
import com.fasterxml.jackson.databind.node.{ArrayNode, ObjectNode}

/** JSON by Jackson, which comes with Spark. */
private[cec] object Json {
  private val mapper = new ObjectMapper()

  def parse(text: String): JsonNode = mapper.readTree(text)

  def obj(): ObjectNode = mapper.createObjectNode()

  def arr(): ArrayNode = mapper.createArrayNode()

  def strings(values: Iterable[String]): ArrayNode = {
    val node = arr()
    values.foreach(node.add)
    node
  }

  def longs(values: Iterable[Long]): ArrayNode = {
    val node = arr()
    values.foreach(node.add)
    node
  }

  def map(values: Map[String, String]): ObjectNode = {
    val node = obj()
    values.foreach { case (key, value) => node.put(key, value) }
    node
  }

  def text(node: JsonNode): Option[String] = if (node == null || node.isNull) None else Some(node.asText)
}
