package org.apache.spark.sql.cec.recovery

import org.apache.spark.sql.catalyst.plans.logical.{AnalysisHelper, LogicalPlan}

/** Transformations of an analysed plan from inside an analyzer rule. */
private[recovery] object Plans {
  /** Spark forbids this in tests, because a rule that goes over a plan again and again costs time; ours does it once, at a start. */
  def transform(plan: LogicalPlan)(change: PartialFunction[LogicalPlan, LogicalPlan]): LogicalPlan =
    AnalysisHelper.allowInvokingTransformsInAnalyzer(plan.transform(change))
}
