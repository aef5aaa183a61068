package org.apache.spark.sql.cec.ui

import java.util.concurrent.{CountDownLatch, Executors}
import java.util.concurrent.atomic.AtomicInteger

import org.scalatest.concurrent.Eventually._
import org.scalatest.time.{Seconds, Span}

import org.apache.spark.sql.cec.CecSuite

class TimedCallsSuite extends CecSuite {
  private def within(limitMs: Long)(call: String => Int)(body: TimedCalls[String, Int] => Unit): Unit = {
    val threads = Executors.newFixedThreadPool(2)
    try body(new TimedCalls[String, Int](threads, limitMs, call)) finally threads.shutdownNow()
  }

  test("answers, errors with the answer of before, and what was never asked") {
    val calls = new AtomicInteger
    within(5000)(_ => if (calls.incrementAndGet() == 2) throw new IllegalStateException("no agent runs") else calls.get) { timed =>
      assert(timed.recall("a") == Timed(None, 0, None))
      assert(timed.ask(Seq("a"))("a").value.contains(1))
      val failed = timed.ask(Seq("a"))("a")
      assert(failed.value.contains(1) && failed.problem.contains("no agent runs") && failed.atMs > 0)
      assert(timed.ask(Seq("a"))("a").problem.isEmpty)
      timed.keepOnly(Set("b"))
      assert(timed.recall("a").value.isEmpty)
    }
  }

  test("a fatal error is shown, and the next look asks again") {
    val calls = new AtomicInteger
    within(5000)(_ => if (calls.incrementAndGet() == 1) throw new LinkageError("another jar") else 7) { timed =>
      assert(timed.ask(Seq("a"))("a").problem.contains("another jar"))
      assert(timed.ask(Seq("a"))("a").value.contains(7))
    }
  }

  test("a page waits once for all calls, a call under way is not made again, and its late answer is there at the next look") {
    val (gate, calls) = (new CountDownLatch(1), new AtomicInteger)
    within(200) { _ => calls.incrementAndGet(); gate.await(); 7 } { timed =>
      val begun = System.nanoTime()
      val keys = (0 until 50).map(_.toString)
      val answers = timed.ask(keys)
      assert((System.nanoTime() - begun) / 1000000 < 2000)
      assert(answers.size == 50 && answers.values.forall(found => found.value.isEmpty && found.problem.exists(_.contains("0.2 s"))))
      timed.ask(Seq("0"))
      gate.countDown()
      eventually(timeout(Span(10, Seconds)))(assert(keys.forall(timed.recall(_).value.contains(7))))
      assert(calls.get == 50)
      assert(timed.ask(keys).values.forall(_.problem.isEmpty) && calls.get == 100)
    }
  }
}
