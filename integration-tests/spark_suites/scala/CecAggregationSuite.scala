package org.apache.spark.sql.cec.suites

import org.scalactic.source
import org.scalatest.Tag

import org.apache.spark.sql.streaming.StreamingAggregationSuite

/**
 * Spark's suite but for a test that switches both of Spark's checks off and waits until a row that is read by another schema
 * fails: what it reads lies behind the row in memory, and need not fail.
 */
class CecAggregationSuite extends StreamingAggregationSuite {
  override protected def test(name: String, tags: Tag*)(body: => Any)(implicit position: source.Position): Unit =
    if (name.startsWith(CecAggregationSuite.ReadsOnBehindTheRow)) ignore(name, tags: _*)(body) else super.test(name, tags: _*)(body)
}

private object CecAggregationSuite {
  val ReadsOnBehindTheRow = "changing schema of state when restarting query - schema check off"
}
