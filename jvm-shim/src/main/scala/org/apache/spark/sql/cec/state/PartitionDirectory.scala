package org.apache.spark.sql.cec.state

import scala.util.Try

import org.apache.hadoop.conf.Configuration
import org.apache.hadoop.fs.Path

import org.apache.spark.TaskContext
import org.apache.spark.sql.cec.agent.{Agent, CecException, ViewSplitsRequest}
import org.apache.spark.sql.execution.streaming.checkpointing.CheckpointFileManager
import org.apache.spark.sql.execution.streaming.runtime.StreamExecution
import org.apache.spark.sql.execution.streaming.state.StateStoreId

/**
 * The directory of a store's partition in Spark's checkpoint.
 *
 * The directory stays empty. Spark's reader of state finds partitions by their directories, and would leave out a
 * partition without one. On an object store the Hadoop file system shows an empty directory.
 */
private[cec] final class PartitionDirectory(id: StateStoreId, hadoopConf: Configuration) {
  private lazy val created: Unit = {
    val directory = id.storeCheckpointLocation()
    CheckpointFileManager.create(directory, hadoopConf).mkdirs(directory)
  }

  /** Makes the directory at the first call. */
  def make(): Unit = created

  /**
   * Fails if the log has partitions without directories, as in a checkpoint of a release that made none.
   *
   * A reader calls this at partition 0. A query does not need it: it makes the missing directories.
   */
  def verifyAll(checkpoint: String, version: Long, conf: Map[String, String]): Unit =
    if (id.partitionId == 0 && !PartitionDirectory.inQuery) {
      val operator = new Path(id.checkpointRootLocation, id.operatorId.toString)
      val fs = operator.getFileSystem(hadoopConf)
      // A store without a first commit has no directory, and is empty.
      val found = if (fs.exists(operator)) fs.listStatus(operator).count(each => Try(each.getPath.getName.toInt).isSuccess) else 0
      val known = countPartitions(checkpoint, version, conf)
      if (found < known) throw LoadFailure.missingPartitions(operator.toString, found, known, checkpoint)
    }

  private def countPartitions(checkpoint: String, version: Long, conf: Map[String, String]): Int = {
    val request = ViewSplitsRequest(checkpoint, conf, "windows", operator = id.operatorId, store = id.storeName, version = Some(version))
    try Agent.call(request, conf).splits.size catch {
      case unknown: CecException if unknown.isA("LogLocationError") => 0 // the load reports the error
    }
  }
}

private object PartitionDirectory {
  def inQuery: Boolean = Option(TaskContext.get()).exists(_.getLocalProperty(StreamExecution.QUERY_ID_KEY) != null)
}
