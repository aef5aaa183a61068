package org.apache.spark.sql.cec.recovery

import java.security.MessageDigest
import java.util
import java.util.HexFormat

import scala.jdk.CollectionConverters._

import org.apache.spark.sql.catalyst.expressions.{Attribute, Literal, UnsafeProjection}
import org.apache.spark.sql.catalyst.expressions.aggregate.AggregateExpression
import org.apache.spark.sql.catalyst.optimizer.InlineCTE
import org.apache.spark.sql.catalyst.plans.logical.{AnalysisHelper, Aggregate, LeafNode, LocalRelation, LogicalPlan}
import org.apache.spark.sql.catalyst.streaming.StreamingRelationV2
import org.apache.spark.sql.cec.source.CecTable
import org.apache.spark.sql.classic.SparkSession
import org.apache.spark.sql.execution.streaming.runtime.StreamingRelation
import org.apache.spark.sql.streaming.OutputMode
import org.apache.spark.sql.types.{DateType, TimestampNTZType, TimestampType}

/**
 * Judges whether two replicas of a flow give out the same rows, however their input falls into batches. A flow is refused
 * unless it is known to. A pipeline in Python asks before anything starts.
 */
private[cec] object ReplicaCheck {
  /** The sources that give both replicas the same rows for the same offsets. */
  private val Sources = Set("kafka", "cec", "rate-micro-batch")

  /**
   * Why the replicas of a flow may differ; empty if they do not.
   *
   * @param readsSource whether the flow reads a source, and no channel of the pipeline
   */
  def against(analyzed: LogicalPlan, readsSource: Boolean): String = {
    val plan = AnalysisHelper.allowInvokingTransformsInAnalyzer(InlineCTE().apply(analyzed))
    val nodes = plan.collectWithSubqueries { case node => node }
    val reasons = nodes.iterator.flatMap(judge(_, readsSource)) ++ DeterministicExpressions.against(plan) ++
      (if (readsSource) judgeSources(plan) else judgeChannels(plan))
    reasons.nextOption().getOrElse("")
  }

  /**
   * The columns of a flow that reads by buckets for which it tells below which time no row will come: ends of windows, or
   * the time of its buckets, unchanged.
   */
  def boundedColumns(analyzed: LogicalPlan): util.List[String] = {
    val kept = if (QuietInputs.isRowByRow(analyzed)) analyzed.output.filter(isTimeOfBuckets(analyzed, _)).map(_.name) else Nil
    (TimeColumns.endsOfWindows(analyzed, OutputMode.Append()) ++ kept).asJava
  }

  /**
   * What the program of a flow may have read itself: dates and times, as SQL, and a digest of each table of rows. Spark's
   * parser reads `DATE'today'` off a clock, and leaves no trace of that in the plan.
   */
  def constants(analyzed: LogicalPlan): util.List[String] = {
    val times = analyzed.collectWithSubqueries { case node => node.expressions }.flatten
      .flatMap(_.collect { case time @ Literal(_, _: DateType | _: TimestampType | _: TimestampNTZType) => time.sql })
    val tables = analyzed.collectWithSubqueries { case local: LocalRelation if local.data.nonEmpty => digest(local) }
    (times ++ tables).distinct.sorted.asJava
  }

  private def digest(local: LocalRelation): String = {
    val (row, md5) = (UnsafeProjection.create(local.schema), MessageDigest.getInstance("MD5"))
    local.data.foreach(each => md5.update(row(each).getBytes))
    s"${local.data.size} rows ${HexFormat.of.formatHex(md5.digest)}"
  }

  /** The settings of a session that can change the rows of a flow. */
  def settings(session: SparkSession): util.Map[String, String] = SessionSettings.of(session.sessionState.conf).asJava

  private def isTimeOfBuckets(plan: LogicalPlan, column: Attribute): Boolean = TimeColumns.sourceColumn(plan, column).exists {
    case (source: StreamingRelationV2, name) => tableOf(source).flatMap(_.bucketTime).exists(_.equalsIgnoreCase(name))
    case _ => false
  }

  private def tableOf(source: StreamingRelationV2): Option[CecTable] = Some(source.table).collect { case table: CecTable => table }

  private def judge(node: LogicalPlan, readsSource: Boolean): Option[String] = node match {
    case stateful if StatefulOperators.kind(stateful).isDefined && readsSource =>
      Some(s"it reads a source and has state (${StatefulOperators.kind(stateful).get}): let another flow read it by buckets, and keep the state there")
    case windows: Aggregate if windows.isStreaming =>
      windows.aggregateExpressions.flatMap(_.collect { case e: AggregateExpression => e }).flatMap(OrderIndependentAggregates.againstUpToRounding(_))
        .headOption.orElse(windows.groupingExpressions.flatMap(key => OrderIndependentAggregates.againstKey(key.dataType)).headOption)
    case stateful if StatefulOperators.kind(stateful).isDefined =>
      Some(s"it has a ${StatefulOperators.kind(stateful).get}, whose rows may depend on how its input falls into batches")
    case _: LocalRelation => None // replicas compare its rows
    case leaf: LeafNode if !leaf.isStreaming && !DeferralAnalysis.isFixed(leaf) =>
      Some(s"it reads data beside its streams, which may change at any time (${leaf.nodeName})")
    case other => DeterministicNodes.against(other)
  }

  private def sourcesOf(plan: LogicalPlan): Seq[LogicalPlan] =
    plan.collectWithSubqueries { case source @ (_: StreamingRelationV2 | _: StreamingRelation) => source }

  private def judgeChannels(plan: LogicalPlan): Option[String] = sourcesOf(plan).filterNot(QuietInputs.isReadByBuckets).headOption
    .map(_ => "it reads flows and a source of its own: read the source in a flow of its own")

  private def judgeSources(plan: LogicalPlan): Option[String] = {
    val sources = sourcesOf(plan)
    val reasons = sources.flatMap {
      case v2: StreamingRelationV2 if Sources(v2.sourceName) =>
        judgeOptions(v2.extraOptions.asScala.toMap).orElse(KafkaTopics.findCompacted(v2, unknown = _ => None))
      case v2: StreamingRelationV2 => Some(unknown(v2.sourceName))
      case other => Some(unknown(other.nodeName))
    }
    reasons.headOption.orElse(Option.when(sources.size != 1)(
      s"it reads ${sources.size} sources, and replicas agree on the batches of one: read each in a flow of its own"))
  }

  private def judgeOptions(options: Map[String, String]): Option[String] = options.collectFirst {
    case (key, value) if key.equalsIgnoreCase("failOnDataLoss") && !value.equalsIgnoreCase("true") =>
      s"its source has failOnDataLoss=$value, and each replica would lose other rows: leave it out"
    case (key, value) if key.equalsIgnoreCase("reader") =>
      s"its source has reader=$value, and both replicas would note under that name how far they are: leave it out"
    case (key, value) if key.equalsIgnoreCase("tentative") && value.trim.equalsIgnoreCase("true") =>
      "its source reads tentative rows, which are deleted once the right ones have come: leave it out"
  }

  private def unknown(source: String): String =
    s"source '$source' is not known to give both replicas the same rows: replicas read ${Sources.toSeq.sorted.mkString(", ")}"
}
