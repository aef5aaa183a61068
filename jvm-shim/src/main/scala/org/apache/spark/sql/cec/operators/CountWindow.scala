package org.apache.spark.sql.cec.operators

import org.apache.spark.sql.{Column, DataFrame, Row}
import org.apache.spark.sql.catalyst.{CatalystTypeConverters, InternalRow}
import org.apache.spark.sql.catalyst.encoders.ExpressionEncoder
import org.apache.spark.sql.catalyst.expressions._
import org.apache.spark.sql.catalyst.expressions.aggregate._
import org.apache.spark.sql.catalyst.expressions.codegen.GenerateSafeProjection
import org.apache.spark.sql.catalyst.optimizer.{ReplaceExpressions, RewriteWithExpression}
import org.apache.spark.sql.catalyst.plans.logical._
import org.apache.spark.sql.cec.agent.CecException
import org.apache.spark.sql.classic.Dataset
import org.apache.spark.sql.streaming.{GroupStateTimeout, OutputMode}
import org.apache.spark.sql.types._

/**
 * Windows of a fixed number of rows per key, which Spark lacks. The operator uses Spark's `flatMapGroupsWithState`
 * with Spark's own aggregate functions inside. `spark_cec.count_window` is the Python form.
 */
object CountWindow {
  /**
   * Closes a window each time a key has `size` more rows, and returns one row for it: the keys and the aggregates. A
   * closed window keeps no state.
   *
   * @param rows a stream, or a table
   * @param size rows in a window, at least 1
   * @param order of one key's rows in a batch; equal rows are ordered by their bytes. Without it they come in the
   * order of the shuffle
   */
  def apply(rows: DataFrame, keys: Seq[Column], size: Int, aggregates: Seq[Column], order: Seq[Column]): DataFrame = {
    if (size < 1) throw refused(s"a window of $size rows: give at least 1")
    if (aggregates.isEmpty) throw refused("no aggregates: give at least one, such as count(*)")
    val input = rows.asInstanceOf[Dataset[Row]]
    val ordered = if (order.isEmpty) Nil else input.sort(order: _*).queryExecution.analyzed.collectFirst { case sort: Sort => sort.order }.get
    val grouped = input.groupBy(keys: _*).agg(aggregates.head, aggregates.tail: _*).queryExecution.analyzed
    // Spark's optimizer does not see the aggregates inside the operator, so rewrite them here.
    val plan = RewriteWithExpression(ReplaceExpressions(grouped)) match {
      case aggregate: Aggregate => makeWindows(aggregate, size, ordered)
      case Project(list, aggregate: Aggregate) =>
        val result = makeWindows(aggregate, size, ordered)
        val renamed = AttributeMap(aggregate.output.zip(result.output))
        Project(list.map(_.transform { case each: Attribute => renamed.getOrElse(each, each) }.asInstanceOf[NamedExpression]), result)
      case other => throw refused(s"these aggregates need ${other.nodeName} beside an aggregation: compute that before or after")
    }
    Dataset.ofRows(input.sparkSession, plan)
  }

  private def makeWindows(aggregate: Aggregate, size: Int, order: Seq[SortOrder]): LogicalPlan = {
    order.foreach(each => if (!each.references.subsetOf(aggregate.child.outputSet)) throw refused(s"order by ${each.sql}: not a column of the rows"))
    val named = aggregate.groupingExpressions.zipWithIndex.map {
      case (attribute: Attribute, _) => attribute
      case (expression, i) => Alias(expression, s"key$i")()
    }
    val keys = named.map(_.toAttribute)
    val child = Project(aggregate.child.output ++ named.collect { case alias: Alias => alias }, aggregate.child)
    def inKeys(expression: Expression): Expression = expression match {
      case part: AggregateExpression => part // its arguments are columns of the rows
      case part => aggregate.groupingExpressions.indexWhere(_.semanticEquals(part)) match {
        case -1 => part.mapChildren(inKeys)
        case i => keys(i)
      }
    }
    val results = aggregate.aggregateExpressions.map(inKeys(_).asInstanceOf[NamedExpression])
    val function = new CountWindows(size, keys, aggregate.child.output, order, results)
    val encoder = ExpressionEncoder(function.resultSchema)
    val one = CreateStruct(aggregate.child.output)
    val flatMap = FlatMapGroupsWithState(
      function, CreateStruct(keys), one, keys, aggregate.child.output, CatalystSerde.generateObjAttr(encoder),
      ExpressionEncoder(function.stateSchema).asInstanceOf[ExpressionEncoder[Any]], OutputMode.Append(), isMapGroupsWithState = false,
      GroupStateTimeout.NoTimeout, hasInitialState = false, keys, aggregate.child.output, one, LocalRelation(aggregate.child.output), child)
    val rows = CatalystSerde.serialize[Row](flatMap)(encoder)
    Project(results.zip(rows.output).map { case (result, column) => Alias(column, result.name)() }, rows)
  }

  /**
   * Judges a function; None if it is another function. Some(reason) if its state depends on the order of rows,
   * Some(None) if `order` fixes that order.
   */
  def against(function: AnyRef): Option[Option[String]] = Some(function).collect { case windows: CountWindows =>
    Option.when(!windows.isOrdered)("count_window without order_by takes the rows of a key as they come")
  }

  /** The expressions that a function computes and orders by; none of another function. */
  def expressionsOf(function: AnyRef): Seq[Expression] = function match {
    case windows: CountWindows => windows.order ++ windows.results
    case _ => Nil
  }

