package org.apache.spark.sql.cec.exchange

import java.util.UUID

import scala.util.control.NonFatal

import org.apache.hadoop.conf.Configuration

import org.apache.spark.SparkEnv
import org.apache.spark.internal.Logging
import org.apache.spark.sql.execution.streaming.runtime.StreamExecution
import org.apache.spark.sql.execution.streaming.state.{StateStoreConf, StateStoreCoordinatorRef, StateStoreId, StateStoreProviderId}

/**
 * Tells Spark's coordinator of state stores how far a store has come. It warns, at each batch, of a store without a recent
 * snapshot: the recovery of one of Spark's would have as many files of changes to read. One of ours is bounded whatever the
 * version. Told are the first version of a run, and then one as often as Spark's own stores make a snapshot: soon enough for
 * the coordinator, and not a call to the driver for each commit.
 */
private[cec] final class DurableVersions(id: StateStoreId, storeConf: StateStoreConf, hadoopConf: Configuration) extends Logging {
  private lazy val coordinator = StateStoreCoordinatorRef.forExecutor(SparkEnv.get)
  private var told: Option[Long] = None

  def note(version: Long): Unit =
    if (storeConf.reportSnapshotUploadLag && told.forall(version - _ >= storeConf.minDeltasForSnapshot)) {
      told = Some(version)
      Option(hadoopConf.get(StreamExecution.RUN_ID_KEY)).foreach(tell(_, version)) // a store outside of a query has none
    }

  private def tell(runId: String, version: Long): Unit =
    try {
      coordinator.snapshotUploaded(StateStoreProviderId(id, UUID.fromString(runId)), version, System.currentTimeMillis())
    } catch {
      case NonFatal(error) => logWarning(s"Spark's coordinator of state stores does not know that version $version of store $id is durable", error)
    }
}
