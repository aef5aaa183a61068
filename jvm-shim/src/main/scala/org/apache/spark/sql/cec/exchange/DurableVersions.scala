package org.apache.spark.sql.cec.exchange

import java.util.UUID

import scala.util.control.NonFatal

import org.apache.hadoop.conf.Configuration

import org.apache.spark.SparkEnv
import org.apache.spark.internal.Logging
import org.apache.spark.sql.execution.streaming.runtime.StreamExecution
import org.apache.spark.sql.execution.streaming.state.{StateStoreConf, StateStoreCoordinatorRef, StateStoreId, StateStoreProviderId}

/**
 * Reports the progress of a store to Spark's coordinator of state stores.
 *
 * At each batch the coordinator warns of a store without a recent snapshot, because the recovery of Spark's own store
 * would read many change files. The recovery of our store is bounded at any version. So this class reports the first
 * version of a run, and then as often as Spark's own stores make a snapshot. A report of each commit would cost a call
 * to the driver.
 */
private[cec] final class DurableVersions(id: StateStoreId, storeConf: StateStoreConf, hadoopConf: Configuration) extends Logging {
  private lazy val coordinator = StateStoreCoordinatorRef.forExecutor(SparkEnv.get)
  private var reportedVersion: Option[Long] = None

  def note(version: Long): Unit =
    if (storeConf.reportSnapshotUploadLag && reportedVersion.forall(version - _ >= storeConf.minDeltasForSnapshot)) {
      reportedVersion = Some(version)
      Option(hadoopConf.get(StreamExecution.RUN_ID_KEY)).foreach(reportVersion(_, version))
    }

  private def reportVersion(runId: String, version: Long): Unit =
    try {
      coordinator.snapshotUploaded(StateStoreProviderId(id, UUID.fromString(runId)), version, System.currentTimeMillis())
    } catch {
      case NonFatal(error) => logWarning(s"Spark's coordinator of state stores does not know that version $version of store $id is durable", error)
    }
}
