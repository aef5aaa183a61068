package org.apache.spark.sql.cec.state

import scala.util.Try

import org.apache.hadoop.conf.Configuration
import org.apache.hadoop.fs.Path

import org.apache.spark.TaskContext
import org.apache.spark.sql.cec.agent.{Agent, CecException, Json}
import org.apache.spark.sql.execution.streaming.checkpointing.CheckpointFileManager
import org.apache.spark.sql.execution.streaming.runtime.StreamExecution
import org.apache.spark.sql.execution.streaming.state.StateStoreId

/**
 * The directory of a store's partition in Spark's checkpoint. Nothing of ours is in it, but Spark's reader of state knows by it that
 * a partition is there, and would leave out those without one. On object stores it is what their Hadoop file system
 * shows as an empty directory.
 */
private[cec] final class PartitionDirectory(id: StateStoreId, hadoopConf: Configuration) {
  private lazy val made: Unit = {
    val directory = id.storeCheckpointLocation()
    CheckpointFileManager.create(directory, hadoopConf).mkdirs(directory)
  }

  /** Makes it, the first time. */
  def make(): Unit = made

  /**
   * Fails if partitions that are in the log have no directory: a checkpoint of a release that made none. For readers, who
   * begin with partition 0; a query makes what is missing.
   */
  def verifyAll(checkpoint: String, version: Long, conf: Map[String, String]): Unit =
    if (id.partitionId == 0 && !PartitionDirectory.inQuery) {
      val operator = new Path(id.checkpointRootLocation, id.operatorId.toString)
      val fs = operator.getFileSystem(hadoopConf)
      // A store that nobody has begun yet has no directory, and is empty.
      val found = if (fs.exists(operator)) fs.listStatus(operator).count(each => Try(each.getPath.getName.toInt).isSuccess) else 0
      val known = partitionsInLog(checkpoint, version, conf)
      if (found < known) throw LoadFailure.missingPartitions(operator.toString, found, known, checkpoint)
    }

  private def partitionsInLog(checkpoint: String, version: Long, conf: Map[String, String]): Int = {
    val arguments = Json.obj().put("path", checkpoint).put("view", "windows").put("operator", id.operatorId).put("store", id.storeName)
      .put("version", version)
    arguments.set[com.fasterxml.jackson.databind.JsonNode]("conf", Json.map(conf))
    try Agent.call("view_splits", arguments, conf).get("splits").size catch {
      case unknown: CecException if unknown.kind == "LogLocationError" => 0 // the load says what is wrong
    }
  }
}

private object PartitionDirectory {
  def inQuery: Boolean = Option(TaskContext.get()).exists(_.getLocalProperty(StreamExecution.QUERY_ID_KEY) != null)
}
