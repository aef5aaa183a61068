package org.apache.spark.sql.cec.recovery

import org.apache.spark.sql.catalyst.plans.logical._
import org.apache.spark.sql.streaming.OutputMode

/** Finds the stateful operators of a logical plan. */
private[recovery] object StatefulOperators {
  /** The kind of stateful operator that this node becomes; None if it becomes none. */
  def kind(node: LogicalPlan): Option[String] = node match {
    case a: Aggregate if a.isStreaming => Some("aggregation")
    case d: Deduplicate if d.isStreaming => Some("deduplication")
    case d: DeduplicateWithinWatermark if d.isStreaming => Some("deduplication within watermark")
    case d: Distinct if d.isStreaming => Some("distinct")
    case s @ (_: Except | _: Intersect) if s.isStreaming => Some("set operation")
    case f: FlatMapGroupsWithState if f.isStreaming => Some("flatMapGroupsWithState")
    case f: FlatMapGroupsInPandasWithState if f.isStreaming => Some("applyInPandasWithState")
    case j: Join if j.left.isStreaming && j.right.isStreaming => Some("stream-stream join")
    case l: GlobalLimit if l.isStreaming => Some("limit")
    case t if isTransformWithState(t) && t.isStreaming => Some("transformWithState")
    case _ => None
  }

  /**
   * The stateful operators of a plan without CTEs, in the order of their ids. Spark numbers them from the sink up, a
   * parent before its children. A limit counts only if Spark does not sort the whole result.
   */
  def operatorsOf(plan: LogicalPlan, mode: OutputMode): Seq[LogicalPlan] = {
    val found = Seq.newBuilder[LogicalPlan]
    plan.foreach {
      case limit: GlobalLimit if !countsRows(limit, mode) =>
      case node => if (kind(node).isDefined) found += node
    }
    found.result()
  }

  /** Whether Spark plans an aggregation for this kind. */
  def isAggregated(kind: String): Boolean = Set("aggregation", "distinct", "set operation")(kind)

  def isTransformWithState(node: LogicalPlan): Boolean = node.nodeName.startsWith("TransformWithState")

  /** The rule of Spark's `StreamingGlobalLimitStrategy`. */
  private def countsRows(limit: GlobalLimit, mode: OutputMode): Boolean =
    mode == OutputMode.Append() || mode == OutputMode.Complete() && !limit.child.exists {
      case aggregate: Aggregate => aggregate.isStreaming
      case _ => false
    }
}
