package org.apache.spark.sql.cec.recovery

import java.lang.reflect.InvocationTargetException
import java.util
import java.util.Locale
import java.util.concurrent.{ExecutionException, TimeUnit}

import scala.jdk.CollectionConverters._
import scala.util.control.NonFatal

import com.fasterxml.jackson.databind.node.ObjectNode

import org.apache.spark.internal.Logging
import org.apache.spark.sql.catalyst.plans.logical.LogicalPlan
import org.apache.spark.sql.catalyst.streaming.StreamingRelationV2
import org.apache.spark.sql.catalyst.util.CaseInsensitiveMap
import org.apache.spark.sql.cec.agent.Json
import org.apache.spark.sql.execution.streaming.runtime.StreamingRelation

/**
 * Asks a Kafka cluster about the topics of a streaming relation: their offsets, their retention, and whether they are compacted.
 *
 * Spark's own jars lack Kafka's classes, so reflection reaches them through the connector, with the connector's
 * parameters. The connector's `ConsumerStrategy` knows the topics of `assign`, `subscribe` and `subscribePattern`, and
 * signs in as the source does.
 *
 * This object asks only the cluster that the source reads. To describe topics and list offsets it needs the source's
 * own permission (Describe). The configuration needs DescribeConfigs on each topic.
 */
private[recovery] object KafkaTopics {
  /**
   * A reason if the offsets of this relation may not give the same rows again: Kafka compacts a topic, or does not
   * tell its configuration. None for another kind of relation. Topics that a `subscribePattern` finds later are not
   * covered.
   */
  def cleanupReason(relation: LogicalPlan): Option[String] = findCompacted(relation, unknown = failure => Some(
    s"whether a topic is compacted cannot be asked of Kafka (${words(failure)}): give the query's user DescribeConfigs on its topics, " +
      s"or name kafka in spark.sql.streaming.stateStore.cec.sources.replayable if none is"))

  /**
   * A reason if Kafka compacts a topic of this relation.
   *
   * @param unknown the answer if Kafka does not tell
   */
  def findCompacted(relation: LogicalPlan, unknown: Throwable => Option[String]): Option[String] = connect(relation).flatMap { case (kafka, _) =>
    try kafka.configurations.collectFirst {
      case (topic, config) if config.getOrElse(CleanupPolicy, "").split(',').map(_.trim).contains("compact") =>
        s"topic '$topic' is compacted ($CleanupPolicy=${config(CleanupPolicy)}): the same offsets do not give the same rows again"
    } catch { case NonFatal(failure) => unknown(failure) } finally kafka.close()
  }

  /** Whether this relation reads topics. */
  def areReadBy(relation: StreamingRelationV2): Boolean = isKafka(relation.sourceName)

  /** The topics of this relation, for several requests; None for another kind of relation. */
  def of(relation: LogicalPlan): Option[AskedTopics] = connect(relation).map { case (kafka, api) => new AskedTopics(kafka, api) }

  private val CleanupPolicy = "cleanup.policy"

  /** A connection for this relation, and Spark's name for a source of that interface. */
  private def connect(relation: LogicalPlan): Option[(KafkaConnection, String)] = relation match {
    case v2: StreamingRelationV2 if isKafka(v2.sourceName) =>
      v2.source.map(source => (new KafkaConnection(source.getClass, v2.extraOptions.asCaseSensitiveMap.asScala.toMap), "KafkaV2"))
    case v1: StreamingRelation if isKafka(v1.sourceName.takeWhile(_ != '[')) =>
      Some((new KafkaConnection(v1.dataSource.providingClass, v1.dataSource.options), "KafkaSourceV1"))
    case _ => None
  }

  private def isKafka(name: String): Boolean = name.toLowerCase(Locale.ROOT) match {
    case "kafka" | "kafkasource" | "kafkav2" => true
    case _ => false
  }

  /** Describes a failure in a few words, without Java's wrappers. */
  def words(failure: Throwable): String = failure match {
    case wrapped @ (_: ExecutionException | _: InvocationTargetException) if wrapped.getCause != null => words(wrapped.getCause)
    case other => s"${other.getClass.getSimpleName}${Option(other.getMessage).map(": " + _).getOrElse("")}"
  }
}

/** The topics of one relation, and the client that asks for them. Not thread-safe. */
private[recovery] final class AskedTopics(kafka: KafkaConnection, api: String) extends Logging {
  /** The source, as Spark names it. */
  lazy val name: String = s"$api[${kafka.subscription}]"

  /** Asked once, because a change of the retention is not urgent. */
  private lazy val retention: Map[String, String] =
    try kafka.configurations.flatMap { case (topic, config) => config.get(AskedTopics.RetentionMs).map(topic -> _) } catch {
      case NonFatal(failure) =>
        logInfo(s"Spark CEC: a topic's retention cannot be asked of Kafka (${KafkaTopics.words(failure)})")
        Map.empty
    }

  /**
   * The offsets that the topics still have: `{"<topic>": {"retention_ms": "...", "partitions": {"<n>": [first offset,
   * end]}}}`. If Kafka does not tell the configuration, `retention_ms` is null. Throws if the cluster does not answer.
   */
  def available(): ObjectNode = {
    val node = Json.obj()
    kafka.offsets.groupBy(_.topic).foreach { case (topic, partitions) =>
      val entry = node.putObject(topic).put("retention_ms", retention.get(topic).orNull)
      val offsets = entry.putObject("partitions")
      partitions.sortBy(_.partition).foreach(p => offsets.putArray(p.partition.toString).add(p.earliest).add(p.end))
    }
    node
  }

  def close(): Unit = kafka.close()
}

