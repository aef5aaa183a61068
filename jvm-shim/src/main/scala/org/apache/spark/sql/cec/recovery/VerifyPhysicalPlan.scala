package org.apache.spark.sql.cec.recovery

import org.apache.spark.sql.catalyst.rules.Rule
import org.apache.spark.sql.cec.agent.QueryRefusedException
import org.apache.spark.sql.execution.{ColumnarRule, SparkPlan}

/**
 * The physical rule: after all others of its kind, the plan is checked. Every batch of a streaming query comes by, whatever its sink,
 * before its tasks exist. No plan is changed.
 */
private[cec] final class PhysicalRules extends ColumnarRule {
  override def postColumnarTransitions: Rule[SparkPlan] = VerifyPhysicalPlan
}

private[recovery] object VerifyPhysicalPlan extends Rule[SparkPlan] {
  override def apply(plan: SparkPlan): SparkPlan = {
    if (!DeferralRegistry.isEmpty) QueryRefusedException.orResult(new PhysicalPlanVerifier(plan).check())
    plan
  }
}
