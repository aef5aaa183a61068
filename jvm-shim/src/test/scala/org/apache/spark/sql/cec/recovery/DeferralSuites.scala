package org.apache.spark.sql.cec.recovery

import scala.jdk.CollectionConverters._

import org.apache.spark.api.python.PythonEvalType
import org.apache.spark.sql.Encoders
import org.apache.spark.sql.catalyst.InternalRow
import org.apache.spark.sql.catalyst.encoders.ExpressionEncoder
import org.apache.spark.sql.catalyst.expressions._
import org.apache.spark.sql.catalyst.expressions.aggregate._
import org.apache.spark.sql.catalyst.plans.logical._
import org.apache.spark.sql.cec.CecSuite
import org.apache.spark.sql.internal.SQLConf
import org.apache.spark.sql.streaming.OutputMode
import org.apache.spark.sql.types._

import LogicalPlans._

class DeterministicExpressionsSuite extends CecSuite {
  private def of(expression: Expression): Option[String] = DeterministicExpressions.against(Project(Seq(named(expression)), rows()))

  private def python(kind: Int, deterministic: Boolean = true): PythonUDF = PythonUDF("f", null, LongType, Seq(key), kind, deterministic)

  test("plain expressions are deterministic") {
    assert(of(Add(key, Literal(1L))).isEmpty)
    assert(of(Coalesce(Seq(key, Literal(0L)))).isEmpty)
    assert(DeterministicExpressions.against(rows()).isEmpty)
  }

  test("a random value is found wherever it is, and named") {
    val random = Rand(Literal(1L))
    val reason = Some("the plan is not deterministic: rand")
    assert(of(random) == reason)
    assert(of(Coalesce(Seq(Cast(key, DoubleType), Multiply(random, Literal(2.0))))) == reason)
    assert(DeterministicExpressions.against(Filter(GreaterThan(random, Literal(0.5)), rows())) == reason)
    assert(DeterministicExpressions.against(join(rows(), Filter(GreaterThan(random, Literal(0.5)), rows()))) == reason)
    assert(of(ScalarSubquery(Project(Seq(named(random)), OneRowRelation()))).exists(_.startsWith("the plan is not deterministic")))
    assert(of(Uuid(Some(1L))).exists(_.endsWith("uuid")))
  }

  test("the time of the batch is none of a replay's") {
    for (now <- Seq(CurrentTimestamp(), CurrentDate(Some("UTC")), LocalTimestamp(Some("UTC")), Now())) {
      assert(of(now).exists(_.startsWith("the plan is not deterministic")), now)
      assert(of(Coalesce(Seq(Cast(now, StringType, Some("UTC")), Literal("x")))).nonEmpty, now)
    }
  }

  test("a text that means a moment is none of a replay's") {
    for (kind <- Seq(DateType, TimestampType, TimestampNTZType); word <- Seq("today", " Now ", "yesterday UTC", "tomorrow")) {
      assert(of(Cast(Literal(word), kind, Some("UTC"))).exists(_.endsWith("is read off a clock")), (kind, word))
      assert(of(GreaterThan(Cast(Concat(Seq(Literal(word), Literal(""))), kind, Some("UTC")), Literal(null, kind))).nonEmpty, (kind, word))
    }
    assert(of(new ParseToDate(Literal("today"))).nonEmpty)
    for (time <- Seq("08:00", " 7:5:01.5", "T23:59:59+01:00")) {
      assert(of(Cast(Literal(time), TimestampType, Some("UTC"))).exists(_.endsWith("is read off a clock")), time)
      assert(of(Cast(Literal(time), TimestampNTZType, Some("UTC"))).isEmpty, s"$time is NULL")
    }
    assert(of(Cast(Literal("2026-11-30 08:00"), TimestampType, Some("UTC"))).isEmpty)
    for (word <- Seq("2026-11-30", "epoch", "")) assert(of(Cast(Literal(word), DateType, Some("UTC"))).isEmpty, word)
    assert(of(Cast(column(StringType), DateType, Some("UTC"))).isEmpty && of(Cast(Literal("today"), StringType)).isEmpty)
  }

