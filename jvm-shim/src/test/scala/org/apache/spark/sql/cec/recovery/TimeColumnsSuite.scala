package org.apache.spark.sql.cec.recovery

import java.util.UUID

import org.apache.spark.sql.cec.CecSuite
import org.apache.spark.sql.catalyst.expressions._
import org.apache.spark.sql.catalyst.expressions.aggregate.Count
import org.apache.spark.sql.catalyst.plans.logical._
import org.apache.spark.sql.streaming.OutputMode
import org.apache.spark.sql.types._
import org.apache.spark.unsafe.types.CalendarInterval

/** Which columns of a query's output have the end of its windows, and which are columns of its source. */
final class TimeColumnsSuite extends CecSuite {
  private val watched = new MetadataBuilder().putLong(EventTimeWatermark.delayKey, 1000L).build()
  private val marked = new MetadataBuilder().withMetadata(watched).putBoolean(TimeWindow.marker, true).build()
  private val ends = new StructType().add("start", TimestampType).add("end", TimestampType)

  private val time = AttributeReference("time", TimestampType, metadata = watched)()
  private val window = AttributeReference("window", ends, metadata = marked)()
  private val unmarked = AttributeReference("other", ends)()
  private val rows = LogicalPlans.source("cec", Seq(time, window, unmarked, LogicalPlans.key))

  private def count: NamedExpression = Alias(LogicalPlans.aggregated(Count(LogicalPlans.key)), "rows")()

  private def grouped(by: Seq[Expression], answers: NamedExpression*): Aggregate = Aggregate(by, answers :+ count, rows)

  private def end(of: Expression): NamedExpression = Alias(GetStructField(of, 1, Some("end")), "end")()

  private def start(of: Expression): NamedExpression = Alias(GetStructField(of, 0, Some("start")), "start")()

  private def endsOf(plan: LogicalPlan, mode: OutputMode = OutputMode.Append()): Seq[String] = TimeColumns.endsOfWindows(plan, mode)

  test("the end of the window that rows are grouped by, wherever it is taken out of the window") {
    val byWindow = grouped(Seq(window), window)
    assert(endsOf(Project(Seq(start(window), end(window)), byWindow)) == Seq("end"))
    assert(endsOf(grouped(Seq(window), end(window), start(window))) == Seq("end"))
    val renamed = Alias(window, "w")()
    val above = Project(Seq(end(renamed.toAttribute)), Filter(Literal.TrueLiteral, Project(Seq(renamed), byWindow)))
    assert(endsOf(above) == Seq("end"))
    assert(endsOf(Project(Seq(end(renamed.toAttribute)), grouped(Seq(window), renamed))) == Seq("end"), "the aggregation itself renames it")
    val twice = end(window)
    assert(endsOf(Project(Seq(Alias(twice.toAttribute, "again")()), Project(Seq(twice), byWindow))) == Seq("again"))
  }

  test("window_time, as Spark resolves it") {
    val byWindow = grouped(Seq(window), window)
    def timeOf(end: Expression, less: Long): NamedExpression = Alias(PreciseTimestampConversion(
      Subtract(PreciseTimestampConversion(end, TimestampType, LongType), Literal(less)), LongType, TimestampType), "time")()
    assert(endsOf(Project(Seq(timeOf(GetStructField(window, 1, Some("end")), 1L)), byWindow)) == Seq("time"))
    assert(endsOf(Project(Seq(timeOf(GetStructField(window, 1, Some("end")), 2L)), byWindow)).isEmpty, "another time before the end")
    assert(endsOf(Project(Seq(timeOf(GetStructField(window, 0, Some("start")), 1L)), byWindow)).isEmpty)
  }

  test("the time itself, if rows are grouped by it") {
    assert(endsOf(grouped(Seq(time), time)) == Seq("time"))
    assert(endsOf(grouped(Seq(LogicalPlans.key), LogicalPlans.key)).isEmpty)
  }

  test("no other time") {
    val byWindow = grouped(Seq(window), window)
    assert(endsOf(Project(Seq(start(window)), byWindow)).isEmpty, "a window to come may begin before the watermark")
    assert(endsOf(Project(Seq(end(unmarked)), grouped(Seq(unmarked), unmarked))).isEmpty, "a struct that is no window")
    val moved = Alias(TimestampAddInterval(GetStructField(window, 1, Some("end")), Literal(new CalendarInterval(0, 0, -1)), Some("UTC")), "end")()
    assert(endsOf(Project(Seq(moved), byWindow)).isEmpty, "a function of the end")
    assert(endsOf(Union(Seq(Project(Seq(end(window)), byWindow)))).isEmpty, "a node that is not followed")
  }

  test("of one aggregation in append mode alone") {
    val ofOne = Project(Seq(end(window)), grouped(Seq(window), window))
    for (mode <- Seq(OutputMode.Update(), OutputMode.Complete())) assert(endsOf(ofOne, mode).isEmpty)
    assert(endsOf(Deduplicate(Seq(ofOne.output.head), ofOne)).isEmpty, "two stateful operators")
    assert(endsOf(LogicalPlans.Unheard(ofOne)).isEmpty, "a node that is not known")
  }

  test("only aggregations over windows keep a row that is at the watermark itself") {
    val byWindow = grouped(Seq(window, LogicalPlans.key), window)
    assert(TimeColumns.areAllWindows(byWindow) && TimeColumns.areAllWindows(Project(Seq(end(window)), byWindow)))
    assert(TimeColumns.areAllWindows(rows), "no state")
    for (other <- Seq(grouped(Seq(time), time), grouped(Seq(unmarked), unmarked), grouped(Seq(LogicalPlans.key), LogicalPlans.key),
      grouped(Seq(window, time), window), Deduplicate(Seq(time), rows), Deduplicate(Seq(window), byWindow))) {
      assert(!TimeColumns.areAllWindows(other), other)
    }
  }

  test("a column of the source, unchanged or renamed") {
    assert(TimeColumns.sourceColumn(rows, time).contains((rows, "time")))
    val renamed = Alias(time, "t")()
    val plan = Filter(Literal.TrueLiteral, Project(Seq(renamed), rows))
    assert(TimeColumns.sourceColumn(plan, renamed.toAttribute).contains((rows, "time")))
    val watermark = EventTimeWatermark(UUID.randomUUID(), time, new CalendarInterval(0, 0, 1000000L), rows)
    assert(TimeColumns.sourceColumn(watermark, watermark.output.head).contains((rows, "time")))
    val moved = Alias(TimestampAddInterval(time, Literal(new CalendarInterval(0, 0, 5)), Some("UTC")), "t")()
    assert(TimeColumns.sourceColumn(Project(Seq(moved), rows), moved.toAttribute).isEmpty)
    assert(TimeColumns.sourceColumn(Union(Seq(rows)), time).isEmpty)
  }
}
