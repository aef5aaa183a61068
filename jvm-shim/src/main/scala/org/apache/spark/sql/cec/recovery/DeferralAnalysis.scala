package org.apache.spark.sql.cec.recovery

import java.util.Locale

import org.apache.spark.sql.catalyst.encoders.AgnosticEncoders.{IterableEncoder, MapEncoder, TransformingEncoder}
import org.apache.spark.sql.catalyst.expressions.{Attribute, NamedExpression, SessionWindow}
import org.apache.spark.sql.catalyst.expressions.aggregate.AggregateExpression
import org.apache.spark.sql.catalyst.optimizer.InlineCTE
import org.apache.spark.sql.catalyst.plans.logical._
import org.apache.spark.sql.catalyst.streaming.{StreamingRelationV2, WriteToStream}
import org.apache.spark.sql.catalyst.util.CaseInsensitiveMap
import org.apache.spark.sql.cec.operators.CountWindow
import org.apache.spark.sql.cec.source.CecTable
import org.apache.spark.sql.execution.streaming.runtime.StreamingRelation
import org.apache.spark.sql.internal.SQLConf
import org.apache.spark.sql.types.{DoubleType, FloatType, MapType, UserDefinedType}

/**
 * Decides for each stateful operator of a query whether a replay gives the same state (docs/queries.md). An operator
 * is eager unless [[OrderIndependentAggregates]], [[DeterministicNodes]] and [[DeterministicExpressions]] know it to
 * be safe.
 *
 * @param promises the user's promises about sources and functions
 */