  test("a cipher that draws its vector has other bytes at each call") {
    val (text, secret) = (Cast(column(StringType), BinaryType), Literal("0000111122223333".getBytes))
    assert(of(new AesEncrypt(text, secret)).exists(_.endsWith("aes_encrypt")))
    assert(of(new AesEncrypt(text, secret, Literal("CBC"))).nonEmpty)
    assert(of(new AesEncrypt(text, secret, Literal("GCM"), Literal("DEFAULT"), column(BinaryType))).nonEmpty, "it may be empty")
    assert(of(new AesEncrypt(text, secret, Literal("ECB"))).isEmpty)
    assert(of(new AesEncrypt(text, secret, Literal("CBC"), Literal("DEFAULT"), Literal("0123456789abcdef".getBytes))).isEmpty)
  }

  test("where a file is split depends on the number of cores") {
    val metadata = AttributeReference("_metadata", new StructType().add("file_path", StringType).add("file_block_start", LongType))()
    assert(of(GetStructField(metadata, 1)).exists(_.endsWith("depends on how files are split")))
    assert(of(GetStructField(metadata, 0)).isEmpty)
    assert(of(GetStructField(metadata.withName("mine"), 1)).isEmpty)
    assert(of(CreateStruct(Seq(key, metadata))).exists(_.endsWith("depends on how files are split")), "all of its fields")
    assert(DeterministicExpressions.against(groupBy(Project(Seq(key, metadata), rows()), Count(key))).isEmpty, "it is handed on")
    assert(DeterministicExpressions.against(Aggregate(Seq(metadata), Seq(named(Count(key))), rows())).nonEmpty)
    assert(DeterministicExpressions.against(Distinct(Project(Seq(key, metadata), rows()))).nonEmpty, "it is in the key")
  }

  test("what Spark rewrites is judged by what it becomes") {
    assert(of(Uniform(Literal(1), Literal(9), Literal(3))).exists(_.contains("not deterministic")))
    assert(of(new Nvl(key, Literal(1L))).isEmpty)
    assert(of(new Nvl(Cast(key, DoubleType), Rand(Literal(1L)))).exists(_.endsWith("rand")))
  }

  test("of an aggregate only the arguments are judged") {
    assert(DeterministicExpressions.against(groupBy(rows(), First(key, ignoreNulls = false), CollectList(key))).isEmpty)
    assert(DeterministicExpressions.against(groupBy(rows(), Max(Rand(Literal(1L))))).exists(_.endsWith("rand")))
  }

  test("Python functions of one row are as good as they say, and those of many rows are not") {
    assert(of(python(PythonEvalType.SQL_BATCHED_UDF)).isEmpty)
    assert(of(python(PythonEvalType.SQL_ARROW_BATCHED_UDF)).isEmpty)
    assert(of(python(PythonEvalType.SQL_MAP_PANDAS_ITER_UDF)).isEmpty)
    assert(of(python(PythonEvalType.SQL_BATCHED_UDF, deterministic = false)).exists(_.contains("not deterministic")))
    assert(of(python(PythonEvalType.SQL_SCALAR_PANDAS_UDF)).contains("'f' is a function of many rows at once, which come in any order"))
    assert(of(Add(Literal(1L), python(PythonEvalType.SQL_SCALAR_PANDAS_ITER_UDF))).nonEmpty)
  }
}

class OrderIndependentAggregatesSuite extends CecSuite {
  private def of(function: AggregateFunction, distinct: Boolean = false): Option[String] =
    OrderIndependentAggregates.against(aggregated(function, distinct))

  private def decimal(precision: Int, scale: Int = 2) = column(DecimalType(precision, scale))
  private val caseless = StringType("UTF8_LCASE")

