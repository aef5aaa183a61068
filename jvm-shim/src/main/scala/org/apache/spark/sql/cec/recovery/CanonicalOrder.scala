package org.apache.spark.sql.cec.recovery

import org.apache.spark.sql.catalyst.expressions.SortOrder
import org.apache.spark.sql.catalyst.rules.Rule
import org.apache.spark.sql.cec.agent.Refused
import org.apache.spark.sql.execution.{ColumnarRule, SortExec, SparkPlan}
import org.apache.spark.sql.execution.streaming.operators.stateful.StatefulOperator
import org.apache.spark.sql.execution.streaming.operators.stateful.flatmapgroupswithstate.FlatMapGroupsWithStateExecBase

/**
 * The physical rules: before any other rule of this kind, the input of deferred arbitrary-state operators is put into
 * canonical order; after all of them, the plan is checked. Every batch of a streaming query comes by, whatever its sink,
 * before its tasks exist. Plans of all other queries are left as they are.
 */
private[cec] final class PhysicalRules extends ColumnarRule {
  override def preColumnarTransitions: Rule[SparkPlan] = CanonicalOrder

  override def postColumnarTransitions: Rule[SparkPlan] = CheckPlan
}

/** Spark sorts the input of an arbitrary-state operator by the grouping key: the rows of a group are put in order too. */
private[recovery] object CanonicalOrder extends Rule[SparkPlan] {
  override def apply(plan: SparkPlan): SparkPlan =
    if (PlannedQueries.isEmpty) plan
    else plan.transformUp {
      case operator: FlatMapGroupsWithStateExecBase if isDeferred(operator) && !isSorted(operator) =>
        operator.withNewChildren(operator.children.map(input => if (input eq operator.child) sorted(operator) else input))
    }

  /** Whether the operator gets the rows of a group in canonical order. */
  def isSorted(operator: FlatMapGroupsWithStateExecBase): Boolean = operator.child match {
    case sort: CanonicalSortExec => SortOrder.orderingSatisfies(sort.sortOrder, required(operator))
    case _ => false
  }

  private def isDeferred(operator: StatefulOperator): Boolean =
    operator.stateInfo.exists(info => PlannedQueries.of(info).exists(_.deferred(info.operatorId)))

  private def sorted(operator: FlatMapGroupsWithStateExecBase): SparkPlan = operator.child match {
    case sort: SortExec if !sort.global => CanonicalSortExec(required(operator), sort.child)
    case unsorted => CanonicalSortExec(required(operator), unsorted)
  }

  private def required(operator: FlatMapGroupsWithStateExecBase): Seq[SortOrder] =
    operator.requiredChildOrdering(operator.children.indexWhere(_ eq operator.child))
}

private[recovery] object CheckPlan extends Rule[SparkPlan] {
  override def apply(plan: SparkPlan): SparkPlan = {
    if (!PlannedQueries.isEmpty) Refused.orResult(new PlanCheck(plan).check())
    plan
  }
}
