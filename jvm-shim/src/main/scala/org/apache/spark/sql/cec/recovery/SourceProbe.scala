package org.apache.spark.sql.cec.recovery

import java.util.concurrent.{ExecutionException, FutureTask, TimeoutException, TimeUnit}

import scala.util.control.NonFatal

import com.fasterxml.jackson.databind.node.ArrayNode

import org.apache.spark.sql.catalyst.plans.logical.LogicalPlan
import org.apache.spark.sql.catalyst.streaming.StreamingRelationV2
import org.apache.spark.sql.cec.agent.Json
import org.apache.spark.sql.cec.source.CecTable
import org.apache.spark.sql.execution.streaming.runtime.StreamingRelation

/**
 * The sources of a query, in the order of Spark's offset log, which may be asked what they still have. Not safe for use by
 * several threads.
 *
 * @param plan the query, its sources as they are
 */
private[recovery] final class SourceProbe(plan: LogicalPlan) {
  private val relations = plan.collect { case relation @ (_: StreamingRelationV2 | _: StreamingRelation) => relation }
  private val topics = relations.distinct.flatMap(relation => KafkaTopics.of(relation).map(relation -> _)).toMap

  /** Whether there is one that can be asked. */
  def canBeAsked: Boolean = topics.nonEmpty

  /** What they have, as the agent wants to know it: `[{"name", "available" or "error"}]`. Takes as long as they take to answer. */
  def ask(): ArrayNode = {
    val answers = topics.map { case (relation, kafka) =>
      relation -> (try Right(kafka.available().toString) catch { case NonFatal(failure) => Left(KafkaTopics.words(failure)) })
    }
    describe(answers)
  }

  /** The same, of sources that do not answer. */
  def silent(why: String): ArrayNode = describe(topics.map { case (relation, _) => relation -> Left(why) })

  def close(): Unit = topics.values.foreach(_.close())

  private def describe(answers: Map[LogicalPlan, Either[String, String]]): ArrayNode = {
    val node = Json.arr()
    relations.foreach { relation =>
      val source = node.addObject().put("name", name(relation))
      answers.get(relation).foreach(_.fold(source.put("error", _), source.put("available", _)))
    }
    node
  }

  private def name(relation: LogicalPlan): String = relation match {
    case _ if topics.contains(relation) => try topics(relation).name catch { case NonFatal(_) => "kafka" } // options that the source will refuse
    case v2: StreamingRelationV2 => Some(v2.table).collect { case table: CecTable => table.name }.getOrElse(v2.sourceName)
    case v1: StreamingRelation => v1.sourceName
    case other => other.nodeName
  }
}

private[recovery] object SourceProbe {
  /** How long a start waits for an answer. */
  private val WaitSeconds = 10L

  /** By which people know the sources of a query: topics, a log, or what Spark calls a source of that kind. Asks nobody. */
  def names(plan: LogicalPlan): Seq[String] = {
    val sources = new SourceProbe(plan)
    try sources.relations.map(sources.name) finally sources.close()
  }

  /** What the sources of a query have. Those that do not say so in time are left alone: whoever reads from them will see why. */
  def once(plan: LogicalPlan): ArrayNode = {
    val sources = new SourceProbe(plan)
    if (!sources.canBeAsked) sources.ask()
    else {
      val asking = new FutureTask[ArrayNode](() => try sources.ask() finally sources.close())
      start("cec-sources", asking)
      try asking.get(WaitSeconds, TimeUnit.SECONDS) catch {
        case _: TimeoutException => new SourceProbe(plan).silent(s"no answer within $WaitSeconds s")
        case failure: ExecutionException => new SourceProbe(plan).silent(KafkaTopics.words(failure)) // a connector of another make
      }
    }
  }

  /** Runs a task in a thread that keeps no JVM alive. */
  def start(name: String, task: Runnable): Thread = {
    val thread = new Thread(task, name)
    thread.setDaemon(true)
    thread.start()
    thread
  }
}
