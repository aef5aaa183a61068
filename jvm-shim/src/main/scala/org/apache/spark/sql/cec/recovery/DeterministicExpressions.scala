package org.apache.spark.sql.cec.recovery

import scala.util.Try

import org.apache.spark.api.python.PythonEvalType
import org.apache.spark.sql.catalyst.expressions.{Expression, PythonUDF, RuntimeReplaceable}
import org.apache.spark.sql.catalyst.expressions.aggregate.AggregateFunction
import org.apache.spark.sql.catalyst.plans.logical.LogicalPlan
import org.apache.spark.sql.catalyst.trees.TreePattern

/**
 * The expressions that have the same value for the same row. Spark says of each whether it does; what it does not say is
 * looked for here. Aggregate functions are judged by [[OrderIndependentAggregates]], their arguments are judged here.
 */
private[recovery] object DeterministicExpressions {
  private val RowByRow = Set(PythonEvalType.SQL_BATCHED_UDF, PythonEvalType.SQL_ARROW_BATCHED_UDF)

  /** The functions of nodes that [[DeterministicNodes]] knows or does not, and of arbitrary-state operators. */
  private val OfNodes = Set(
    PythonEvalType.SQL_MAP_PANDAS_ITER_UDF, PythonEvalType.SQL_MAP_ARROW_ITER_UDF,
    PythonEvalType.SQL_GROUPED_MAP_PANDAS_UDF, PythonEvalType.SQL_GROUPED_MAP_PANDAS_ITER_UDF,
    PythonEvalType.SQL_GROUPED_MAP_ARROW_UDF, PythonEvalType.SQL_GROUPED_MAP_ARROW_ITER_UDF,
    PythonEvalType.SQL_GROUPED_MAP_PANDAS_UDF_WITH_STATE)

  /** Why some expression of the plan, its subqueries included, may have another value in a replay. */
  def against(plan: LogicalPlan): Option[String] =
    plan.collectWithSubqueries { case node => node }.iterator.flatMap(_.expressions).flatMap(against(_)).nextOption()

  private def against(expression: Expression): Option[String] = expression match {
    // What Spark will compute instead counts, such as the generator of random numbers behind `uniform`.
    case rewritten: RuntimeReplaceable if !expression.isInstanceOf[AggregateFunction] =>
      Try(rewritten.replacement).fold(_ => nondeterministic(expression), against(_))
    case _ => ofItself(expression).orElse(expression.children.iterator.flatMap(against(_)).nextOption())
  }

  private def ofItself(expression: Expression): Option[String] = expression match {
    case _: AggregateFunction => None
    case udf: PythonUDF if !RowByRow(udf.evalType) && !OfNodes(udf.evalType) =>
      Some(s"'${udf.name}' is a function of many rows at once, which come in any order")
    case e if isOfTheMoment(e) || !e.deterministic && e.children.forall(_.deterministic) => nondeterministic(e)
    case _ => None
  }

  private def nondeterministic(expression: Expression): Option[String] = Some(s"the plan is not deterministic: ${expression.prettyName}")

  /** The time at which a batch is run, the user who runs it, the current catalog. */
  private def isOfTheMoment(expression: Expression): Boolean =
    expression.containsPattern(TreePattern.CURRENT_LIKE) && !expression.children.exists(_.containsPattern(TreePattern.CURRENT_LIKE))
}
