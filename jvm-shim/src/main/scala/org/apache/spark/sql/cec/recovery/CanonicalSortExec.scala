package org.apache.spark.sql.cec.recovery

import java.util.concurrent.TimeUnit.NANOSECONDS
import java.util.function.Supplier

import org.apache.spark.{SparkEnv, TaskContext}
import org.apache.spark.rdd.RDD
import org.apache.spark.sql.catalyst.InternalRow
import org.apache.spark.sql.catalyst.expressions._
import org.apache.spark.sql.catalyst.expressions.codegen.GenerateOrdering
import org.apache.spark.sql.catalyst.plans.physical.Partitioning
import org.apache.spark.sql.catalyst.types.DataTypeUtils
import org.apache.spark.sql.execution._
import org.apache.spark.sql.execution.metric.{SQLMetric, SQLMetrics}
import org.apache.spark.unsafe.Platform
import org.apache.spark.util.collection.unsafe.sort.RecordComparator

/**
 * Sorts each partition by `sortOrder`, and rows that are equal by it by their bytes. That is one order whatever order the
 * rows came in, for any types of columns: rows that this leaves in any order are the same row.
 */
private[cec] case class CanonicalSortExec(sortOrder: Seq[SortOrder], child: SparkPlan) extends UnaryExecNode {
  override def output: Seq[Attribute] = child.output

  override def outputOrdering: Seq[SortOrder] = sortOrder

  override def outputPartitioning: Partitioning = child.outputPartitioning

  override lazy val metrics: Map[String, SQLMetric] = Map(
    "sortTime" -> SQLMetrics.createTimingMetric(sparkContext, "sort time"),
    "peakMemory" -> SQLMetrics.createSizeMetric(sparkContext, "peak memory"),
    "spillSize" -> SQLMetrics.createSizeMetric(sparkContext, "spill size"))

  override protected def doExecute(): RDD[InternalRow] = {
    val (sortTime, peakMemory, spillSize) = (longMetric("sortTime"), longMetric("peakMemory"), longMetric("spillSize"))
    val (order, attributes) = (sortOrder, child.output)
    child.execute().mapPartitionsInternal { rows =>
      val sorter = CanonicalSort.sorter(order, attributes)
      val task = TaskContext.get().taskMetrics()
      val spilledBefore = task.memoryBytesSpilled
      val sorted = sorter.sort(rows.asInstanceOf[Iterator[UnsafeRow]])
      sortTime += NANOSECONDS.toMillis(sorter.getSortTimeNanos)
      peakMemory += sorter.getPeakMemoryUsage
      spillSize += task.memoryBytesSpilled - spilledBefore
      task.incPeakExecutionMemory(sorter.getPeakMemoryUsage)
      sorted
    }
  }

  override protected def withNewChildInternal(newChild: SparkPlan): CanonicalSortExec = copy(child = newChild)
}

private object CanonicalSort {
  def sorter(order: Seq[SortOrder], attributes: Seq[Attribute]): UnsafeExternalRowSorter = {
    val first = BindReferences.bindReference(order.head, attributes)
    val comparators: Supplier[RecordComparator] =
      () => new ByOrderThenBytes(GenerateOrdering.generate(order, attributes), attributes.length)
    val radixSort = false // It knows the prefix alone.
    UnsafeExternalRowSorter.createWithRecordComparator(
      DataTypeUtils.fromAttributes(attributes), comparators, SortPrefixUtils.getPrefixComparator(first), prefixes(first),
      SparkEnv.get.memoryManager.pageSizeBytes, radixSort)
  }

  private def prefixes(first: SortOrder): UnsafeExternalRowSorter.PrefixComputer = {
    val prefix = SortPrefix(first)
    val projection = UnsafeProjection.create(Seq(prefix))
    new UnsafeExternalRowSorter.PrefixComputer {
      private val result = new UnsafeExternalRowSorter.PrefixComputer.Prefix

      override def computePrefix(row: InternalRow): UnsafeExternalRowSorter.PrefixComputer.Prefix = {
        val computed = projection(row)
        result.isNull = computed.isNullAt(0)
        result.value = if (result.isNull) prefix.nullValue else computed.getLong(0)
        result
      }
    }
  }
}

/** Spark's own `RecordBinaryComparator` is not one order: what it answers depends on where in memory a row lies. */
private final class ByOrderThenBytes(order: BaseOrdering, columns: Int) extends RecordComparator {
  private val (left, right) = (new UnsafeRow(columns), new UnsafeRow(columns))

  override def compare(leftBase: AnyRef, leftAt: Long, leftLength: Int, rightBase: AnyRef, rightAt: Long, rightLength: Int): Int = {
    left.pointTo(leftBase, leftAt, leftLength)
    right.pointTo(rightBase, rightAt, rightLength)
    val byOrder = order.compare(left, right)
    if (byOrder != 0) byOrder
    else if (leftLength != rightLength) Integer.compare(leftLength, rightLength)
    else byWords(leftBase, leftAt, rightBase, rightAt, leftLength)
  }

  /** An UnsafeRow is a whole number of words, and zero wherever it holds nothing. */
  private def byWords(leftBase: AnyRef, leftAt: Long, rightBase: AnyRef, rightAt: Long, length: Int): Int = {
    var (i, compared) = (0, 0)
    while (compared == 0 && i < length) {
      compared = java.lang.Long.compare(Platform.getLong(leftBase, leftAt + i), Platform.getLong(rightBase, rightAt + i))
      i += 8
    }
    compared
  }
}
