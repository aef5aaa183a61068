package org.apache.spark.sql.cec.migration

import java.util.{List => JavaList, Map => JavaMap, UUID}

import scala.jdk.CollectionConverters._

import org.apache.hadoop.conf.Configuration
import org.apache.hadoop.fs.Path

import org.apache.spark.TaskContext
import org.apache.spark.sql.DataFrame
import org.apache.spark.sql.catalyst.InternalRow
import org.apache.spark.sql.catalyst.expressions.{BoundReference, UnsafeProjection, UnsafeRow, XXH64}
import org.apache.spark.sql.catalyst.plans.physical.HashPartitioning
import org.apache.spark.sql.classic.{DataFrame => ClassicFrame}
import org.apache.spark.sql.execution.streaming.runtime.StreamingCheckpointConstants
import org.apache.spark.sql.execution.streaming.state._
import org.apache.spark.sql.types.StructType
import org.apache.spark.unsafe.Platform
import org.apache.spark.util.SerializableConfiguration

/**
 * The rows of one partition of a store, the sum of their hashes, and the checkpoint id, if the state has ids.
 *
 * @param misplaced of rows with new partitions, those that were not in the partition of their key before
 */
private[cec] final case class PartitionSums(rows: Long, digest: Long, checkpointId: String = null, misplaced: Long = 0L)

/**
 * Copies the rows of a store from one provider to another, for `cec import`, `export` and `rescale`. A frame of state
 * has the columns of Spark's reader `statestore`: key, value, partition. Python calls this object by name.
 */
object StateMigration {
  /**
   * Writes each partition of `state` as a store of the checkpoint at `target`, at the version after `batch`.
   *
   * @param conf the confs that the target's offset log recorded
   * @param prefixColumns columns of the key that a scan may use, 0 for none
   * @param placingColumns the key's first columns, by whose hash the query places a row
   * @param before the number of partitions that the rows come from, if they have new ones; else 0
   */
  def write(
      state: DataFrame, target: String, conf: JavaMap[String, String], operator: Long, store: String, prefixColumns: Int, batch: Long,
      placingColumns: Int, before: Int): JavaList[PartitionSums] = {
    val frame = state.asInstanceOf[ClassicFrame]
    val session = frame.sparkSession
    val sqlConf = session.sessionState.conf.clone()
    conf.forEach((key, value) => sqlConf.setConfString(key, value))
    val hadoopConf = SerializableConfiguration.broadcast(session.sparkContext, session.sessionState.newHadoopConf())
    val (storeConf, keySchema, valueSchema) = (StateStoreConf(sqlConf), structOf(state, "key"), structOf(state, "value"))
    val root = new Path(target, StreamingCheckpointConstants.DIR_NAME_STATE).toString
    val encoder = if (prefixColumns > 0) PrefixKeyScanStateEncoderSpec(keySchema, prefixColumns) else NoPrefixKeyStateEncoderSpec(keySchema)
    val run = UUID.randomUUID()
    frame.queryExecution.toRdd.mapPartitions { rows =>
      val partition = TaskContext.getPartitionId()
      val id = StateStoreProviderId(StateStoreId(root, operator, partition, store), run)
      val provider = StateStoreProvider.createAndInit(
        id, keySchema, valueSchema, encoder, useColumnFamilies = false, storeConf, hadoopConf.value.value, useMultipleValuesPerKey = false, None)
      try {
        val empty = try provider.getStore(batch, None, forceSnapshotOnCommit = true, loadEmpty = true) catch {
          case _: UnsupportedOperationException => provider.getStore(0L) // the HDFS-backed provider
        }
        val placeOf = if (before > 0) makePlaceOf(keySchema, placingColumns, before) else (_: UnsafeRow) => partition
        var misplaced = 0L
        val sums = try {
          val sums = computeSums(rows, keySchema.length, valueSchema.length) { (key, value, of) =>
            if (of != placeOf(key)) {
              if (before == 0) throw new IllegalStateException(s"partition $of of operator $operator has no directory before it: a partition is lost")
              misplaced += 1
            }
            empty.put(key, value)
          }
          if (empty.commit() != batch + 1) renameToSnapshot(id.storeId, hadoopConf.value.value, batch + 1)
          sums
        } finally if (!empty.hasCommitted) empty.abort()
        Iterator(sums.copy(checkpointId = empty.getStateStoreCheckpointInfo().stateStoreCkptId.orNull, misplaced = misplaced))
      } finally provider.close()
    }.collect().toSeq.asJava
  }

  /**
   * Renames the delta file of an HDFS-backed store to a snapshot. The delta has all changes since version 0 and no
   * removal, so its content is a snapshot.
   */
  private def renameToSnapshot(id: StateStoreId, hadoopConf: Configuration, version: Long): Unit = {
    val directory = id.storeCheckpointLocation()
    val fs = directory.getFileSystem(hadoopConf)
    fs.listStatus(directory).map(_.getPath).filter(_.getName.startsWith("1.delta")).foreach { file =>
      val name = file.getName.replaceFirst("^1\\.delta", s"$version.snapshot")
      if (!fs.rename(file, new Path(directory, name))) throw new java.io.IOException(s"$file could not be renamed to $name")
    }
  }

  /** Finds the partition of a key as Spark's exchange does: by the hash of its first columns; without them it is 0. */
  private def makePlaceOf(key: StructType, columns: Int, partitions: Int): UnsafeRow => Int =
    if (columns == 0) _ => 0
    else {
      val references = key.fields.take(columns).zipWithIndex.map { case (field, at) => BoundReference(at, field.dataType, field.nullable) }
      val place = UnsafeProjection.create(Seq(HashPartitioning(references.toSeq, partitions).partitionIdExpression))
      row => place(row).getInt(0)
    }

  /** The sums of a store, over all partitions. */
  def sums(state: DataFrame): PartitionSums = {
    val (keys, values) = (structOf(state, "key").length, structOf(state, "value").length)
    val all = state.asInstanceOf[ClassicFrame].queryExecution.toRdd
      .mapPartitions(rows => Iterator(computeSums(rows, keys, values)((_, _, _) => ()))).collect()
    PartitionSums(all.map(_.rows).sum, all.map(_.digest).sum)
  }

  private def computeSums(rows: Iterator[InternalRow], keyFields: Int, valueFields: Int)(see: (UnsafeRow, UnsafeRow, Int) => Unit): PartitionSums = {
    var (count, digest) = (0L, 0L)
    rows.foreach { row =>
      val key = row.getStruct(0, keyFields).asInstanceOf[UnsafeRow]
      val value = row.getStruct(1, valueFields).asInstanceOf[UnsafeRow]
      see(key, value, row.getInt(2))
      count += 1
      digest += hash(value, hash(key, 42L))
    }
    PartitionSums(count, digest)
  }

  private def hash(row: UnsafeRow, seed: Long): Long = {
    val bytes = row.getBytes
    XXH64.hashUnsafeBytes(bytes, Platform.BYTE_ARRAY_OFFSET, bytes.length, seed)
  }

  private def structOf(state: DataFrame, column: String): StructType = state.schema(column).dataType.asInstanceOf[StructType]
}