  /** The same function with other expressions; None if it is another function. */
  def mapExpressions(function: AnyRef, change: PartialFunction[Expression, Expression])
      : Option[(Any, Iterator[Any], LogicalGroupState[Any]) => Iterator[Any]] = Some(function).collect { case windows: CountWindows =>
    new CountWindows(
      windows.size, windows.keys, windows.input, windows.order.map(_.transform(change).asInstanceOf[SortOrder]),
      windows.results.map(_.transform(change).asInstanceOf[NamedExpression]))
  }

  def refused(why: String): CecException = new CecException("Refused", s"count_window: $why")
}

/**
 * Handles the rows of one key in one batch, or in a table. The state has the open window's number of rows and the
 * aggregates' buffers.
 *
 * @param results the keys and the results of the aggregates, in the order of the columns
 */
private final class CountWindows(
    val size: Int, val keys: Seq[Attribute], val input: Seq[Attribute], val order: Seq[SortOrder], val results: Seq[NamedExpression])
    extends ((Any, Iterator[Any], LogicalGroupState[Any]) => Iterator[Any]) with Serializable {
  private val parts = results.flatMap(_.collect { case part: AggregateExpression => part }).distinctBy(_.canonicalized)
  private val functions = parts.map(part => part.aggregateFunction match {
    case function: DeclarativeAggregate if !part.isDistinct => function
    case other => throw CountWindow.refused(s"${if (part.isDistinct) "DISTINCT" else other.prettyName} is not an aggregate that it can compute row by row")
  })
  private val buffers = functions.flatMap(_.aggBufferAttributes)
  private val updates = parts.zip(functions).flatMap { case (part, function) =>
    function.updateExpressions.zip(function.aggBufferAttributes).map { case (update, before) =>
      part.filter.map(If(_, update, before)).getOrElse(update)
    }
  }

  private val evaluated: Seq[Expression] = results.map(_.transform { case part: AggregateExpression =>
    functions(parts.indexWhere(_.canonicalized == part.canonicalized)).evaluateExpression
  })

  def isOrdered: Boolean = order.nonEmpty

  /** The open window: its number of rows, and the buffers. */
  val stateSchema: StructType = StructType(
    StructField("n", IntegerType, nullable = false) +: buffers.zipWithIndex.map { case (each, i) => StructField(s"b$i", each.dataType) })

  (updates ++ evaluated).flatMap(_.collect { case part: Unevaluable if !part.isInstanceOf[Attribute] => part }).headOption.foreach { part =>
    throw CountWindow.refused(s"${part.sql} cannot be computed row by row: give it a column of its own before")
  }

  /** Names by number, because the user's names may repeat. */
  val resultSchema: StructType = StructType(results.zipWithIndex.map { case (each, i) => StructField(s"r$i", each.dataType, each.nullable) })

  // Made again in each task.
  @transient private lazy val initialize = MutableProjection.create(functions.flatMap(_.initialValues), Nil)
  @transient private lazy val update = MutableProjection.create(updates, buffers ++ input)
  @transient private lazy val finish = GenerateSafeProjection.generate(evaluated, keys ++ buffers)
  @transient private lazy val ordering = new TotalOrder(order, input)
  @transient private lazy val toState = CatalystTypeConverters.createToScalaConverter(stateSchema)
  @transient private lazy val fromState = CatalystTypeConverters.createToCatalystConverter(stateSchema)
  @transient private lazy val toResult = CatalystTypeConverters.createToScalaConverter(resultSchema)

  override def apply(key: Any, rows: Iterator[Any], state: LogicalGroupState[Any]): Iterator[Any] = {
    val group = state.asInstanceOf[org.apache.spark.sql.streaming.GroupState[Row]]
    val buffer = new SpecificInternalRow(buffers.map(_.dataType))
    var n = group.getOption.map(restoreBuffer(_, buffer)).getOrElse(0)
    val (joined, closed) = (new JoinedRow, Seq.newBuilder[Any])
    sortRows(rows).foreach { row =>
      if (n == 0) initialize.target(buffer)(InternalRow.empty)
      update.target(buffer)(joined(buffer, row))
      n += 1
      if (n == size) {
        closed += toResult(finish(joined(key.asInstanceOf[InternalRow], buffer)))
        n = 0
      }
    }
    if (n > 0) group.update(toState(InternalRow.fromSeq(n +: buffer.toSeq(buffers.map(_.dataType)))).asInstanceOf[Row])
    else if (group.exists) group.remove()
    closed.result().iterator
  }

  /** Copies each row, because a buffer may keep a part of it. */
  private def sortRows(rows: Iterator[Any]): Iterator[InternalRow] = {
    val copies = rows.map(_.asInstanceOf[InternalRow].copy())
    if (order.isEmpty) copies else copies.toArray.sorted(ordering).iterator
  }

  private def restoreBuffer(open: Row, buffer: InternalRow): Int = {
    val saved = fromState(open).asInstanceOf[InternalRow]
    buffers.indices.foreach(i => buffer.update(i, saved.get(i + 1, buffers(i).dataType)))
    saved.getInt(0)
  }
}

/** A total order: by some columns first, then by all bytes. Two rows are equal only if their bytes are. */
private final class TotalOrder(order: Seq[SortOrder], input: Seq[Attribute]) extends Ordering[InternalRow] {
  private val first = new InterpretedOrdering(order, input)
  private val (left, right) = (UnsafeProjection.create(input, input), UnsafeProjection.create(input, input))

  override def compare(one: InternalRow, other: InternalRow): Int = {
    val byColumns = first.compare(one, other)
    if (byColumns != 0) byColumns else java.util.Arrays.compare(left(one).getBytes, right(other).getBytes)
  }
}
