package org.apache.spark.sql.cec.recovery

import org.apache.spark.sql.catalyst.expressions.{CurrentTimestampLike, Expression}
import org.apache.spark.sql.catalyst.plans.logical._
import org.apache.spark.sql.catalyst.streaming.StreamingRelationV2
import org.apache.spark.sql.execution.streaming.runtime.StreamingRelation
import org.apache.spark.sql.internal.SQLConf

/** Whether the commits of one stateful operator may be deferred, and why or why not. */
private[recovery] final case class OperatorDecision(id: Long, kind: String, deferred: Boolean, reason: String)

/** The decision for a query. `reason` says in a sentence why not all operators are deferred, or that they are. */
private[recovery] final case class Decision(operators: Seq[OperatorDecision]) {
  def deferred: Set[Long] = operators.filter(_.deferred).map(_.id).toSet

  def mode: String =
    if (operators.isEmpty) "stateless" else if (operators.forall(_.deferred)) "deferred"
    else if (deferred.nonEmpty) "mixed" else "eager"

  def reason: String =
    if (operators.isEmpty) "no stateful operator"
    else operators.map(op => s"operator ${op.id} (${op.kind}) ${if (op.deferred) "deferred" else "eager"}: ${op.reason}").mkString("; ")
}

/**
 * Decides for each stateful operator of a plan whether a replay gives the same state (design, section 6). What is not
 * known to be safe is eager.
 *
 * @param vouchedFor source names that the user says can be replayed
 */
private[recovery] final class Deferral(plan: LogicalPlan, conf: SQLConf, speculation: Boolean, mode: String, vouchedFor: Seq[String]) {
  /** Stateful operators, numbered as Spark does: from the sink up, a parent before its children. */
  private val stateful: Seq[LogicalPlan] = {
    val found = Seq.newBuilder[LogicalPlan]
    plan.foreach(node => if (Stateful.kind(node).isDefined) found += node)
    found.result()
  }

  def decide(): Decision = Decision(stateful.zipWithIndex.map { case (node, id) =>
    val kind = Stateful.kind(node).get
    val against = if (mode == "eager") Some("cec.mode=eager") else ofQuery.orElse(ofOperator(node))
    OperatorDecision(id, kind, against.isEmpty, against.getOrElse("a replay gives the same state"))
  })

  private lazy val ofQuery: Option[String] = Seq(
    Option.when(speculation)("speculative execution is on (spark.speculation)"),
    nondeterministic.map(name => s"the plan is not deterministic: $name"),
    unsafeSource,
    changeableInput,
    Option.when(conf.getConf(SQLConf.STATE_STORE_UNLOAD_ON_COMMIT))(
      s"state is unloaded at every commit (${SQLConf.STATE_STORE_UNLOAD_ON_COMMIT.key})"),
    Option.when(conf.getConf(SQLConf.ENABLE_STREAMING_SOURCE_EVOLUTION))("streaming source evolution is on")).flatten.headOption

  private def ofOperator(node: LogicalPlan): Option[String] = Seq(
    Stateful.neverDeferred(node),
    node.children.flatMap(_.collectFirst { case upstream if Stateful.kind(upstream).isDefined => upstream }).headOption
      .flatMap(Stateful.kind).map(kind => s"it is fed by another stateful operator ($kind)")).flatten.headOption

  private def nondeterministic: Option[String] =
    plan.collect { case node => node.expressions.flatMap(_.collectFirst { case e if isUnsafe(e) => e }) }.flatten.headOption.map(_.prettyName)

  private def isUnsafe(expression: Expression): Boolean = expression match {
    case _: CurrentTimestampLike => true
    case e if Deferral.CurrentTime.contains(e.prettyName) || Deferral.OrderDependent.contains(e.prettyName) => true
    case e => e.children.forall(_.deterministic) && !e.deterministic
  }

  private def unsafeSource: Option[String] = plan.collect {
    case v2: StreamingRelationV2 => replayable(v2.sourceName, Map.empty)
    case v1: StreamingRelation => replayable(v1.sourceName.takeWhile(_ != '['), v1.dataSource.options)
  }.flatten.headOption

  /** Data beside the streams, such as a table to look things up in, may change between a crash and its replay. */
  private def changeableInput: Option[String] = plan.collectWithSubqueries {
    case leaf: LeafNode if !leaf.isStreaming && !Deferral.isFixed(leaf) => leaf.nodeName
  }.headOption.map(name => s"it reads data beside its streams, which may change between a crash and its replay ($name)")

  private def replayable(name: String, options: Map[String, String]): Option[String] = {
    val cleans = options.exists { case (key, value) => key.equalsIgnoreCase("cleanSource") && !value.equalsIgnoreCase("off") }
    val known = (Deferral.Replayable ++ vouchedFor).exists(_.equalsIgnoreCase(name))
    if (cleans) Some("the file source removes what it has read (cleanSource)")
    else if (known) None
    else Some(s"source '$name' is not known to be replayable; if it is, name it in spark.sql.streaming.stateStore.cec.sources.replayable")
  }
}

