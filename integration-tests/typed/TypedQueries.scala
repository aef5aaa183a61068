package org.apache.spark.sql.cec.testing

import scala.collection.mutable

import com.fasterxml.jackson.databind.ObjectMapper
import org.apache.spark.sql.{Dataset, Encoder, Encoders, SparkSession}
import org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider
import org.apache.spark.sql.expressions.Aggregator
import org.apache.spark.sql.streaming.{GroupState, GroupStateTimeout, OutputMode}

case class Event(key: Long, x: Double, seq: Long)
case class Trail(key: Long, trail: Long)

/** Sums, but Spark cannot know that. */
object Summing extends Aggregator[Event, Long, Long] {
  def zero: Long = 0L
  def reduce(sum: Long, event: Event): Long = sum + event.seq
  def merge(one: Long, other: Long): Long = one + other
  def finish(sum: Long): Long = sum
  def bufferEncoder: Encoder[Long] = Encoders.scalaLong
  def outputEncoder: Encoder[Long] = Encoders.scalaLong
}

/** Typed queries, which Python does not have: prints for each the rows that it put out, on our store and on Spark's, as JSON lines. */
object TypedQueries {
  private val Provider = "spark.sql.streaming.stateStore.providerClass"
  private type Query = (SparkSession, Dataset[Event]) => Dataset[_]

  def follow(key: Long, events: Iterator[Event], state: GroupState[Trail]): Iterator[Trail] = {
    val before = state.getOption.map(_.trail).getOrElse(7L)
    val trail = Trail(key, events.foldLeft(before)((so, event) => 31 * so + java.lang.Double.doubleToRawLongBits(event.x) + event.seq))
    state.update(trail)
    Iterator(trail)
  }

  private def queries(spark: SparkSession): Seq[(String, Query)] = {
    import spark.implicits._
    val (update, none) = (OutputMode.Update(), GroupStateTimeout.NoTimeout())
    Seq(
      "flatMap" -> ((_, events) => events.flatMap(event => Seq(event.key, event.seq)).groupByKey(identity).count()),
      "map" -> ((_, events) => events.map(event => event.key).filter(key => key > 0).groupByKey(identity).count()),
      "mapPartitions" -> ((_, events) => events.mapPartitions(_.map(_.key)).groupByKey(identity).count()),
      "reduceGroups" -> ((_, events) => events.groupByKey(_.key).reduceGroups((one, _) => one)),
      "aggregator" -> ((_, events) => events.groupByKey(_.key).agg(Summing.toColumn)),
      "state" -> ((_, events) => events.groupByKey(_.key).flatMapGroupsWithState(update, none)(follow)),
      "initial state" -> { (own, events) =>
        val initial = own.createDataset(Seq(Trail(1, 11), Trail(2, 22))).groupByKey(_.key)
        events.groupByKey(_.key).flatMapGroupsWithState(update, none, initial)(follow)
      })
  }

  /** Arguments: a directory for checkpoints, one with JSON events for each order of them, `key=value` confs. */
  def main(arguments: Array[String]): Unit = {
    val builder = SparkSession.builder().master("local[2]").config("spark.ui.enabled", "false").config("spark.sql.shuffle.partitions", "2")
    val confs = arguments.drop(2).map(_.split("=", 2)).map(each => each(0) -> each(1))
    val spark = confs.foldLeft(builder) { case (so, (key, value)) => so.config(key, value) }.getOrCreate()
    import spark.implicits._
    val json = new ObjectMapper
    val providers = Seq("cec" -> spark.conf.get(Provider), "rocksdb" -> classOf[RocksDBStateStoreProvider].getName)
    for ((name, query) <- queries(spark); order <- Seq("first", "second"); (store, provider) <- providers) {
      spark.conf.set(Provider, provider)
      val events = spark.readStream.schema(Encoders.product[Event].schema).option("maxFilesPerTrigger", "1")
        .json(s"${arguments(1)}/$order").as[Event]
      val rows = mutable.ArrayBuffer.empty[String]
      val checkpoint = s"${arguments(0)}/${name.replace(' ', '-')}-$order-$store"
      val keep: (Dataset[String], Long) => Unit = (batch, id) => rows ++= batch.collect().map(row => s"$id $row")
      val running = query(spark, events).toDF().selectExpr("to_json(struct(*))").as[String]
        .writeStream.outputMode("update").option("checkpointLocation", checkpoint).foreachBatch(keep).start()
      try running.processAllAvailable() finally running.stop()
      val answer = json.createObjectNode().put("query", name).put("order", order).put("store", store)
      val sorted = answer.putArray("rows")
      rows.sorted.foreach(sorted.add)
      println(answer)
    }
    spark.stop()
  }
}
