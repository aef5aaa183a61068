package org.apache.spark.sql.cec.recovery

import org.apache.spark.sql.catalyst.expressions.aggregate.AggregateExpression
import org.apache.spark.sql.catalyst.optimizer.InlineCTE
import org.apache.spark.sql.catalyst.plans.logical._
import org.apache.spark.sql.catalyst.streaming.{StreamingRelationV2, WriteToStream}
import org.apache.spark.sql.cec.operators.CountWindow
import org.apache.spark.sql.execution.streaming.runtime.StreamingRelation
import org.apache.spark.sql.internal.SQLConf

/**
 * Decides for each stateful operator of a query whether a replay gives the same state (docs/queries.md). What is not
 * known to be safe is eager: [[OrderIndependentAggregates]], [[DeterministicNodes]] and [[DeterministicExpressions]] say what is known.
 *
 * @param promises what the user vouches for
 */
private[recovery] final class DeferralAnalysis(write: WriteToStream, conf: SQLConf, speculation: Boolean, mode: String, promises: Promises) {
  import promises.replayableSources

  /** The plan as Spark runs it: an operator in a CTE is below whoever reads it, and there once for each reader. */
  private val plan: LogicalPlan = AnalysisHelper.allowInvokingTransformsInAnalyzer(InlineCTE().apply(write.inputQuery))

  def decide(): Decision = Decision(StatefulOperators.operatorsOf(plan, write.outputMode).zipWithIndex.map { case (node, id) =>
    val against = if (mode == "eager") Some("cec.mode=eager") else ofOperator(node).orElse(ofQuery)
    OperatorDecision(id, StatefulOperators.kind(node).get, against.isEmpty, against.getOrElse("a replay gives the same state"))
  })

  private lazy val ofQuery: Option[String] = Seq(
    Option.when(speculation)("speculative execution is on (spark.speculation)"),
    DeterministicExpressions.against(plan),
    unsafeSource,
    changeableInput,
    unknownOperator,
    Option.when(conf.getConf(SQLConf.STATE_STORE_UNLOAD_ON_COMMIT))(
      s"state is unloaded at every commit (${SQLConf.STATE_STORE_UNLOAD_ON_COMMIT.key})"),
    Option.when(conf.getConfString(DeferralAnalysis.StreamlineAggregator, "false").toBoolean)(s"${DeferralAnalysis.StreamlineAggregator} is on"),
    Option.when(conf.getConf(SQLConf.STREAMING_OPTIMIZE_ONE_ROW_PLAN_ENABLED))(
      s"Spark may leave a stateful operator out of a batch (${SQLConf.STREAMING_OPTIMIZE_ONE_ROW_PLAN_ENABLED.key})"),
    Option.when(conf.getConf(SQLConf.ENABLE_STREAMING_SOURCE_EVOLUTION))("streaming source evolution is on"),
    // Spark would record the class of the sink, which must be wrapped where commits are deferred.
    Option.when(conf.getConf(SQLConf.ENABLE_STREAMING_SINK_EVOLUTION))("streaming sink evolution is on")).flatten.headOption

  private def ofOperator(node: LogicalPlan): Option[String] =
    ofItself(node).orElse(upstream(node)).orElse(below(node).flatMap(DeterministicNodes.against(_)).headOption)

  /** All that the operator is fed by, and the subqueries therein. */
  private def below(node: LogicalPlan): Seq[LogicalPlan] = node.children.flatMap(_.collectWithSubqueries { case fed => fed })

  private def upstream(node: LogicalPlan): Option[String] =
    below(node).flatMap(StatefulOperators.kind).headOption.map(kind => s"it is fed by another stateful operator ($kind)")

  /** Why an operator's own state may come out different, though its input is the same. */
  private def ofItself(node: LogicalPlan): Option[String] = node match {
    case a: Aggregate =>
      a.aggregateExpressions.flatMap(_.collect { case e: AggregateExpression => e }).flatMap(OrderIndependentAggregates.against(_)).headOption
        .orElse(a.groupingExpressions.flatMap(key => OrderIndependentAggregates.againstKey(key.dataType)).headOption)
    case d: Deduplicate => d.keys.flatMap(key => OrderIndependentAggregates.againstKey(key.dataType)).headOption
    case d: Distinct => d.output.flatMap(key => OrderIndependentAggregates.againstKey(key.dataType)).headOption
    case f: FlatMapGroupsWithState => ofTimeout(f.timeout).orElse(CountWindow.against(f.func).getOrElse(ofFunction))
    case f: FlatMapGroupsInPandasWithState => ofTimeout(f.timeout).orElse(ofFunction)
    // Nothing is lost by it: a key is written when it is first seen, and does not change after that.
    case _: DeduplicateWithinWatermark => Some("a key's time is that of the first of its rows, and these come in any order")
    case _: Join => Some("the keys of a join's four stores depend on one another")
    case _: GlobalLimit => Some("a limit counts all rows in one window")
    case _ => Some("it is not known to give the same state again")
  }

  private def ofTimeout(timeout: org.apache.spark.sql.streaming.GroupStateTimeout): Option[String] =
    Option.when(timeout == ProcessingTimeTimeout)("processing-time timeouts")

  /** Spark promises no order of a key's rows, yet delivers one, on which functions rest: it is left as it is, and a shuffle may bring another. */
  private def ofFunction: Option[String] = Option.when(!promises.functionsAreOrderFree)(
    "its function may depend on the order of a key's rows, and on how they are split into chunks; if it does not, say so with " +
      "spark.sql.streaming.stateStore.cec.functions.orderFree=on")

  /** What may become a stateful operator that is not looked for makes it uncertain which operator has which id. */
  private def unknownOperator: Option[String] = plan.collect {
    case node if node.isStreaming && StatefulOperators.kind(node).isEmpty && !DeterministicNodes.isStateless(node) => node.nodeName
  }.headOption.map(name => s"it is not known which stateful operators $name becomes")

  private def unsafeSource: Option[String] = plan.collect {
    case v2: StreamingRelationV2 => replayable(v2.sourceName, Map.empty).orElse(compacted(v2, v2.sourceName))
    case v1: StreamingRelation =>
      val name = v1.sourceName.takeWhile(_ != '[')
      replayable(name, v1.dataSource.options).orElse(compacted(v1, name))
  }.flatten.headOption

  /** A topic that Kafka compacts, unless the user vouches for it. */
  private def compacted(relation: LogicalPlan, name: String): Option[String] =
    if (replayableSources.exists(_.equalsIgnoreCase(name))) None else KafkaTopics.cleanupReason(relation)

  /** Data beside the streams, such as a table to look things up in, may change between a crash and its replay. */
  private def changeableInput: Option[String] = plan.collectWithSubqueries {
    case leaf: LeafNode if !leaf.isStreaming && !DeferralAnalysis.isFixed(leaf) => leaf.nodeName
  }.headOption.map(name => s"it reads data beside its streams, which may change between a crash and its replay ($name)")

  private def replayable(name: String, options: Map[String, String]): Option[String] = {
    val cleans = options.exists { case (key, value) => key.equalsIgnoreCase("cleanSource") && !value.equalsIgnoreCase("off") }
    val known = (DeferralAnalysis.Replayable ++ replayableSources).exists(_.equalsIgnoreCase(name))
    if (cleans) Some("the file source removes what it has read (cleanSource)")
    else if (known) None
    else Some(s"source '$name' is not known to be replayable; if it is, name it in spark.sql.streaming.stateStore.cec.sources.replayable")
  }
}

/**
 * What the user vouches for.
 *
 * @param replayableSources names of sources that give the same rows for the same offsets
 * @param functionsAreOrderFree functions over arbitrary state leave the same state whatever the order of a key's rows, and however they are split
 */
private[recovery] final case class Promises(replayableSources: Seq[String], functionsAreOrderFree: Boolean)

private object DeferralAnalysis {
  /** By name: Spark 4.2 does not have it. */
  val StreamlineAggregator = "spark.sql.streaming.useStreamlineAggregator"

  /** Leaves whose rows are part of the plan. */
  def isFixed(leaf: LeafNode): Boolean = leaf match {
    case _: LocalRelation | _: OneRowRelation | _: Range => true
    case _ => false
  }

  /** Sources that give the same rows again for the same offsets. */
  val Replayable: Set[String] = Set("FileSource", "kafka", "rate", "rate-micro-batch", "delta", "cec", "memory", "MemoryStream")
}
