package org.apache.spark.sql.cec.recovery

import org.apache.spark.sql.catalyst.plans.logical.{AnalysisHelper, LogicalPlan}

/** Changes an analysed plan inside an analyzer rule. */
private[recovery] object Plans {
  /**
   * Spark forbids this in tests, because repeated passes over a plan cost time. Our rule makes one pass, at a start.
   */
  def transform(plan: LogicalPlan)(change: PartialFunction[LogicalPlan, LogicalPlan]): LogicalPlan =
    AnalysisHelper.allowInvokingTransformsInAnalyzer(plan.transform(change))
}