  test("counts, bits, registers, and sums of integers are independent of the order") {
    for (function <- Seq(
        Count(key), Sum(key), Sum(column(ShortType)), Min(key), Max(column(StringType)), Min(column(BinaryType)), Average(number), BitAndAgg(key),
        BitOrAgg(key), BitXorAgg(key), HyperLogLogPlusPlus(key), Average(column(DayTimeIntervalType())))) {
      assert(of(function).isEmpty, function)
    }
  }

  test("whatever is not known is not independent") {
    for (function <- Seq(First(key, ignoreNulls = true), Last(key, ignoreNulls = true), CollectList(key), CollectSet(key), StddevSamp(Cast(key, DoubleType)))) {
      assert(of(function).exists(_.endsWith("is not known to be independent of the order of rows")), function)
    }
    assert(of(Count(key), distinct = true).exists(_.startsWith("count(DISTINCT …)")))
  }

  test("floating-point numbers round in the order in which they are added") {
    for (kind <- Seq(FloatType, DoubleType)) {
      assert(of(Sum(column(kind))).exists(_.contains("rounding")))
      assert(of(Average(column(kind))).exists(_.contains("rounding")))
      assert(of(Min(column(kind))).isEmpty && of(Max(column(kind))).isEmpty)
    }
    assert(of(Average(key)).exists(_.endsWith("; cast to int, or divide a sum by a count")))
  }

  test("decimals: a sum has ten more digits, and an average is of doubles up to eleven") {
    assert(of(Sum(decimal(28))).isEmpty)
    assert(of(Sum(decimal(29))).exists(_.contains("cast to at most 28 digits")))
    assert(of(Average(decimal(11))).exists(_.endsWith("; cast to decimal(12,2) or more digits")))
    assert(of(Average(decimal(12))).isEmpty)
    assert(of(Average(decimal(28))).isEmpty)
    assert(of(Average(decimal(29))).exists(_.contains("may overflow")))
  }

  test("a sum that is null after an overflow depends on the order") {
    val context = Sum(key).evalContext.copy(evalMode = EvalMode.TRY)
    assert(of(Sum(key, context)).contains("try_sum is null after an overflow, which depends on the order of rows"))
    assert(of(Average(decimal(20), EvalMode.TRY)).exists(_.startsWith("try_avg")))
    for (mode <- Seq(EvalMode.ANSI, EvalMode.LEGACY)) assert(of(Sum(key, context.copy(evalMode = mode))).isEmpty)
  }

  test("equal values of other bytes: the first one stays") {
    assert(of(Min(column(caseless))).exists(_.contains("equal with other bytes")))
    assert(of(Max(column(new StructType().add("x", DoubleType)))).exists(_.contains("0.0 and -0.0 are equal")))
    assert(of(Max(column(new StructType().add("x", LongType)))).isEmpty)
    assert(of(Max(column(ArrayType(FloatType)))).exists(_.contains("0.0 and -0.0 are equal")))
  }

  test("what Spark rewrites to a known function is known") {
    assert(of(CountIf(EqualTo(key, Literal(1L)))).isEmpty)
    assert(of(BoolAnd(EqualTo(key, Literal(1L)))).isEmpty)
  }

  test("the reason names keys of equal values with other bytes, and maps") {
    assert(OrderIndependentAggregates.againstKey(LongType).isEmpty)
    assert(OrderIndependentAggregates.againstKey(DoubleType).isEmpty)
    assert(OrderIndependentAggregates.againstKey(caseless).exists(_.contains("may be equal with other bytes")))
    assert(OrderIndependentAggregates.againstKey(new StructType().add("x", ArrayType(caseless))).nonEmpty)
    assert(OrderIndependentAggregates.againstKey(ArrayType(MapType(LongType, LongType))).contains("it has a map in its key"))
  }
}

class StatefulOperatorsSuite extends CecSuite {
  private val (stream, table) = (rows(), rows(streaming = false))

  private def kinds(plan: LogicalPlan, mode: OutputMode = OutputMode.Update()): Seq[String] =
    StatefulOperators.operatorsOf(plan, mode).flatMap(StatefulOperators.kind)