private object Deferral {
  /** Leaves whose rows are part of the plan. */
  def isFixed(leaf: LeafNode): Boolean = leaf match {
    case _: LocalRelation | _: OneRowRelation | _: Range => true
    case _ => false
  }

  /** Sources that give the same rows again for the same offsets. */
  val Replayable: Set[String] = Set("FileSource", "kafka", "rate", "rate-micro-batch", "delta", "cec", "memory", "MemoryStream")

  /**
   * Aggregates whose result depends on the order of rows, which a shuffle does not keep. Spark takes some of them for
   * deterministic. (Sums of floating-point numbers are not here: they differ in the last bit only, and the digest tells.)
   */
  val OrderDependent: Set[String] = Set(
    "first", "first_value", "last", "last_value", "any_value", "nth_value", "collect_list", "collect_set", "array_agg", "listagg",
    "string_agg", "mode", "max_by", "min_by", "percentile_approx", "approx_percentile", "histogram_numeric", "approx_top_k")

  /** Expressions of the present time that are no [[CurrentTimestampLike]]. */
  val CurrentTime: Set[String] = Set("current_date", "current_time", "localtimestamp", "now", "current_timestamp", "unix_timestamp_now")
}

/** The stateful operators of a logical plan. */
private[recovery] object Stateful {
  /** What kind of stateful operator this node becomes; None if it is not one. */
  def kind(node: LogicalPlan): Option[String] = node match {
    case a: Aggregate if a.isStreaming => Some("aggregation")
    case d: Deduplicate if d.isStreaming => Some("deduplication")
    case d: DeduplicateWithinWatermark if d.isStreaming => Some("deduplication within watermark")
    case d: Distinct if d.isStreaming => Some("distinct")
    case f: FlatMapGroupsWithState if f.isStreaming => Some("flatMapGroupsWithState")
    case f: FlatMapGroupsInPandasWithState if f.isStreaming => Some("applyInPandasWithState")
    case j: Join if j.left.isStreaming && j.right.isStreaming => Some("stream-stream join")
    case l: GlobalLimit if l.isStreaming => Some("limit")
    case t if isTransformWithState(t) && t.isStreaming => Some("transformWithState")
    case _ => None
  }

  def isTransformWithState(node: LogicalPlan): Boolean = node.nodeName.startsWith("TransformWithState")

  /** Why an operator must be eager whatever the rest of the query is. */
  def neverDeferred(node: LogicalPlan): Option[String] = node match {
    case _: Join => Some("the keys of a join's four stores depend on one another")
    case _: GlobalLimit => Some("a limit counts all rows in one window")
    case f: FlatMapGroupsWithState if f.timeout == ProcessingTimeTimeout => Some("processing-time timeouts")
    case f: FlatMapGroupsInPandasWithState if f.timeout == ProcessingTimeTimeout => Some("processing-time timeouts")
    case _ => None
  }
}