private[recovery] final class DeferralAnalysis(write: WriteToStream, conf: SQLConf, speculation: Boolean, mode: String, promises: Promises) {
  import promises.replayableSources

  /** The plan as Spark runs it, with each CTE inlined at each of its references. */
  private val plan: LogicalPlan = AnalysisHelper.allowInvokingTransformsInAnalyzer(InlineCTE().apply(write.inputQuery))

  def decide(): Decision = Decision(StatefulOperators.operatorsOf(plan, write.outputMode).zipWithIndex.map { case (node, id) =>
    val against = if (mode == "eager") Some("cec.mode=eager") else judgeOperator(node).orElse(queryReason)
    OperatorDecision(id, StatefulOperators.kind(node).get, against.isEmpty, against.getOrElse("a replay gives the same state"))
  })

  private lazy val queryReason: Option[String] = Seq(
    Option.when(speculation)("speculative execution is on (spark.speculation)"),
    DeterministicExpressions.against(plan),
    findUnsafeSource,
    findChangeableInput,
    findUnknownOperator,
    findMerge,
    Option.when(conf.getConf(SQLConf.STATE_STORE_UNLOAD_ON_COMMIT))(
      s"state is unloaded at every commit (${SQLConf.STATE_STORE_UNLOAD_ON_COMMIT.key})"),
    Option.when(conf.getConfString(DeferralAnalysis.StreamlineAggregator, "false").toBoolean)(s"${DeferralAnalysis.StreamlineAggregator} is on"),
    Option.when(conf.getConf(SQLConf.STREAMING_OPTIMIZE_ONE_ROW_PLAN_ENABLED))(
      s"Spark may leave a stateful operator out of a batch (${SQLConf.STREAMING_OPTIMIZE_ONE_ROW_PLAN_ENABLED.key})"),
    Option.when(conf.getConf(SQLConf.ENABLE_STREAMING_SOURCE_EVOLUTION))("streaming source evolution is on"),
    // Spark would record the class of the sink, but a query with deferred commits needs a wrapped sink.
    Option.when(conf.getConf(SQLConf.ENABLE_STREAMING_SINK_EVOLUTION))("streaming sink evolution is on")).flatten.headOption

  private def judgeOperator(node: LogicalPlan): Option[String] =
    judgeOwnState(node).orElse(findUpstream(node)).orElse(judgeMerge(node)).orElse(collectInputs(node).flatMap(DeterministicNodes.against(_)).headOption)

  /** All nodes that feed the operator, with their subqueries. */
  private def collectInputs(node: LogicalPlan): Seq[LogicalPlan] = node.children.flatMap(_.collectWithSubqueries { case fed => fed })

  private def findUpstream(node: LogicalPlan): Option[String] =
    collectInputs(node).flatMap(StatefulOperators.kind).headOption.map(kind => s"it is fed by another stateful operator ($kind)")

  private lazy val mergeable: Seq[MergeableOperators.Pair] = MergeableOperators.find(plan, write.outputMode)

  /** An operator that is not there in each batch would be missed. */
  private def judgeMerge(node: LogicalPlan): Option[String] =
    mergeable.find(_.lower eq node).map(pair => s"Spark may make one operator of it and of the ${kindOf(pair.upper)} that it feeds")

  /** All operators are eager then, because the others may have other ids. */
  private def findMerge: Option[String] = mergeable.headOption.map(pair =>
    s"Spark may make one operator of the query's ${kindOf(pair.upper)} and of the ${kindOf(pair.lower)} that feeds it")

  private def kindOf(node: LogicalPlan): String = StatefulOperators.kind(node).getOrElse(node.nodeName)

  /** Why the same input may give the operator another state. */
  private def judgeOwnState(node: LogicalPlan): Option[String] = node match {
    case a: Aggregate =>
      a.aggregateExpressions.flatMap(_.collect { case e: AggregateExpression => e }).flatMap(OrderIndependentAggregates.against(_)).headOption
        .orElse(a.groupingExpressions.flatMap(key => OrderIndependentAggregates.againstKey(key.dataType)).headOption)
        .orElse(judgeSessions(a))
    case d: Deduplicate => d.keys.flatMap(key => OrderIndependentAggregates.againstKey(key.dataType)).headOption
    case d: Distinct => d.output.flatMap(key => OrderIndependentAggregates.againstKey(key.dataType)).headOption
    case f: FlatMapGroupsWithState =>
      judgeTimeout(f.timeout).orElse(CountWindow.against(f.func).getOrElse(judgeFunction.orElse(judgeState(f.stateEncoder.encoder))))
        .orElse(judgeGroups(f.groupingAttributes))
    case f: FlatMapGroupsInPandasWithState =>
      judgeTimeout(f.timeout).orElse(judgeFunction).orElse(judgeState(f.stateType)).orElse(judgeGroups(f.groupingAttributes))
    // Deferral would save nothing: a key is written when it is first seen, and never changes.
    case _: DeduplicateWithinWatermark => Some("a key's time is that of the first of its rows, and these come in any order")
    case _: Join => Some("the keys of a join's four stores depend on one another")
    case _: GlobalLimit => Some("a limit counts all rows in one window")
    case _ => Some("it is not known to give the same state again")
  }

  /** With this setting Spark drops late rows after it has merged those of each task, so it matters which task has a row. */
  private def judgeSessions(aggregate: Aggregate): Option[String] = {
    val merge = SQLConf.STREAMING_SESSION_WINDOW_MERGE_SESSIONS_IN_LOCAL_PARTITION
    val bySessions = aggregate.groupingExpressions.exists { case key: NamedExpression => key.metadata.contains(SessionWindow.marker); case _ => false }
    Option.when(bySessions && conf.getConf(merge))(s"sessions are merged in each task before late rows are dropped (${merge.key})")
  }

  private def judgeTimeout(timeout: org.apache.spark.sql.streaming.GroupStateTimeout): Option[String] =
    Option.when(timeout == ProcessingTimeTimeout)("processing-time timeouts")

  /**
   * Spark promises no order of a key's rows, but delivers one, and functions rely on it. After a shuffle the order may
   * differ.
   */
  private def judgeFunction: Option[String] = Option.when(!promises.functionsAreOrderFree)(
    "its function may depend on the order of a key's rows, and on how they are split into chunks; if it does not, say so with " +
      "spark.sql.streaming.stateStore.cec.functions.orderFree=on")

  /** A user promises that the order of rows does not matter. The bytes of a map or a set may still depend on it. */
  private def judgeState(state: Any): Option[String] = Option.when(DeferralAnalysis.hasUnorderedParts(state))(
    "its state has a map, a set or a serialized object, whose bytes may depend on the order in which entries came; keep them in a sorted sequence")

  /** Of keys that are equal the first row's stays, as its bytes are. An aggregation makes one number of both zeros before. */
  private def judgeGroups(keys: Seq[Attribute]): Option[String] =
    keys.flatMap(key => OrderIndependentAggregates.againstKey(key.dataType)).headOption.orElse(
      keys.find(_.dataType.existsRecursively(part => part == FloatType || part == DoubleType))
        .map(key => s"its key ${key.name} is a floating-point number, of which 0.0 and -0.0 are equal with other bytes"))

  /** An unknown node may become a stateful operator. Then the ids of operators are uncertain. */
  private def findUnknownOperator: Option[String] = plan.collect {
    case node if node.isStreaming && StatefulOperators.kind(node).isEmpty && !DeterministicNodes.isStateless(node) => node.nodeName
  }.headOption.map(name => s"it is not known which stateful operators $name becomes")

  private def findUnsafeSource: Option[String] = plan.collect {
    case v2: StreamingRelationV2 => judgeTentative(v2).orElse(judgeSource(v2.sourceName, Map.empty)).orElse(judgeTopics(v2, v2.sourceName))
    case v1: StreamingRelation =>
      val name = v1.sourceName.takeWhile(_ != '[')
      judgeSource(name, v1.dataSource.options).orElse(judgeTopics(v1, name)).orElse(DeferralAnalysis.judgeColumns(v1))
        .orElse(if (name == DeferralAnalysis.Files) judgeErrors(v1.dataSource.options) else None)
  }.flatten.headOption

  /** A reason if the source passes over what it cannot read at the moment. The next reading may have those rows. */
  private def judgeErrors(options: Map[String, String]): Option[String] = {
    val ofSource = CaseInsensitiveMap(options)
    val passesOver = Seq(SQLConf.IGNORE_CORRUPT_FILES, SQLConf.IGNORE_MISSING_FILES).find { entry =>
      ofSource.get(entry.key.split('.').last).fold(conf.getConf(entry))(_.trim.equalsIgnoreCase("true"))
    }
    passesOver.map(entry => s"the file source passes over what cannot be read, so each reading may have other rows (${entry.key})")
  }

  private def judgeTentative(relation: StreamingRelationV2): Option[String] = relation.table match {
    case table: CecTable if table.isTentative => Some("it reads tentative rows, which are deleted when the right ones have come")
    case _ => None
  }

  /** A reason if Kafka compacts a topic of the relation. A user's promise for the source overrides it. */
  private def judgeTopics(relation: LogicalPlan, name: String): Option[String] =
    if (replayableSources.exists(_.equalsIgnoreCase(name))) None else KafkaTopics.cleanupReason(relation)

  /**
   * A reason if the query reads data beside its streams, such as a lookup table. The table may change between a crash
   * and its replay.
   */
  private def findChangeableInput: Option[String] = plan.collectWithSubqueries {
    case leaf: LeafNode if !leaf.isStreaming && !DeferralAnalysis.isFixed(leaf) => leaf.nodeName
  }.headOption.map(name => s"it reads data beside its streams, which may change between a crash and its replay ($name)")

  private def judgeSource(name: String, options: Map[String, String]): Option[String] = {
    val cleans = options.exists { case (key, value) => key.equalsIgnoreCase("cleanSource") && !value.equalsIgnoreCase("off") }
    val known = (DeferralAnalysis.Replayable ++ replayableSources).exists(_.equalsIgnoreCase(name))
    if (cleans) Some("the file source removes what it has read (cleanSource)")
    else if (known) None
    else Some(s"source '$name' is not known to be replayable; if it is, name it in spark.sql.streaming.stateStore.cec.sources.replayable")
  }
}

