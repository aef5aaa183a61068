package org.apache.spark.sql.cec.state

import org.apache.spark.sql.cec.CecSuite
import org.apache.spark.sql.execution.metric.SQLMetric
import org.apache.spark.sql.execution.streaming.state.{StateStoreId, StateStoreMetrics}

class MetricsSuite extends CecSuite {
  test("the largest value stays, whatever the order in which partitions come") {
    for (order <- Seq(3L, 9L, 5L).permutations) {
      val all = new LargestValue
      order.foreach { value =>
        val one = new LargestValue
        one.add(value)
        all.merge(one)
      }
      assert(all.value == 9)
      assert(all.copy().value == 9)
    }
  }

  test("a store that commits twice counts once, and stores of several tasks add up") {
    val (one, two) = (new CommittedStores, new CommittedStores)
    assert(one.isZero)
    Tasks.within(task(one)) {
      CommittedStores.note(StateStoreId("/c", 1L, 2), Some("a"))
      CommittedStores.note(StateStoreId("/c", 1L, 2), Some("b"))
    }
    Tasks.within(task(two)) {
      CommittedStores.note(StateStoreId("/c", 1L, 2), Some("c"))
      CommittedStores.note(StateStoreId("/c", 1L, 2, "other"), Some("c"))
    }
    assert(one.value == 1 && two.value == 2)
    val copy = one.copy().asInstanceOf[CommittedStores]
    copy.merge(two)
    assert(copy.value == 2 && one.value == 1)
    assert(copy.all == Map(StoreOfOperator(1L, 2, "default") -> Set("a", "b", "c"), StoreOfOperator(1L, 2, "other") -> Set("c")))
    assertThrows[UnsupportedOperationException](one.merge(new SQLMetric("sum")))
    one.reset()
    assert(one.isZero)
    CommittedStores.note(StateStoreId("/c", 1L, 2), None) // no task, no metric
  }

  private def task(metric: CommittedStores): org.apache.spark.TaskContextImpl = {
    val made = Tasks.make(1)
    metric.metadata = org.apache.spark.util.AccumulatorMetadata(made.taskAttemptId, Some("stores"), countFailedValues = false)
    made.taskMetrics.registerAccumulator(metric)
    made
  }

  test("a join side's rows have the metrics of its counts, too, for as long as the task runs") {
    val (sum, most) = (SumMetric("records", ""), MaxMetric("u", ""))
    def metrics(records: Long, u: Long) = StateStoreMetrics(1L, 2L, Map(sum -> records, most -> u))
    val (rows, counts) = (StateStoreId("/c", 1L, 2, "left-keyWithIndexToValue"), StateStoreId("/c", 1L, 2, "left-keyToNumValues"))
    val others = Seq(StateStoreId("/c", 1L, 2, "right-keyWithIndexToValue"), StateStoreId("/c", 2L, 2, "left-keyWithIndexToValue"), StateStoreId("/c", 1L, 2))
    val task = Tasks.make(5)
    Tasks.within(task) {
      JoinMetrics.note(counts, metrics(3, 10))
      assert(JoinMetrics.complete(rows, metrics(4, 7)).customMetrics == Map(sum -> 7L, most -> 10L))
      assert(JoinMetrics.complete(rows, metrics(4, 70)).customMetrics == Map(sum -> 7L, most -> 70L))
      others.foreach(other => assert(JoinMetrics.complete(other, metrics(4, 7)) == metrics(4, 7)))
    }
    Tasks.within(Tasks.make(6))(assert(JoinMetrics.complete(rows, metrics(4, 7)) == metrics(4, 7)))
    task.markTaskCompleted(None)
    Tasks.within(task)(assert(JoinMetrics.complete(rows, metrics(4, 7)) == metrics(4, 7)))
    assert(JoinMetrics.complete(rows, metrics(4, 7)) == metrics(4, 7))
  }
}
