package org.apache.spark.sql.cec.state

import org.apache.spark.SparkContext
import org.apache.spark.sql.execution.metric.{SQLMetric, SQLMetrics}
import org.apache.spark.util.AccumulatorV2

/** A metric of an operator: the sum of the values of its partitions. */
private[state] final case class SumMetric(name: String, desc: String) extends GaugeMetric {
  override def withNewDesc(desc: String): SumMetric = copy(desc = desc)

  override def createSQLMetric(sparkContext: SparkContext): SQLMetric = SQLMetrics.createMetric(sparkContext, desc)
}

/** A metric of an operator: the largest value of its partitions. Spark's own kinds are sums. */
private[state] final case class MaxMetric(name: String, desc: String) extends GaugeMetric {
  override def withNewDesc(desc: String): MaxMetric = copy(desc = desc)

  override def createSQLMetric(sparkContext: SparkContext): SQLMetric = {
    val metric = new LargestValue
    metric.register(sparkContext, name = Some(desc))
    metric
  }
}

/** Keeps the largest value, where Spark's metric would add the values. */
private[state] final class LargestValue extends SQLMetric("timing") {
  override def copy(): SQLMetric = {
    val other = new LargestValue
    other.set(value)
    other
  }

  override def add(v: Long): Unit = set(Math.max(value, v))

  override def merge(other: AccumulatorV2[Long, Long]): Unit = add(other.value)
}
