package org.apache.spark.sql.cec.recovery

import java.util.concurrent.{ExecutionException, FutureTask, TimeoutException, TimeUnit}

import scala.util.control.NonFatal

import org.apache.spark.sql.catalyst.plans.logical.LogicalPlan
import org.apache.spark.sql.catalyst.streaming.StreamingRelationV2
import org.apache.spark.sql.cec.agent.SourceState
import org.apache.spark.sql.cec.source.CecTable
import org.apache.spark.sql.execution.streaming.runtime.StreamingRelation

/**
 * Asks the sources of a query which input they still have, in the order of Spark's offset log. Not thread-safe.
 *
 * @param plan the query with its original sources
 */
private[recovery] final class SourceProbe(plan: LogicalPlan) {
  private val relations = plan.collect { case relation @ (_: StreamingRelationV2 | _: StreamingRelation) => relation }
  private val topics = relations.distinct.flatMap(relation => KafkaTopics.of(relation).map(relation -> _)).toMap

  /** Whether some source can be asked. */
  def canBeAsked: Boolean = topics.nonEmpty

  /** Asks the sources, and waits until they answer. */
  def ask(): Seq[SourceState] = {
    val answers = topics.map { case (relation, kafka) =>
      relation -> (try Right(kafka.available().toString) catch { case NonFatal(failure) => Left(KafkaTopics.words(failure)) })
    }
    describe(answers)
  }

  /** The same list for sources that do not answer. */
  def silent(why: String): Seq[SourceState] = describe(topics.map { case (relation, _) => relation -> Left(why) })

  def close(): Unit = topics.values.foreach(_.close())

  private def describe(answers: Map[LogicalPlan, Either[String, String]]): Seq[SourceState] = relations.map { relation =>
    val answer = answers.get(relation)
    SourceState(name(relation), answer.flatMap(_.toOption), answer.flatMap(_.left.toOption))
  }

  private def name(relation: LogicalPlan): String = relation match {
    case _ if topics.contains(relation) => try topics(relation).name catch { case NonFatal(_) => "kafka" } // the source will refuse its options
    case v2: StreamingRelationV2 => Some(v2.table).collect { case table: CecTable => table.name }.getOrElse(v2.sourceName)
    case v1: StreamingRelation => v1.sourceName
    case other => other.nodeName
  }
}

private[recovery] object SourceProbe {
  /** How long a start waits for an answer. */
  private val WaitSeconds = 10L

  /** The names of a query's sources: topics, a log, or Spark's name for that kind. Asks no source. */
  def names(plan: LogicalPlan): Seq[String] = {
    val sources = new SourceProbe(plan)
    try sources.relations.map(sources.name) finally sources.close()
  }

  /** Asks the sources once, with a time limit. A source without an answer in time does not stop the start. */
  def once(plan: LogicalPlan): Seq[SourceState] = {
    val sources = new SourceProbe(plan)
    if (!sources.canBeAsked) sources.ask()
    else {
      val asking = new FutureTask[Seq[SourceState]](() => try sources.ask() finally sources.close())
      start("cec-sources", asking)
      try asking.get(WaitSeconds, TimeUnit.SECONDS) catch {
        case _: TimeoutException => new SourceProbe(plan).silent(s"no answer within $WaitSeconds s")
        case failure: ExecutionException => new SourceProbe(plan).silent(KafkaTopics.words(failure)) // another connector
      }
    }
  }

  /** Starts a daemon thread, which does not keep the JVM alive. */
  def start(name: String, task: Runnable): Thread = {
    val thread = new Thread(task, name)
    thread.setDaemon(true)
    thread.start()
    thread
  }
}