  test("a node has state if its input is a stream") {
    val made: Seq[(LogicalPlan => LogicalPlan, String)] = Seq(
      ((child: LogicalPlan) => groupBy(child, Count(key)), "aggregation"),
      ((child: LogicalPlan) => Deduplicate(Seq(key), child), "deduplication"),
      ((child: LogicalPlan) => DeduplicateWithinWatermark(Seq(key), child), "deduplication within watermark"),
      ((child: LogicalPlan) => Distinct(child), "distinct"),
      ((child: LogicalPlan) => Except(child, table, isAll = false), "set operation"),
      ((child: LogicalPlan) => Intersect(child, table, isAll = false), "set operation"),
      ((child: LogicalPlan) => GlobalLimit(Literal(1), child), "limit"))
    made.foreach { case (node, kind) =>
      assert(StatefulOperators.kind(node(stream)).contains(kind))
      assert(StatefulOperators.kind(node(table)).isEmpty, kind)
    }
    assert(StatefulOperators.kind(Project(Seq(key), stream)).isEmpty)
  }

  test("a join has state if both sides are streams") {
    assert(StatefulOperators.kind(join(stream, rows())).contains("stream-stream join"))
    assert(StatefulOperators.kind(join(stream, table)).isEmpty)
    assert(StatefulOperators.kind(join(table, stream)).isEmpty)
  }

  test("ids go from the sink up, a parent before its children, the left one first") {
    val plan = Distinct(join(Deduplicate(Seq(key), stream), groupBy(rows(), Count(key))))
    assert(kinds(plan) == Seq("distinct", "stream-stream join", "deduplication", "aggregation"))
  }

  test("a limit counts rows in append mode, and in complete mode without an aggregation below it") {
    val (plain, sorted) = (GlobalLimit(Literal(1), stream), GlobalLimit(Literal(1), Project(Seq(key), groupBy(stream, Count(key)))))
    assert(kinds(plain, OutputMode.Append()) == Seq("limit"))
    assert(kinds(plain, OutputMode.Update()).isEmpty)
    assert(kinds(plain, OutputMode.Complete()) == Seq("limit"))
    assert(kinds(sorted, OutputMode.Complete()) == Seq("aggregation"))
    assert(kinds(sorted, OutputMode.Append()) == Seq("limit", "aggregation"))
  }
}

class DeterministicNodesSuite extends CecSuite {
  test("nodes that give the same rows are known, and others are named") {
    val stream = rows()
    for (node <- Seq[LogicalPlan](
        stream, Project(Seq(key), stream), Filter(Literal(true), stream), Union(Seq(stream, stream)), join(stream, stream), Sort(Nil, global = true, stream),
        Repartition(3, shuffle = true, stream), Generate(Explode(column(ArrayType(LongType))), Nil, outer = false, None, Nil, stream))) {
      // a stream itself is none: the sources are judged elsewhere
      assert(DeterministicNodes.against(node).isEmpty || (node eq stream), node.nodeName)
    }
    for (node <- Seq[LogicalPlan](Unheard(stream), Sample(0.0, 0.5, withReplacement = false, 1L, stream), LocalLimit(Literal(1), stream))) {
      assert(DeterministicNodes.against(node).exists(_.contains(node.nodeName)))
    }
    assert(!DeterministicNodes.isStateless(Unheard(stream)))
    assert(DeterministicNodes.isStateless(LocalLimit(Literal(1), stream)))
    assert(DeterministicNodes.isStateless(Sample(0.0, 0.5, withReplacement = false, 1L, stream)))
    assert(DeterministicNodes.isStateless(Project(Seq(key), stream)))
  }
}

class DeferralAnalysisSuite extends CecSuite {
  private def decide(
      plan: LogicalPlan, conf: Map[String, String] = Map.empty, speculation: Boolean = false, mode: String = "auto", sources: Seq[String] = Nil,
      output: OutputMode = OutputMode.Update()): Decision = {
    val settings = new SQLConf
    conf.foreach { case (key, value) => settings.setConfString(key, value) }
    new DeferralAnalysis(write(plan, output), settings, speculation, mode, Promises(sources, functionsAreOrderFree = false)).decide()
  }

