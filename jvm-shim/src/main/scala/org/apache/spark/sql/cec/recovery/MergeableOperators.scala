package org.apache.spark.sql.cec.recovery

import org.apache.spark.sql.catalyst.expressions.{AttributeSet, Expression, RuntimeReplaceableAggregate}
import org.apache.spark.sql.catalyst.expressions.aggregate.{AggregateExpression, AggregateFunction}
import org.apache.spark.sql.catalyst.optimizer.EliminateDistinct
import org.apache.spark.sql.catalyst.plans.logical._
import org.apache.spark.sql.streaming.OutputMode

/**
 * Finds stateful operators of which Spark's optimizer may make one: deduplications by `CombineUnions`, aggregations by
 * `RemoveRedundantAggregates`, limits by `EliminateLimits`. The other operators of the query may then have other ids.
 */
private[recovery] object MergeableOperators {
  /** Two operators of which the upper one reads the lower one. */
  final case class Pair(upper: LogicalPlan, lower: LogicalPlan)

  /** @param plan without CTEs */
  def find(plan: LogicalPlan, mode: OutputMode): Seq[Pair] =
    StatefulOperators.operatorsOf(plan, mode).flatMap(upper => (above(upper, isDeduplication) ++ above(upper, isLimit) ++ redundant(upper)).map(Pair(upper, _)))

  private def isDeduplication(node: LogicalPlan): Boolean = node.isInstanceOf[Distinct] || node.isInstanceOf[Deduplicate]

  private def isLimit(node: LogicalPlan): Boolean = node.isInstanceOf[GlobalLimit]

  /** The operators of a kind below an operator of that kind. */
  private def above(upper: LogicalPlan, isOfKind: LogicalPlan => Boolean): Seq[LogicalPlan] =
    if (isOfKind(upper)) upper.children.flatMap(_.collectWithSubqueries { case node if node.isStreaming && isOfKind(node) => node }) else Nil

  /** The aggregations below an aggregation that Spark may leave out, or that may make Spark leave out the upper one. */
  private def redundant(upper: LogicalPlan): Seq[LogicalPlan] = upper match {
    case aggregate: Aggregate =>
      val functions = aggregate.aggregateExpressions.flatMap(_.collect { case function: AggregateExpression => function })
      if (functions.forall(call => call.isDistinct || ignoresDuplicates(call.aggregateFunction))) redundant(aggregate, functions.isEmpty, aggregate.references)
      else Nil
    case _ if isDistinct(upper) => redundant(upper, onlyGroups = true, upper.children.head.outputSet)
    case _ => Nil
  }

  private def isDistinct(node: LogicalPlan): Boolean = StatefulOperators.kind(node).exists(StatefulOperators.isAggregated) && !node.isInstanceOf[Aggregate]

  /**
   * The aggregations below `upper` of which Spark may make one with it. The lower one is redundant if the upper one reads no
   * result of its functions. An upper one without functions is redundant if it reads all keys of the lower one: one is a sign.
   *
   * @param onlyGroups whether the upper one has no functions
   * @param read the columns that it reads
   */
  private def redundant(upper: LogicalPlan, onlyGroups: Boolean, read: AttributeSet): Seq[LogicalPlan] =
    upper.children.flatMap(aggregationsBelow).collect {
      case (lower, results) if read.forall(!results.contains(_)) || onlyGroups && read.exists(!results.contains(_)) => lower
    }

  /** The aggregations that a node reads without another operator between them, with the node's columns that come from their functions. */
  private def aggregationsBelow(node: LogicalPlan): Seq[(LogicalPlan, AttributeSet)] = node match {
    case lower: Aggregate if lower.isStreaming =>
      Seq(lower -> AttributeSet(lower.aggregateExpressions.filter(AggregateExpression.containsAggregate(_)).map(_.toAttribute)))
    case lower if isDistinct(lower) => Seq(lower -> AttributeSet.empty)
    case project: Project => aggregationsBelow(project.child).map { case (lower, results) =>
      lower -> (results ++ AttributeSet(project.projectList.filter(_.references.exists(results.contains(_))).map(_.toAttribute)))
    }
    case join: Join => join.children.flatMap(aggregationsBelow)
    case other: UnaryNode if keepsRows(other) => aggregationsBelow(other.child)
    case _ => Nil
  }

  /** Whether a node has the rows of its child, or some of them, as they are. */
  private def keepsRows(node: UnaryNode): Boolean =
    (StatefulOperators.kind(node).isEmpty || isLimit(node)) && node.outputSet.subsetOf(node.child.outputSet)

  private def ignoresDuplicates(function: Expression): Boolean = function match {
    case rewritten: RuntimeReplaceableAggregate => ignoresDuplicates(rewritten.replacement)
    case plain: AggregateFunction => EliminateDistinct.isDuplicateAgnostic(plain)
    case _ => false
  }
}
