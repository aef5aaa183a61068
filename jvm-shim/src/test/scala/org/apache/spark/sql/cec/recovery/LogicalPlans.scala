package org.apache.spark.sql.cec.recovery

import org.apache.spark.sql.catalyst.expressions._
import org.apache.spark.sql.catalyst.expressions.aggregate.{AggregateExpression, AggregateFunction, Complete}
import org.apache.spark.sql.catalyst.plans.Inner
import org.apache.spark.sql.catalyst.plans.logical._
import org.apache.spark.sql.catalyst.streaming.{StreamingRelationV2, WriteToStream}
import org.apache.spark.sql.connector.catalog.Table
import org.apache.spark.sql.streaming.OutputMode
import org.apache.spark.sql.types._
import org.apache.spark.sql.util.CaseInsensitiveStringMap

/** Analysed plans that no session made. */
private[recovery] object LogicalPlans {
  val key: AttributeReference = AttributeReference("k", LongType)()
  val number: AttributeReference = AttributeReference("n", IntegerType)()

  def column(kind: DataType): AttributeReference = AttributeReference("c", kind)()

  /** A stream, or a table whose rows the plan has. */
  def rows(streaming: Boolean = true): LocalRelation = LocalRelation(Seq(key, number), Nil, isStreaming = streaming)

  def aggregated(function: AggregateFunction, distinct: Boolean = false): AggregateExpression =
    AggregateExpression(function, Complete, isDistinct = distinct)

  /** An expression as a column of a plan. */
  def named(expression: Expression): NamedExpression = Alias(expression, "x")()

  def groupBy(child: LogicalPlan, functions: AggregateFunction*): Aggregate =
    Aggregate(Seq(key), functions.map(function => named(aggregated(function))), child)

  def join(left: LogicalPlan, right: LogicalPlan): Join = Join(left, right, Inner, None, JoinHint.NONE)

  def source(name: String, output: Seq[Attribute] = Seq(key, number)): StreamingRelationV2 = make(
    classOf[StreamingRelationV2],
    Seq(classOf[String] -> name, classOf[CaseInsensitiveStringMap] -> CaseInsensitiveStringMap.empty(), classOf[Seq[_]] -> output))

  def write(plan: LogicalPlan, mode: OutputMode = OutputMode.Update()): WriteToStream = make(
    classOf[WriteToStream],
    Seq(classOf[String] -> "text", classOf[OutputMode] -> mode, classOf[Boolean] -> Boolean.box(false), classOf[LogicalPlan] -> plan))

  /** Calls the constructor with arguments by their types, because it has other ones in each release of Spark. */
  private def make[A](of: Class[A], arguments: Seq[(Class[_], AnyRef)]): A = {
    val constructor = of.getConstructors.maxBy(_.getParameterCount)
    val values = constructor.getParameterTypes.map { kind =>
      arguments.collectFirst { case (`kind`, value) => value }.getOrElse(if (kind == classOf[Option[_]]) None else null)
    }
    constructor.newInstance(values: _*).asInstanceOf[A]
  }

  /** A table that the plan has not in itself. */
  final case class LookedUp() extends LeafNode {
    override def output: Seq[Attribute] = Nil
  }

  /** A node that this release of Spark does not have. */
  final case class Unheard(child: LogicalPlan) extends UnaryNode {
    override def output: Seq[Attribute] = child.output
    override protected def withNewChildInternal(newChild: LogicalPlan): LogicalPlan = copy(child = newChild)
  }
}