  private def reason(decision: Decision): String = {
    assert(decision.operators.nonEmpty && decision.deferred.isEmpty)
    decision.operators.head.reason
  }

  test("a map or a set anywhere in a function's state is found, by its encoder or its type") {
    def found(encoder: ExpressionEncoder[_]) = DeferralAnalysis.hasUnorderedParts(encoder.encoder)
    assert(!found(ExpressionEncoder[(Long, Option[String], Seq[Double], Array[Int])]()))
    assert(found(ExpressionEncoder[(Long, Set[String])]()) && found(ExpressionEncoder[(Int, Option[Seq[(Int, Map[Int, Int])]])]()))
    assert(DeferralAnalysis.hasUnorderedParts(Encoders.kryo[String]))
    assert(DeferralAnalysis.hasUnorderedParts(StructType.fromDDL("a ARRAY<STRUCT<m: MAP<INT, INT>>>")))
    assert(!DeferralAnalysis.hasUnorderedParts(StructType.fromDDL("a ARRAY<STRUCT<m: INT>>, b STRING")))
  }

  private val counts = groupBy(source("rate"), Count(key), Sum(key))

  test("counts and sums of a known source are deferred") {
    val decision = decide(counts)
    assert(decision.operators == Seq(OperatorDecision(0, "aggregation", deferred = true, "a replay gives the same state")))
    assert((decision.mode, decision.deferred, decision.counted) == (("deferred", Set(0L), Set.empty[Long])))
  }

  test("sources are known by their names, and a user may vouch for more, in any case") {
    assert(reason(decide(groupBy(source("socket"), Count(key)))).startsWith("source 'socket' is not known to be replayable"))
    assert(decide(groupBy(source("Socket"), Count(key)), sources = Seq("sOCKET")).mode == "deferred")
    for (name <- Seq("RATE", "filesource", "cec", "delta")) assert(decide(groupBy(source(name), Count(key))).mode == "deferred", name)
    assert(reason(decide(groupBy(Union(Seq(source("rate"), source("socket"))), Count(key)))).contains("socket"))
  }

  test("the user's mode comes before all reasons") {
    assert(reason(decide(counts, mode = "eager")) == "cec.mode=eager")
  }

  test("the reason names an operator's own function before that of the whole query") {
    assert(reason(decide(groupBy(source("socket"), CollectList(key)))).startsWith("collect_list"))
    assert(reason(decide(Deduplicate(Seq(column(StringType("UTF8_LCASE"))), source("rate")))).contains("other bytes"))
    assert(reason(decide(DeduplicateWithinWatermark(Seq(key), source("rate")))).contains("a key's time"))
    assert(decide(Deduplicate(Seq(key), source("rate"))).mode == "deferred")
  }

  test("an operator after another one is eager, and the one before it is deferred") {
    val decision = decide(Distinct(groupBy(source("rate"), Count(key))))
    assert(decision.operators.map(operator => (operator.id, operator.kind, operator.deferred)) ==
      Seq((0L, "distinct", false), (1L, "aggregation", true)))
    assert(decision.operators.head.reason == "it is fed by another stateful operator (aggregation)")
    assert((decision.mode, decision.deferred) == (("mixed", Set(1L))))
    assert(decision.reason.contains("operator 0 (distinct) eager: ") && decision.reason.contains("; operator 1 (aggregation) deferred: "))
  }

  test("a deduplication that feeds another one is eager, and Spark may make one of both") {
    val inner = Project(Seq(key), Deduplicate(Seq(key), source("rate")))
    for (outer <- Seq(Distinct(inner), Deduplicate(Seq(key), inner))) {
      val decision = decide(outer)
      assert(decision.deferred.isEmpty && decision.operators.last.reason.startsWith("Spark may make one operator of it"))
    }
    assert(decide(groupBy(inner, Count(key))).deferred == Set(1L), "an aggregation is not merged")
  }

