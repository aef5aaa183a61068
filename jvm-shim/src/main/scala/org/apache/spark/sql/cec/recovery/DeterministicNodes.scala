package org.apache.spark.sql.cec.recovery

import java.lang.invoke.SerializedLambda
import scala.util.Try

import org.apache.spark.sql.catalyst.expressions._
import org.apache.spark.sql.catalyst.plans.logical._
import org.apache.spark.sql.catalyst.streaming.StreamingRelationV2
import org.apache.spark.sql.execution.streaming.runtime.StreamingRelation

/**
 * Knows the nodes of a logical plan that give the same rows for the same input, whatever its order and its split into
 * tasks. As in Spark, the user answers for functions of one row.
 */
private[recovery] object DeterministicNodes {
  /** A reason if this node may give other rows for the same rows; None if it gives the same. */
  def against(node: LogicalPlan): Option[String] = node match {
    case _: StreamingRelation | _: StreamingRelationV2 => None
    case leaf: LeafNode if !leaf.isStreaming => None // `DeferralAnalysis` judges it for the whole query
    case _: Project | _: Filter | _: Union | _: Join | _: Expand | _: Sort => None
    case _: SubqueryAlias | _: View | _: ResolvedHint | _: CollectMetrics => None
    case _: EventTimeWatermark | _: UpdateEventTimeWatermarkColumn => None
    case _: Repartition | _: RepartitionByExpression | _: RebalancePartitions => None
    case _: DeserializeToObject | _: SerializeFromObject | _: MapElements | _: TypedFilter => None
    case _: AppendColumns | _: AppendColumnsWithObject => None
    case generate: Generate if isRowByRow(generate.generator) => None
    case map: MapPartitions if isFlatMap(map.func) => None
    case other => Some(s"it is fed by ${other.nodeName}, which is not known to give the same rows for the same input")
  }

  /** Whether a node neither is nor becomes a stateful operator, so that it leaves the ids of operators alone. */
  def isStateless(node: LogicalPlan): Boolean = node match {
    case _: Generate | _: MapPartitions | _: MapInPandas | _: MapInArrow | _: MapGroups | _: CoGroup => true
    case _: FlatMapGroupsInPandas | _: FlatMapGroupsInArrow | _: Window | _: Sample | _: LocalLimit => true
    case other => against(other).isEmpty
  }

  private def isRowByRow(generator: Generator): Boolean = generator match {
    case GeneratorOuter(inner) => isRowByRow(inner)
    case _: Explode | _: PosExplode | _: Inline | _: Stack | _: JsonTuple | _: ReplicateRows => true
    case _ => false
  }

  /** Whether a `mapPartitions` is Spark's own form of `flatMap`, which calls the user's function row by row. */
  private def isFlatMap(function: AnyRef): Boolean = Try {
    val method = function.getClass.getDeclaredMethod("writeReplace")
    method.setAccessible(true)
    method.invoke(function)
  }.toOption.exists {
    case lambda: SerializedLambda =>
      lambda.getImplClass.startsWith("org/apache/spark/sql/internal/UDFAdaptors") &&
        lambda.getImplMethodName.contains("flatMapToMapPartitions")
    case _ => false
  }
}
