package org.apache.spark.sql.cec.suites

import org.scalactic.source
import org.scalatest.Tag

import org.apache.spark.sql.execution.streaming.sources.ForeachBatchSinkSuite

/** Spark's suite but for the tests that would wait for ever: for an error at a batch that its function reads in part only. */
class CecForeachBatchSuite extends ForeachBatchSinkSuite {
  override protected def test(name: String, tags: Tag*)(body: => Any)(implicit position: source.Position): Unit =
    if (CecForeachBatchSuite.WaitForTheError(name)) ignore(name, tags: _*)(body) else super.test(name, tags: _*)(body)
}

private object CecForeachBatchSuite {
  val WaitForTheError: Set[String] = Set(
    "StateStore commit validation with swallowed exceptions in foreachBatch",
    "StateStore commit validation with multiple swallowed exceptions")
}
