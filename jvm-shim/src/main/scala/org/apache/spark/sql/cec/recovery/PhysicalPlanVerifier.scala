package org.apache.spark.sql.cec.recovery

import org.apache.spark.sql.cec.agent.CecException
import org.apache.spark.sql.execution.SparkPlan
import org.apache.spark.sql.execution.aggregate.BaseAggregateExec
import org.apache.spark.sql.execution.python.streaming.FlatMapGroupsInPandasWithStateExec
import org.apache.spark.sql.execution.streaming.operators.stateful._
import org.apache.spark.sql.execution.streaming.operators.stateful.flatmapgroupswithstate.FlatMapGroupsWithStateExec
import org.apache.spark.sql.execution.streaming.operators.stateful.join.StreamingSymmetricHashJoinExec

/**
 * Compares the plan that Spark will run with the decision on the logical plan, because an optimizer works between
 * them. If they differ, a store might defer state that no replay restores, so the query stops. A decision without
 * deferred operators needs no check.
 */
private[recovery] final class PhysicalPlanVerifier(plan: SparkPlan) {
  private val operators: Seq[StateStoreWriter] = plan.collect {
    case operator: StateStoreWriter if operator.stateInfo.isDefined => operator
  }

  def check(): Unit =
    for {
      any <- operators.headOption
      decision <- DeferralRegistry.of(any.getStateInfo)
      if decision.deferred.nonEmpty
    } findDifferences(decision).nextOption().foreach(refuse)

  private def findDifferences(decision: Decision): Iterator[String] = {
    val wanted = decision.operators.map(operator => operator.id -> PhysicalPlanVerifier.plannedKind(operator.kind))
    val found = operators.map(operator => operator.getStateInfo.operatorId -> PhysicalPlanVerifier.kind(operator)).sortBy(_._1)
    val others = Option.when(found != wanted)(s"it has the stateful operators ${formatOperators(found)}, and not ${formatOperators(wanted)}")
    val deferred = operators.iterator.filter(operator => decision.deferred(operator.getStateInfo.operatorId))
    others.iterator ++ deferred.flatMap(operator => judgeOperator(operator).map(reason =>
      s"operator ${operator.getStateInfo.operatorId} (${PhysicalPlanVerifier.kind(operator)}): $reason"))
  }

  private def judgeOperator(operator: StateStoreWriter): Option[String] = {
    val below = operator.children.flatMap(_.collect { case node => node })
    val feeding = below.collectFirst {
      case other: StateStoreWriter => s"it is fed by another stateful operator (${PhysicalPlanVerifier.kind(other)})"
    }
    val functions = below.collect { case aggregate: BaseAggregateExec => aggregate.aggregateExpressions }.flatten
    feeding.orElse(functions.flatMap(OrderIndependentAggregates.against(_)).headOption)
  }

  private def formatOperators(operators: Seq[(Long, String)]): String = operators.map { case (id, kind) => s"$id ($kind)" }.mkString("[", ", ", "]")

  private def refuse(difference: String): Unit = throw new CecException("Unsupported",
    s"the plan that Spark runs is not the one for which deferred commits were found safe: $difference. Nothing of this batch was " +
      "committed. Set spark.sql.streaming.stateStore.cec.mode=eager to run this query")
}

private[recovery] object PhysicalPlanVerifier {
  /** The kind of a physical operator, in the words of [[StatefulOperators.kind]]. */
  def kind(operator: StateStoreWriter): String = operator match {
    case _: StateStoreSaveExec | _: SessionWindowStateStoreSaveExec => "aggregation"
    case _: StreamingDeduplicateExec => "deduplication"
    case _: StreamingDeduplicateWithinWatermarkExec => "deduplication within watermark"
    case _: FlatMapGroupsWithStateExec => "flatMapGroupsWithState"
    case _: FlatMapGroupsInPandasWithStateExec => "applyInPandasWithState"
    case _: StreamingSymmetricHashJoinExec => "stream-stream join"
    case _: StreamingGlobalLimitExec => "limit"
    case other => other.nodeName
  }

  /** The physical kind that Spark plans for a logical kind. */
  private def plannedKind(kind: String): String = if (StatefulOperators.isAggregated(kind)) "aggregation" else kind
}
