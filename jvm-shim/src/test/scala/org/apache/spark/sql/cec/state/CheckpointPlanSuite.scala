package org.apache.spark.sql.cec.state

import org.apache.spark.sql.cec.CecSuite
import org.apache.spark.sql.cec.agent.{CommitPlan, ExtentStep, ReplayStep}

private[state] object Plans {
  /** A plan of the agent that asks for nothing. */
  val Nothing: CommitPlan = CommitPlan(
    replayBound = 100, extentRecords = 0, extentPerWindow = 2.0, share = 0.0, floorMs = 0.0, forcedBefore = -1, rewriteWindows = 0,
    worthBound = None, replaySteps = Nil, extentSteps = Nil)

  def plan(change: CommitPlan => CommitPlan = identity): CheckpointPlan = new CheckpointPlan(change(Nothing))
}

class CheckpointPlanSuite extends CecSuite {
  import Plans.plan

  private val steps = Seq(ReplayStep(3, 90), ReplayStep(5, 60), ReplayStep(9, 10))

  test("the first step that is cheap enough with the new input is the threshold") {
    val asked = plan(_.copy(replaySteps = steps))
    assert(asked.replayBefore(0) == 3)
    assert(asked.replayBefore(10) == 3)
    assert(asked.replayBefore(11) == 5)
    assert(asked.replayBefore(40) == 5)
    assert(asked.replayBefore(41) == 9)
  }

  test("the last step is the threshold if none is cheap enough, and no step asks for nothing") {
    assert(plan(_.copy(replaySteps = steps)).replayBefore(1000000) == 9)
    assert(plan().replayBefore(0) == Long.MinValue)
    assert(plan().extentBefore(0, 0, _ => 0L) == Long.MinValue)
  }

  test("checks that are worth their time have a bound of their own, and may have none") {
    def worthBefore(bound: Option[Long], inputs: Long) = plan(_.copy(replaySteps = steps, worthBound = bound)).worthBefore(inputs)
    assert(worthBefore(None, 0) == Long.MinValue)
    assert(worthBefore(Some(15), 0) == 9)
    assert(worthBefore(Some(15), 5) == 9)
    assert(worthBefore(Some(95), 5) == 3)
    assert(worthBefore(Some(0), 0) == 9)
  }

  test("the extent counts records after the commit: the steps' cost, rows for their windows, and this commit's") {
    val asked = plan(_.copy(extentRecords = 50, extentPerWindow = 0.0, extentSteps = Seq(ExtentStep(2, 60, 4), ExtentStep(6, 20, 10))))
    var askedFor = Seq.empty[Long]
    def rowsBefore(rows: (Long, Long)*): Long => Long = version => {
      askedFor :+= version
      rows.toMap.apply(version)
    }
    assert(asked.extentBefore(0, 10, rowsBefore(2L -> 4L, 6L -> 10L)) == 6)
    assert(askedFor == Seq(2L, 6L))
    def threshold(records: Int, rowsBefore: Long) =
      plan(_.copy(extentRecords = 60, extentPerWindow = 0.0, extentSteps = Seq(ExtentStep(2, 60, 4), ExtentStep(7, 0, 0))))
        .extentBefore(records, 10, version => if (version == 2) rowsBefore else 0L)
    assert(threshold(records = 0, rowsBefore = 4) == 2) // 60 - 4 + 4
    assert(threshold(records = 0, rowsBefore = 8) == 7) // a window of this store has two rows
    assert(threshold(records = 1, rowsBefore = 4) == 7)
  }

  test("the limit of the extent is the largest of Q, Q for each row, and the rows") {
    def threshold(records: Int, perWindow: Double, rows: Long) =
      plan(_.copy(extentRecords = records, extentPerWindow = perWindow, extentSteps = Seq(ExtentStep(1, 30, 0), ExtentStep(2, 0, 0))))
        .extentBefore(0, rows, _ => 0L)
    assert(threshold(30, 0.0, 0) == 1)
    assert(threshold(29, 0.0, 0) == 2)
    assert(threshold(0, 1.5, 20) == 1)
    assert(threshold(0, 1.5, 19) == 2)
    assert(threshold(0, 0.5, 30) == 1)
  }
}

class CheckpointTimeBudgetSuite extends CecSuite {
  private val Ms = 1000000L

  test("a store earns its share of each task, and saves up at most CI") {
    val budget = new CheckpointTimeBudget
    assert(budget.grant(10 * Ms, 0.2, 20.0) == 2.0 * Ms)
    (0 until 20).foreach(_ => budget.grant(50 * Ms, 0.2, 20.0))
    assert(budget.grant(50 * Ms, 0.2, 20.0) == 20.0 * Ms)
  }

  test("the share of one long task may be more than CI") {
    val budget = new CheckpointTimeBudget
    assert(budget.grant(1000 * Ms, 0.2, 20.0) == 200.0 * Ms)
    assert(budget.grant(1 * Ms, 0.2, 20.0) == 20.0 * Ms)
  }

  test("a store owes at most CI, however long a check took") {
    val budget = new CheckpointTimeBudget
    budget.grant(50 * Ms, 0.2, 20.0)
    budget.spend(100000 * Ms)
    assert(budget.grant(50 * Ms, 0.2, 20.0) == -10.0 * Ms)
    assert(budget.grant(50 * Ms, 0.2, 20.0) == 0.0)
    assert(budget.grant(50 * Ms, 0.2, 20.0) == 10.0 * Ms)
  }

  test("without a share nothing is earned") {
    val budget = new CheckpointTimeBudget
    assert(budget.grant(1000 * Ms, 0.0, 20.0) == 0.0)
  }
}
