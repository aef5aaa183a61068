package org.apache.spark.sql.cec.recovery

import java.util

import org.apache.spark.sql.catalyst.plans.logical.LogicalPlan
import org.apache.spark.sql.catalyst.streaming.StreamingRelationV2
import org.apache.spark.sql.connector.catalog.{SupportsRead, Table}
import org.apache.spark.sql.connector.read.{Scan, ScanBuilder}
import org.apache.spark.sql.connector.read.streaming._
import org.apache.spark.sql.execution.datasources.DataSource
import org.apache.spark.sql.execution.streaming.Source
import org.apache.spark.sql.execution.streaming.runtime.StreamingRelation

/** Wraps the sources of a plan, V1 and V2: the run is told of their making, of each look for new input, of what is acknowledged, of the end. */
private[recovery] object WrappedSources {
  def wrap(plan: LogicalPlan, run: QueryRun): LogicalPlan = {
    // A relation that occurs twice is one source to Spark, which tells by equality: keep one wrapper for it.
    val wrappers = new util.HashMap[LogicalPlan, LogicalPlan]()
    Plans.transform(plan) {
      case relation @ (_: StreamingRelationV2 | _: StreamingRelation) => wrappers.computeIfAbsent(relation, wrapped(_, run))
    }
  }

  private def wrapped(relation: LogicalPlan, run: QueryRun): LogicalPlan = relation match {
    case v2: StreamingRelationV2 =>
      val table = v2.table match {
        case readable: SupportsRead => wrappedTable(readable, run)
        case other => other
      }
      v2.copy(table = table, v1Relation = v2.v1Relation.map(wrapped(_, run))) // Spark may be told to take the V1 one
    case v1: StreamingRelation => v1.copy(dataSource = new WrappedDataSource(v1.dataSource, run))
    case other => other
  }

  private def wrappedTable(table: SupportsRead, run: QueryRun): Table = Intercepted[SupportsRead](table) {
    case ("newScanBuilder", itself) =>
      val builder = itself().asInstanceOf[ScanBuilder]
      val scanning: ScanBuilder = () => Intercepted[Scan](builder.build()) {
        case ("toMicroBatchStream", itself) =>
          run.beforeSources()
          wrappedStream[MicroBatchStream](itself().asInstanceOf[MicroBatchStream], run)
      }
      scanning
  }

  /** Traits of a stream that say how Spark plans its batches; real-time mode is none of them: there are no batches to replay then. */
  private val Traits = Seq(
    classOf[SupportsAdmissionControl], classOf[SupportsTriggerAvailableNow], classOf[ReportsSourceMetrics], classOf[AcceptsLatestSeenOffset])

  def wrappedStream[A <: SparkDataStream: scala.reflect.ClassTag](stream: A, run: QueryRun): A = Intercepted[A](stream, Traits: _*) {
    case ("latestOffset" | "getOffset", itself) =>
      run.betweenBatches()
      val end = itself()
      run.checkpointIfDue()
      end
    case ("commit", itself) =>
      run.hold(() => itself())
      null
    case ("stop", itself) => try { run.beforeStop(); null } finally itself()
  }
}

/** A data source is a case class: one with equal fields would be taken for unchanged when a plan is transformed. */
private final class WrappedDataSource(inner: DataSource, run: QueryRun)
    extends DataSource(
      inner.sparkSession, inner.className, inner.paths, inner.userSpecifiedSchema, inner.partitionColumns, inner.bucketSpec,
      inner.options, inner.catalogTable, inner.userSpecifiedStreamingSourceName) {
  override def canEqual(that: Any): Boolean = that.isInstanceOf[WrappedDataSource]
  override def equals(that: Any): Boolean = that match {
    case other: AnyRef => this eq other
    case _ => false
  }
  override def hashCode: Int = System.identityHashCode(this)
  override def createSource(metadataPath: String): Source = {
    run.beforeSources()
    WrappedSources.wrappedStream[Source](inner.createSource(metadataPath), run)
  }
}