private object AskedTopics {
  val RetentionMs = "retention.ms"
}

private final case class KafkaPartition(topic: String, partition: Int, earliest: Long, end: Long)

/**
 * One admin client, made as the connector makes its own.
 *
 * @param provider the connector's `KafkaSourceProvider`
 * @param options the relation's options
 */
private final class KafkaConnection(provider: Class[_], options: Map[String, String]) {
  import KafkaConnection.WaitSeconds

  private val loader = provider.getClassLoader
  private lazy val strategy: AnyRef = {
    val source = provider.getDeclaredConstructor().newInstance().asInstanceOf[AnyRef]
    val method = provider.getMethods.find(_.getName.endsWith("$$strategy"))
      .getOrElse(throw new NoSuchMethodException(s"${provider.getName}.strategy"))
    method.invoke(source, CaseInsensitiveMap(options))
  }
  private var client: Option[AnyRef] = None

  /** The admin client. The first request makes it, because that may fail. */
  private def admin: AnyRef = client.getOrElse {
    val passed = options.collect { case (key, value) if key.toLowerCase(Locale.ROOT).startsWith("kafka.") => key.substring(6).toLowerCase(Locale.ROOT) -> value }
    val parameters = provider.getMethod("kafkaParamsForDriver", classOf[Map[_, _]]).invoke(null, passed)
    val made = call(strategy, "createAdmin", parameters)
    client = Some(made)
    made
  }

  /** The settings of each topic that the source reads. */
  def configurations: Map[String, Map[String, String]] = {
    val kinds = loadKafkaClass("common.config.ConfigResource$Type")
    val topic = kinds.getField("TOPIC").get(null)
    val resource = loadKafkaClass("common.config.ConfigResource").getConstructor(kinds, classOf[String])
    val asked = new util.ArrayList[AnyRef]()
    partitions.map(topicOf).distinct.foreach(name => asked.add(resource.newInstance(topic, name).asInstanceOf[AnyRef]))
    val answer = awaitAnswer(call(call(admin, "describeConfigs", asked), "all")).asInstanceOf[util.Map[AnyRef, AnyRef]]
    answer.asScala.map { case (of, config) =>
      val entries = call(config, "entries").asInstanceOf[util.Collection[AnyRef]].asScala
      call(of, "name").toString -> entries.map(e => call(e, "name").toString -> String.valueOf(call(e, "value"))).toMap
    }.toMap
  }

  /** The first offset and the end offset of each partition. */
  def offsets: Seq[KafkaPartition] = {
    val asked = partitions
    val (first, end) = (listOffsets("earliest", asked), listOffsets("latest", asked))
    asked.map(p => KafkaPartition(topicOf(p), call(p, "partition").asInstanceOf[Int], first(p), end(p)))
  }

  def close(): Unit = client.foreach(_.asInstanceOf[AutoCloseable].close())

  /** The topics of the source, in the words of its options. */
  def subscription: String = strategy.toString

  /** Asked again each time, because topics grow and a pattern finds new ones. */
  private def partitions: Seq[AnyRef] = call(strategy, "assignedTopicPartitions", admin).asInstanceOf[Set[AnyRef]].toSeq

  private def topicOf(partition: AnyRef): String = call(partition, "topic").toString

  private def listOffsets(which: String, partitions: Seq[AnyRef]): Map[AnyRef, Long] = {
    val spec = loadKafkaClass("clients.admin.OffsetSpec").getMethod(which).invoke(null)
    val asked = new util.HashMap[AnyRef, AnyRef]()
    partitions.foreach(asked.put(_, spec))
    val answer = awaitAnswer(call(call(admin, "listOffsets", asked), "all")).asInstanceOf[util.Map[AnyRef, AnyRef]]
    answer.asScala.map { case (partition, info) => partition -> call(info, "offset").asInstanceOf[Long] }.toMap
  }

  private def awaitAnswer(future: AnyRef): AnyRef =
    future.getClass.getMethod("get", classOf[Long], classOf[TimeUnit]).invoke(future, WaitSeconds, TimeUnit.SECONDS)

  private def loadKafkaClass(name: String): Class[_] = Class.forName(s"org.apache.kafka.$name", true, loader)

  /** Calls the public method with this name and these parameter types, at a supertype that is public. */
  private def call(target: AnyRef, name: String, arguments: AnyRef*): AnyRef = {
    val method = supertypes(target.getClass).flatMap(_.getMethods).find { each =>
      each.getName == name && each.getParameterCount == arguments.size && util.Arrays.equals(
        each.getParameterTypes.zip(arguments).map { case (wanted, given) => wanted.isInstance(given) }, Array.fill(arguments.size)(true)) &&
        java.lang.reflect.Modifier.isPublic(each.getDeclaringClass.getModifiers)
    }.getOrElse(throw new NoSuchMethodException(s"${target.getClass.getName}.$name"))
    method.invoke(target, arguments: _*)
  }

  private def supertypes(of: Class[_]): Seq[Class[_]] =
    if (of == null) Nil else of +: (of.getInterfaces.toSeq.flatMap(supertypes) ++ supertypes(of.getSuperclass))
}

private object KafkaConnection {
  /** How long a start waits for an answer. */
  val WaitSeconds: java.lang.Long = 20L
}
