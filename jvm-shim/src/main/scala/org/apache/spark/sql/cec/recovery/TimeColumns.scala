package org.apache.spark.sql.cec.recovery

import org.apache.spark.sql.catalyst.expressions.{
  Alias, Attribute, Expression, GetStructField, Literal, NamedExpression, PreciseTimestampConversion, Subtract, TimeWindow}
import org.apache.spark.sql.catalyst.plans.logical._
import org.apache.spark.sql.streaming.OutputMode
import org.apache.spark.sql.types.{StructType, TimestampType}

/**
 * Follows columns of time through a plan. It knows projections, filters, and the windows of an aggregation. All else has
 * no answer, because a column may then have other times than it seems.
 */
private[recovery] object TimeColumns {
  /** The column of a source that is this column of the plan, unchanged; None if it is not known to be one. */
  def sourceColumn(plan: LogicalPlan, column: Attribute): Option[(LogicalPlan, String)] = plan match {
    case source: LeafNode => source.output.find(_.exprId == column.exprId).map(found => (source, found.name))
    case _ => below(plan, column).flatMap {
      case (child, attribute: Attribute) => sourceColumn(child, attribute)
      case _ => None
    }
  }

  /**
   * The columns of the output that have the end of a window, its `window_time`, or the time that rows were grouped by.
   * The query must be one aggregation that gives a window out once the watermark has passed its end. Rows to come are
   * then behind the watermark.
   */
  def endsOfWindows(plan: LogicalPlan, mode: OutputMode): Seq[String] = {
    val stateful = plan.collect { case node if StatefulOperators.kind(node).isDefined || !DeterministicNodes.isStateless(node) => node }
    stateful match {
      case Seq(one: Aggregate) if mode == OutputMode.Append() && one.isStreaming =>
        plan.output.filter(column => column.dataType == TimestampType && isEnd(plan, column, one)).map(_.name)
      case _ => Nil
    }
  }

  /**
   * Whether all operators with state are aggregations over windows. Those compare the end of a window with the watermark,
   * so a row at the watermark itself is in time. To others it is late; a session that ends there may still grow.
   */
  def areAllWindows(plan: LogicalPlan): Boolean = plan.collect { case node if StatefulOperators.kind(node).isDefined => node }.forall {
    case one: Aggregate =>
      val watched = one.groupingExpressions.collect { case column: Attribute if column.metadata.contains(EventTimeWatermark.delayKey) => column }
      watched.nonEmpty && watched.forall(column => column.dataType.isInstanceOf[StructType] && column.metadata.contains(TimeWindow.marker))
    case _ => false
  }

  private def isEnd(plan: LogicalPlan, expression: Expression, aggregate: Aggregate): Boolean = (plan, expression) match {
    case (`aggregate`, column: Attribute) => aggregate.aggregateExpressions.find(_.exprId == column.exprId).exists {
      case Alias(GetStructField(window: Attribute, End, _), _) => isWindow(aggregate, window)
      case named => isGroupedBy(aggregate, named) && named.dataType == TimestampType
    }
    case (_, column: Attribute) => below(plan, column).exists { case (child, found) => isEnd(child, found, aggregate) }
    case (_, GetStructField(window: Attribute, End, _)) => windowBelow(plan, window, aggregate)
    // Spark's window_time, one microsecond before the end. A window to come ends after the watermark, so this is no earlier.
    case (_, PreciseTimestampConversion(Subtract(PreciseTimestampConversion(end: GetStructField, _, _), Literal(1L, _), _), _, _)) =>
      isEnd(plan, end, aggregate)
    case _ => false
  }

  /** Whether this attribute of the plan is the window that rows are grouped by. */
  private def windowBelow(plan: LogicalPlan, window: Attribute, aggregate: Aggregate): Boolean = plan match {
    case `aggregate` => aggregate.aggregateExpressions.find(_.exprId == window.exprId).exists(isWindow(aggregate, _))
    case _ => below(plan, window).exists {
      case (child, attribute: Attribute) => windowBelow(child, attribute, aggregate)
      case _ => false
    }
  }

  private def isWindow(aggregate: Aggregate, named: NamedExpression): Boolean =
    isGroupedBy(aggregate, named) && named.dataType.isInstanceOf[StructType] && named.metadata.contains(TimeWindow.marker)

  /** Whether rows are grouped by this attribute, or by the attribute that it renames, and it follows a watermark. */
  private def isGroupedBy(aggregate: Aggregate, named: NamedExpression): Boolean = {
    val grouped = named match {
      case Alias(child, _) => child
      case other => other
    }
    grouped.isInstanceOf[Attribute] && aggregate.groupingExpressions.exists(_.semanticEquals(grouped)) &&
      grouped.asInstanceOf[Attribute].metadata.contains(EventTimeWatermark.delayKey)
  }

  /** The expression below the plan's first node that becomes this column of it. */
  private def below(plan: LogicalPlan, column: Attribute): Option[(LogicalPlan, Expression)] = plan match {
    case Project(list, child) => list.find(_.exprId == column.exprId).map {
      case Alias(expression, _) => (child, expression)
      case named => (child, named)
    }
    case _: Filter | _: SubqueryAlias | _: EventTimeWatermark => Some((plan.children.head, column))
    case _ => None
  }

  /** The place of the end in the struct of a window. */
  private val End = 1
}
