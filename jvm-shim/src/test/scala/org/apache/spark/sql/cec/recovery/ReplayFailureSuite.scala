package org.apache.spark.sql.cec.recovery

import org.apache.spark.SparkException
import org.apache.spark.sql.cec.CecSuite
import org.apache.spark.sql.cec.agent.CecException

class ReplayFailureSuite extends CecSuite {
  private def explain(kind: String): String =
    Replay.explainFailure(7, 9, first => s"input from $first", _ => "", 5, new SparkException("a task failed", new CecException(kind, "the cause"))).getMessage

  test("a replay that fails names the way out of its cause, and offers accept if input may be gone alone") {
    assert(explain("LiveStore").contains("see to the room") && !explain("LiveStore").contains("accept"))
    assert(explain("DamagedLog").contains("cec repair") && !explain("DamagedLog").contains("accept"))
    assert(explain("Other").contains("onDivergence=accept"))
    assert(Seq("LiveStore", "DamagedLog", "Other").forall(kind => explain(kind).contains("the replay of batch 7") && explain(kind).contains("the cause")))
    assert(explain("Divergence") == "the cause (input from 5)")
  }
}
