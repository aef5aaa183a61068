package org.apache.spark.sql.cec.state

import org.apache.spark.TaskContextImpl
import org.apache.spark.sql.cec.CecSuite

class StoreInputsSuite extends CecSuite {
  /** A task, and what reads so many shuffle records in it. */
  private def inTask[A](body: (Long => Unit) => A): A = {
    val task: TaskContextImpl = Tasks.make(1)
    Tasks.within(task)(body(records => task.taskMetrics.shuffleReadMetrics.incRecordsRead(records)))
  }

  /** The input of a store that was given so many puts, and whether it was counted. */
  private def found(store: StoreInputs, puts: Long): (Long, Boolean) = {
    val facts = store.facts(puts, named = false)
    (facts.inputs, facts.isCounted)
  }

  private def end(store: StoreInputs, puts: Long): (Long, Boolean) = {
    val counted = found(store, puts)
    store.end()
    counted
  }

  test("records that a task reads after the store has begun are counted") {
    inTask { read =>
      val store = new StoreInputs
      read(100)
      assert(store.facts(7, named = true) == BatchFacts(100, 100, store.facts(7, named = true).startedNs, named = true))
      assert(end(store, puts = 7) == ((100, true)))
    }
  }

  test("records that were read before the store began are its input, and a replay does not compare them") {
    inTask { read =>
      read(100)
      val store = new StoreInputs
      assert(store.facts(puts = 7, named = false).shuffled == 0)
      assert(end(store, puts = 7) == ((100, false)))
    }
  }

  test("without a shuffle puts are the input, and a replay does not compare them") {
    assert(end(new StoreInputs, puts = 7) == ((7, false)), "no task")
    inTask(_ => assert(end(new StoreInputs, puts = 7) == ((7, false))))
    inTask(_ => assert(end(new StoreInputs, puts = 0) == ((0, true))))
  }

  test("what a task has read before an open store began is that store's") {
    inTask { read =>
      read(100)
      val lower = new StoreInputs
      val upper = new StoreInputs
      assert(found(lower, puts = 7) == ((100, false)))
      assert(end(upper, puts = 5) == ((5, false)))
      assert(end(lower, puts = 7) == ((100, false)))
    }
  }

  test("the four stores of a join count all that their task reads") {
    inTask { read =>
      val stores = Seq.fill(4)(new StoreInputs)
      read(30)
      assert(stores.map(end(_, puts = 7)) == Seq.fill(4)((30, true)))
    }
  }

  test("what an earlier store of the task has read is none of the next one's") {
    inTask { read =>
      for (records <- Seq(100, 0, 3)) { // partitions of one task, or one that runs twice
        read(records)
        val store = new StoreInputs
        assert(end(store, puts = 7) == ((if (records == 0) 7 else records, false)))
      }
      val store = new StoreInputs
      read(5)
      assert(end(store, puts = 7) == ((5, true)))
    }
  }

  test("an operator behind one that has ended counts as without a shuffle of its own") {
    inTask { read =>
      val lower = new StoreInputs
      read(100)
      assert(end(lower, puts = 7) == ((100, true)))
      assert(end(new StoreInputs, puts = 5) == ((5, false)))
    }
  }

  test("another task begins anew") {
    inTask(read => read(100))
    inTask(_ => assert(end(new StoreInputs, puts = 7) == ((7, false))))
  }

  test("the time of a task counts from its first look at the store") {
    inTask { _ =>
      StoreInputs.look()
      val lookedNs = System.nanoTime()
      val lower = new StoreInputs
      val upper = new StoreInputs
      assert(lower.facts(0, named = false).startedNs <= lookedNs && upper.facts(0, named = false).startedNs >= lookedNs)
      Seq(upper, lower).foreach(_.end())
      val endedNs = System.nanoTime()
      assert(new StoreInputs().facts(0, named = false).startedNs >= endedNs)
    }
  }
}
