package org.apache.spark.sql.cec.recovery

import scala.util.Try

import org.apache.spark.api.python.PythonEvalType
import org.apache.spark.sql.catalyst.expressions.{Expression, PythonUDF, RuntimeReplaceable}
import org.apache.spark.sql.catalyst.expressions.aggregate.AggregateFunction
import org.apache.spark.sql.catalyst.plans.logical.LogicalPlan
import org.apache.spark.sql.catalyst.trees.TreePattern

/**
 * Finds expressions that may have another value for the same row. Spark marks most of them; this object looks for the
 * others. [[OrderIndependentAggregates]] judges aggregate functions, and this object judges their arguments.
 */
private[recovery] object DeterministicExpressions {
  private val RowFunctions = Set(PythonEvalType.SQL_BATCHED_UDF, PythonEvalType.SQL_ARROW_BATCHED_UDF)

  /** The functions of plan nodes and of arbitrary-state operators. [[DeterministicNodes]] judges the nodes. */
  private val NodeFunctions = Set(
    PythonEvalType.SQL_MAP_PANDAS_ITER_UDF, PythonEvalType.SQL_MAP_ARROW_ITER_UDF,
    PythonEvalType.SQL_GROUPED_MAP_PANDAS_UDF, PythonEvalType.SQL_GROUPED_MAP_PANDAS_ITER_UDF,
    PythonEvalType.SQL_GROUPED_MAP_ARROW_UDF, PythonEvalType.SQL_GROUPED_MAP_ARROW_ITER_UDF,
    PythonEvalType.SQL_GROUPED_MAP_PANDAS_UDF_WITH_STATE)

  /** A reason if an expression of the plan or its subqueries may have another value in a replay. */
  def against(plan: LogicalPlan): Option[String] =
    plan.collectWithSubqueries { case node => node }.iterator.flatMap(_.expressions).flatMap(against(_)).nextOption()

  private def against(expression: Expression): Option[String] = expression match {
    // Judge the expression that Spark will compute, such as the random generator behind `uniform`.
    case rewritten: RuntimeReplaceable if !expression.isInstanceOf[AggregateFunction] =>
      Try(rewritten.replacement).fold(_ => makeReason(expression), against(_))
    case _ => judgeAlone(expression).orElse(expression.children.iterator.flatMap(against(_)).nextOption())
  }

  private def judgeAlone(expression: Expression): Option[String] = expression match {
    case _: AggregateFunction => None
    case udf: PythonUDF if !RowFunctions(udf.evalType) && !NodeFunctions(udf.evalType) =>
      Some(s"'${udf.name}' is a function of many rows at once, which come in any order")
    case e if dependsOnMoment(e) || !e.deterministic && e.children.forall(_.deterministic) => makeReason(e)
    case _ => None
  }

  private def makeReason(expression: Expression): Option[String] = Some(s"the plan is not deterministic: ${expression.prettyName}")

  /** Whether the value depends on the time of the batch, the user or the current catalog. */
  private def dependsOnMoment(expression: Expression): Boolean =
    expression.containsPattern(TreePattern.CURRENT_LIKE) && !expression.children.exists(_.containsPattern(TreePattern.CURRENT_LIKE))
}