  /** Counts rows by two keys. */
  private def cells(child: LogicalPlan = source("rate")): Aggregate =
    Aggregate(Seq(key, number), Seq(key, number, Alias(aggregated(Count(key)), "rows")()), child)

  private def grouped(child: LogicalPlan, functions: NamedExpression*): Aggregate = Aggregate(Seq(key), key +: functions, child)

  private def function(of: AggregateFunction): NamedExpression = named(aggregated(of))

  test("two aggregations of which Spark may make one make all operators eager") {
    val (counted, seen) = (cells(), Distinct(source("rate")))
    val renamed = Project(Seq(key, Alias(number, "m")()), counted)
    for (merged <- Seq(
        Distinct(counted), Distinct(Project(Seq(key, counted.output.last), counted)), Distinct(Filter(GreaterThan(counted.output.last, Literal(1L)), counted)),
        grouped(counted), grouped(SubqueryAlias("cells", counted), function(Max(number))), grouped(renamed, function(Min(renamed.output.last))),
        grouped(counted, function(BoolAnd(GreaterThan(number, Literal(1))))), grouped(seen), grouped(seen, function(Max(number)), function(Min(number))),
        Aggregate(Nil, Seq(function(Max(Literal(1)))), counted), Except(counted, rows(streaming = false), isAll = false))) {
      val decision = decide(Union(Seq(merged, groupBy(source("rate"), Count(key)))))
      assert(decision.operators.size == 3 && decision.deferred.isEmpty, merged)
      assert(decision.operators(1).reason.startsWith("Spark may make one operator of it and of the "), merged)
      assert(decision.operators(2).reason.matches("Spark may make one operator of the query's .* and of the .* that feeds it"), merged)
    }
    assert(reason(decide(groupBy(Distinct(seen), Count(key)))) == "it is fed by another stateful operator (distinct)")
  }

  test("two aggregations that Spark leaves as they are keep what they have") {
    val counted = cells()
    val (result, more) = (counted.output.last, Alias(Add(counted.output.last, Literal(1L)), "more")())
    for (chained <- Seq(
        grouped(counted, function(Count(number))), grouped(counted, function(Max(number)), function(Sum(number))), grouped(counted, function(Max(result))),
        grouped(Project(Seq(key, more), counted), function(Max(more.toAttribute))), Distinct(Project(Seq(result), counted)),
        grouped(Distinct(source("rate")), function(Count(number))), grouped(Union(Seq(counted, source("rate"))), function(Max(result))),
        grouped(Deduplicate(Seq(key), source("rate")), function(Max(number))))) {
      assert(decide(chained).deferred == Set(1L), chained)
    }
  }

  test("two limits of which Spark may make one make all operators eager") {
    val seen = Deduplicate(Seq(key), source("rate"))
    def limit(rows: Int, child: LogicalPlan) = GlobalLimit(Literal(rows), LocalLimit(Literal(rows), child))
    val decision = decide(limit(5, Project(Seq(key), limit(10, seen))), output = OutputMode.Append())
    assert(decision.deferred.isEmpty && decision.operators.map(_.kind) == Seq("limit", "limit", "deduplication"))
    assert(decision.operators.last.reason == "Spark may make one operator of the query's limit and of the limit that feeds it")
    assert(decide(limit(5, seen), output = OutputMode.Append()).deferred == Set(1L))
  }

  test("an unknown node below an operator, or anywhere on the stream, makes it eager") {
    assert(reason(decide(groupBy(Unheard(source("rate")), Count(key)))).startsWith("it is fed by Unheard"))
    assert(reason(decide(Unheard(counts))) == "it is not known which stateful operators Unheard becomes")
  }

