package org.apache.spark.sql.cec.ui

import java.util.{HashMap => JMap, UUID}

import scala.jdk.CollectionConverters._

import org.apache.spark.sql.Row
import org.apache.spark.sql.cec.agent.{LookAnswer, OperatorStanding, Recovery}
import org.apache.spark.sql.cec.recovery.{Decision, OperatorDecision}
import org.apache.spark.sql.streaming.{SinkProgress, SourceProgress, StateOperatorProgress, StreamingQueryProgress}

/** Facts of queries that no session ran. */
private[ui] object ViewFacts {
  val hostile = "<script>alert(1)</script>\"' & Größe 日本"
  val decision: Decision = Decision(Seq(OperatorDecision(0, "aggregation", deferred = true, hostile)))

  def identity(name: String = hostile, checkpoint: String = "file:/c"): RunIdentity =
    RunIdentity(Some(name), UUID.nameUUIDFromBytes(checkpoint.getBytes), UUID.randomUUID(), checkpoint, s"$checkpoint/cec/log")

  def sample(atMs: Long, batch: Long, extent: Long = 50, replay: Long = 10): Sample =
    Sample(atMs, batch, 1, 100, 20, 5, 1000, extent, replay, 3, 40, 1500)

  def snapshot(
      stage: Stage = Stage.Running, samples: Seq[Sample] = Nil, error: Option[String] = None, warning: Option[String] = None): QuerySnapshot =
    QuerySnapshot(identity(), decision, stage, 1, Some("Waiting"), error, warning, samples)

  def store(extent: Long = 50, replay: Long = 10, bound: Option[Long] = Some(100)): OperatorStanding =
    OperatorStanding(0, "default", 2, 40, 3, extent, bound, bound.map(extent.toDouble / _), replay, bound, bound.map(replay.toDouble / _))

  def look(stores: Seq[OperatorStanding] = Seq(store()), recoveries: Seq[Recovery] = Nil, damages: Seq[String] = Nil): Timed[LookAnswer] =
    Timed(Some(LookAnswer(7, Some(5), "Q=2x", stores, 1500.4, None, recoveries, damages, 999)), 6, None)

  val unknown: Timed[LookAnswer] = Timed(None, 0, None)

  /** A batch as Spark reports it. */
  def progress(batch: Long, metrics: Map[String, Long]): StreamingQueryProgress = make(
    classOf[StreamingQueryProgress], UUID.randomUUID(), UUID.randomUUID(), "q", "2026-01-01T00:00:00Z", Long.box(batch), Long.box(20),
    boxed(Map("triggerExecution" -> 30L)), new JMap[String, String](), Array(operator(metrics)), Array.empty[SourceProgress], null.asInstanceOf[SinkProgress],
    new JMap[String, Row]())

  private def operator(metrics: Map[String, Long]): StateOperatorProgress = make(
    classOf[StateOperatorProgress],
    ("aggregation" +: Seq.fill(10)(Long.box(1))) ++ Seq(boxed(metrics), Set.empty[String]): _*)

  private def boxed(values: Map[String, Long]): JMap[String, java.lang.Long] =
    new JMap(values.map { case (name, value) => name -> Long.box(value) }.asJava)

  /** The constructors are Spark's own. */
  private def make[A](of: Class[A], arguments: Any*): A = {
    val constructor = of.getDeclaredConstructors.filter(_.getParameterCount == arguments.size).head
    constructor.setAccessible(true)
    constructor.newInstance(arguments.map(_.asInstanceOf[AnyRef]): _*).asInstanceOf[A]
  }
}
