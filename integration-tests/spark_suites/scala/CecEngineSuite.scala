package org.apache.spark.sql.cec.suites

import scala.jdk.CollectionConverters._

import org.apache.spark.sql.execution.streaming.runtime.MemoryStream
import org.apache.spark.sql.execution.streaming.state.StateStoreValueRowFormatValidationFailure
import org.apache.spark.sql.functions.{collect_list, sum}
import org.apache.spark.sql.internal.SQLConf
import org.apache.spark.sql.streaming.{OutputMode, StreamTest, TestSinkProvider}

/** What Spark's engine does for a query with state it does for one of ours, and no more. */
class CecEngineSuite extends StreamTest {
  import testImplicits._

  test("a sink's metrics are in the progress of a query with state") {
    assert(sinkMetrics(stateful = true) == sinkMetrics(stateful = false))
  }

  test("stores whose every version is durable are not reported as falling behind") {
    val log = new LogAppender("what the coordinator of state stores warns of")
    val bounds = Seq(SQLConf.STATE_STORE_MIN_DELTAS_FOR_SNAPSHOT, SQLConf.STATE_STORE_COORDINATOR_MULTIPLIER_FOR_MIN_VERSION_DIFF_TO_LOG)
    withSQLConf(bounds.map(_.key -> "2"): _*) {
      withLogAppender(log) {
        val input = MemoryStream[Int](spark)
        testStream(input.toDF().dropDuplicates())(
          (0 until 12).flatMap(number => Seq(AddData(input, number), CheckNewAnswer(number))): _*)
      }
    }
    assert(log.loggingEvents.map(_.getMessage.getFormattedMessage).filter(_.contains("Snapshot Lag")).isEmpty)
  }

  test("a row of another schema is found when it is loaded, by whom the schema itself is not checked") {
    withSQLConf(SQLConf.STATE_SCHEMA_CHECK_ENABLED.key -> "false", SQLConf.SHUFFLE_PARTITIONS.key -> "1") {
      withTempDirectory { checkpoint =>
        val input = MemoryStream[Int](spark)
        val groups = input.toDF().groupBy($"value" % 10 as "id")
        testStream(groups.agg(sum($"value")), OutputMode.Update())(
          StartStream(checkpointLocation = checkpoint), AddData(input, 1), CheckLastBatch((1, 1L)), StopStream)
        testStream(groups.agg(sum($"value"), collect_list($"value")), OutputMode.Update())(
          StartStream(checkpointLocation = checkpoint),
          AddData(input, 11),
          ExpectFailure[StateStoreValueRowFormatValidationFailure]())
      }
    }
  }

  private def sinkMetrics(stateful: Boolean): Map[String, String] = withTempDirectory { checkpoint =>
    val input = MemoryStream[Int](spark)
    val rows = if (stateful) input.toDF().dropDuplicates() else input.toDF()
    val query = rows.writeStream
      .format(classOf[TestSinkProvider].getName)
      .option("checkpointLocation", checkpoint)
      .start()
    try {
      input.addData(1, 2, 3)
      query.processAllAvailable()
      val metrics = query.recentProgress.filter(_.numInputRows > 0).last.sink.metrics.asScala.toMap
      assert(metrics.nonEmpty || stateful, "the test's own sink reports no metrics")
      metrics
    } finally query.stop()
  }

  private def withTempDirectory[T](body: String => T): T = {
    var result: Option[T] = None
    withTempDir(directory => result = Some(body(directory.getCanonicalPath)))
    result.get
  }
}
