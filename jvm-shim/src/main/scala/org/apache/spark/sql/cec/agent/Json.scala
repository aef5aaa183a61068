package org.apache.spark.sql.cec.agent

import scala.jdk.CollectionConverters._

import com.fasterxml.jackson.databind.{JsonNode, ObjectMapper}
import com.fasterxml.jackson.databind.node.{ArrayNode, JsonNodeFactory, NullNode, ObjectNode}

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

  def longMap(values: Map[String, Long]): ObjectNode = {
    val node = obj()
    values.foreach { case (key, value) => node.put(key, value) }
    node
  }

  def node(value: String): JsonNode = JsonNodeFactory.instance.textNode(value)

  def node(value: Long): JsonNode = JsonNodeFactory.instance.numberNode(value)

  def node(value: Boolean): JsonNode = JsonNodeFactory.instance.booleanNode(value)

  def list[T](values: Iterable[T])(encode: T => JsonNode): ArrayNode = {
    val node = arr()
    values.foreach(value => node.add(encode(value)))
    node
  }

  def orNull[T](value: Option[T])(encode: T => JsonNode): JsonNode = value.fold[JsonNode](NullNode.instance)(encode)

  /** The value in `node`; None for null and for a missing field. */
  def option[T](node: JsonNode)(decode: JsonNode => T): Option[T] = if (node == null || node.isNull) None else Some(decode(node))

  def elements[T](node: JsonNode)(decode: JsonNode => T): Seq[T] = node.elements.asScala.map(decode).toVector

  def entries[T](node: JsonNode)(decode: JsonNode => T): Map[String, T] =
    node.properties.asScala.map(entry => entry.getKey -> decode(entry.getValue)).toMap

  def text(node: JsonNode): Option[String] = if (node == null || node.isNull) None else Some(node.asText)
}