  test("a table beside the stream may change, and so may rows that the program has read from it") {
    assert(reason(decide(groupBy(join(source("rate"), LookedUp()), Count(key)))).contains("which may change between a crash and its replay (LookedUp)"))
    assert(decide(groupBy(join(source("rate"), rows(streaming = false)), Count(key))).mode == "deferred", "it has no row")
    val read = LocalRelation(Seq(key), Seq(InternalRow(1L)))
    assert(reason(decide(groupBy(join(source("rate"), read), Count(key)))).contains("(LocalRelation)"))
    assert(reason(decide(groupBy(Filter(Exists(LookedUp()), source("rate")), Count(key)))).contains("LookedUp"))
  }

  test("a random expression above the operator makes it eager, too") {
    assert(reason(decide(Filter(GreaterThan(Rand(Literal(1L)), Literal(0.5)), counts))).endsWith("rand"))
  }

  test("each conf that changes which batches run makes all operators eager") {
    for (key <- Seq(
        SQLConf.STATE_STORE_UNLOAD_ON_COMMIT.key, "spark.sql.streaming.useStreamlineAggregator", SQLConf.STREAMING_OPTIMIZE_ONE_ROW_PLAN_ENABLED.key,
        SQLConf.ENABLE_STREAMING_SOURCE_EVOLUTION.key, SQLConf.ENABLE_STREAMING_SINK_EVOLUTION.key)) {
      assert(decide(counts, Map(key -> "true")).mode == "eager", key)
      assert(decide(counts, Map(key -> "false")).mode == "deferred", key)
    }
    assert(reason(decide(counts, speculation = true)).contains("spark.speculation"))
  }

  test("session windows whose rows are merged in each task are eager") {
    val merge = SQLConf.STREAMING_SESSION_WINDOW_MERGE_SESSIONS_IN_LOCAL_PARTITION.key
    val window = AttributeReference("w", LongType, metadata = new MetadataBuilder().putBoolean(SessionWindow.marker, true).build())()
    val sessions = Aggregate(Seq(key, window), Seq(named(aggregated(Count(key)))), source("rate"))
    assert(reason(decide(sessions, Map(merge -> "true"))).contains(merge))
    assert(decide(sessions).mode == "deferred" && decide(counts, Map(merge -> "true")).mode == "deferred")
  }

  test("a query without state has nothing to decide") {
    val decision = decide(Project(Seq(key), source("socket")))
    assert((decision.mode, decision.reason, decision.deferred) == (("stateless", "no stateful operator", Set.empty[Long])))
  }

  test("only operators whose input Spark does not aggregate count their rows") {
    val kinds = Seq("aggregation", "distinct", "set operation", "deduplication", "stream-stream join")
    val decision = Decision(kinds.zipWithIndex.map { case (kind, id) => OperatorDecision(id, kind, deferred = false, "why") })
    assert(decision.counted == Set(3L, 4L))
    assert(decision.mode == "eager")
  }
}

class ReplicaConstantsSuite extends CecSuite {
  private def of(plan: LogicalPlan): Seq[String] = ReplicaCheck.constants(plan).asScala.toSeq

  test("rows, dates and times of a program are told apart, and nothing else counts") {
    def table(rows: Long*) = join(source("rate"), LocalRelation(Seq(key), rows.map(InternalRow(_))))
    assert(of(table(1, 2)) == of(table(1, 2)) && of(table(1, 2)).size == 1)
    assert(Seq(table(1, 3), table(1), table(2, 1)).map(of).distinct.size == 3 && !Seq(table(1, 3), table(1), table(2, 1)).exists(each => of(each) == of(table(1, 2))))
    def since(day: Int) = Filter(GreaterThan(column(DateType), Literal(day, DateType)), source("rate"))
    assert(of(since(20_000)) == of(since(20_000)) && of(since(20_000)) != of(since(20_001)))
    assert(of(Filter(GreaterThan(key, Literal(7L)), source("rate"))).isEmpty && of(join(source("rate"), rows(streaming = false))).isEmpty)
    assert(of(Filter(Exists(table(1, 2)), source("rate"))).nonEmpty, "in a subquery")
  }
}