/**
 * The promises of the user.
 *
 * @param replayableSources names of sources that give the same rows for the same offsets
 * @param functionsAreOrderFree whether functions over arbitrary state ignore the order of a key's rows, and their
 * split into chunks
 */
private[recovery] final case class Promises(replayableSources: Seq[String], functionsAreOrderFree: Boolean)

private[recovery] object DeferralAnalysis {
  /** Spark's name for a source of files. */
  private val Files = "FileSource"

  /** By name, because Spark 4.2 does not have it. */
  val StreamlineAggregator = "spark.sql.streaming.useStreamlineAggregator"

  /**
   * Whether each start has the same rows of this leaf. A program may read rows of a [[LocalRelation]] from a file, with
   * Pandas, say. Its plan does not tell.
   */
  def isFixed(leaf: LeafNode): Boolean = leaf match {
    case local: LocalRelation => local.data.isEmpty
    case _: OneRowRelation | _: Range => true
    case _ => false
  }

  /**
   * Whether a type or an encoder has a map or a set somewhere, or an object that is serialized as a whole, which may have
   * one. Both are trees of case classes.
   */
  def hasUnorderedParts(tree: Any): Boolean = tree match {
    case _: MapType | _: MapEncoder[_, _, _] | _: TransformingEncoder[_, _] => true
    case of: UserDefinedType[_] => hasUnorderedParts(of.sqlType)
    case many: IterableEncoder[_, _] =>
      val kind = many.clsTag.runtimeClass
      classOf[scala.collection.Set[_]].isAssignableFrom(kind) || classOf[java.util.Set[_]].isAssignableFrom(kind) || hasUnorderedParts(many.element)
    case several: Iterable[_] => several.exists(hasUnorderedParts)
    case node: Product => node.productIterator.exists(hasUnorderedParts)
    case _ => false
  }

  /** The file formats whose columns do not depend on what is in the files. */
  private val WithoutInference = Set("text", "binaryfile")

  /** Why a source may have other columns at the next start. */
  private def judgeColumns(relation: StreamingRelation): Option[String] = {
    val format = relation.dataSource.className
    Option.when(relation.sourceName.startsWith("FileSource") && relation.dataSource.userSpecifiedSchema.isEmpty && !WithoutInference(format.toLowerCase(Locale.ROOT)))(
      s"the columns of its source are inferred, and another file may change them: give the source a schema")
  }

  /** Sources that give the same rows again for the same offsets. */
  val Replayable: Set[String] = Set("FileSource", "kafka", "rate", "rate-micro-batch", "delta", "cec", "memory", "MemoryStream")
}
