package org.apache.spark.sql.cec.recovery

import org.apache.spark.sql.catalyst.rules.Rule
import org.apache.spark.sql.cec.agent.QueryRefusedException
import org.apache.spark.sql.execution.{ColumnarRule, SparkPlan}

/**
 * Verifies the physical plan after all other rules of this kind. Every batch of a streaming query passes it before its
 * tasks exist, whatever the sink. The rule changes no plan.
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
