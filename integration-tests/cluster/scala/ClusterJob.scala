package org.example.cluster

import java.nio.file.{Files, Path, Paths, StandardCopyOption, StandardOpenOption}

import scala.jdk.CollectionConverters._

import com.fasterxml.jackson.databind.ObjectMapper

import org.apache.spark.sql.{DataFrame, SparkSession}
import org.apache.spark.sql.functions._

/** A job for `--deploy-mode cluster`: the plan `long-windows` of the tests, recorded as their `foreachBatch` sink does. */
object ClusterJob {
  private val StartMs = 1700000000000L

  def main(args: Array[String]): Unit = {
    val Array(root, batches, rows, last) = args
    val out = Files.createDirectories(Paths.get(root, "out"))
    val life = Files.list(out).iterator.asScala.count(_.getFileName.toString.startsWith("calls."))
    val spark = SparkSession.builder.getOrCreate()
    val query = windows(input(spark, batches.toLong, rows.toLong)).writeStream
      .option("checkpointLocation", Paths.get(root, "checkpoint").toString)
      .foreachBatch((batch: DataFrame, id: Long) => record(out, life, batch, id))
      .start()
    while (query.lastProgress == null || query.lastProgress.batchId < last.toLong) query.awaitTermination(50)
    query.stop()
    spark.stop()
  }

  private def input(spark: SparkSession, batches: Long, rows: Long): DataFrame = {
    val dice = xxhash64(col("value"), lit(1))
    spark.readStream
      .format("rate-micro-batch")
      .option("rowsPerBatch", rows)
      .option("numPartitions", 2)
      .option("startTimestamp", StartMs)
      .option("advanceMillisPerBatch", 10000)
      .load()
      .where(col("value") < batches * rows)
      .select(
        pmod(dice, lit(41)).as("key"),
        pmod(shiftright(dice, 8), lit(1000)).as("amount"),
        col("value").as("seq"),
        timestamp_millis(unix_millis(col("timestamp")) - pmod(shiftright(dice, 24), lit(14000))).as("ts"))
  }

  private def windows(events: DataFrame): DataFrame =
    events
      .withWatermark("ts", "10 seconds")
      .groupBy(window(col("ts"), "100 seconds"), col("key"))
      .agg(count("*").as("n"), sum("amount").as("total"), max("seq").as("last"))
      .select(col("window.start").as("start"), col("key"), col("n"), col("total"), col("last"))

  /** The call, then the rows, whole or not at all. */
  private def record(out: Path, life: Int, batch: DataFrame, id: Long): Unit = {
    Files.writeString(out.resolve(s"calls.$life"), s"$id\n", StandardOpenOption.CREATE, StandardOpenOption.APPEND)
    val rows = batch.select(to_json(struct("*"))).collect().map(_.getString(0)).sorted
    val hidden = Files.write(out.resolve(s"$id.$life.tmp"), new ObjectMapper().writeValueAsBytes(rows))
    Files.move(hidden, out.resolve(s"$id.$life.json"), StandardCopyOption.ATOMIC_MOVE)
  }
}
