package org.apache.spark.sql.cec.state

import org.apache.spark.sql.execution.streaming.state.{StateStoreCustomMetric, StateStoreCustomSizeMetric, StateStoreCustomSumMetric, StateStoreCustomTimingMetric, StateStoreMetrics}

/**
 * The custom metrics in a query's progress. Each is the sum over the operator's partitions, but the recovery estimate
 * is the largest.
 */
private[cec] object StoreMetrics {
  private val opened = StateStoreCustomSumMetric("cecOpened", "number of records of opened windows (G_open)")
  private val checked = StateStoreCustomSumMetric("cecChecked", "number of records of checked windows (G_check)")
  private val closed = StateStoreCustomSumMetric("cecClosed", "number of records of closed windows (R)")
  private val extent = SumMetric("cecExtent", "log records that a recovery would scan (q)")
  private val replay = SumMetric("cecReplay", "input tuples that a recovery would replay (u)")
  private val openWindows = SumMetric("cecOpenWindows", "open windows (N)")
  private val stateRows = SumMetric("cecStateRows", "state keys of the open windows, of which a window may have several")
  private val dirty = SumMetric("cecDirty", "windows changed since their footprint")
  private val fileBytes = SumMetric("cecFileBytes", "bytes of pages in files of spark.local.dir, beyond memory")
  private val deadBytes = SumMetric("cecDeadBytes", "bytes of pages, in memory and in files, that no row has")
  private val spilledBytes = StateStoreCustomSizeMetric("cecSpilledBytes", "bytes written to files of spark.local.dir")
  private val movedBytes = StateStoreCustomSizeMetric("cecMovedBytes", "bytes of rows moved so that memory is free")
  private val fileReads = StateStoreCustomSumMetric("cecFileReads", "look-ups of rows in files of spark.local.dir")
  private val logBytes = StateStoreCustomSizeMetric("cecLogBytes", "bytes appended to the log")
  private val commitMs = StateStoreCustomTimingMetric("cecCommitMs", "time to commit")
  private val agentMs = StateStoreCustomTimingMetric("cecAgentMs", "time of the agent in it")
  private val estimate = MaxMetric("cecRecoveryEstimateMs", "estimated time of a recovery from here")
  private val held = StateStoreCustomSumMetric("cecHeld", "mutations held back in a replay")

  val all: Seq[StateStoreCustomMetric] =
    Seq(
      opened, checked, closed, openWindows, stateRows, extent, replay, dirty, logBytes, commitMs, agentMs, held, estimate, fileBytes, deadBytes,
      spilledBytes, movedBytes, fileReads, CommittedStores)

  def of(state: StoreState): StateStoreMetrics = {
    val (last, sums, pages) = (state.metrics, state.live.sums, state.live.pageWork)
    StateStoreMetrics(
      sums.rows,
      state.live.heapBytes,
      Map(
        opened -> last.opened, checked -> last.checked, closed -> last.closed, openWindows -> state.openWindows, stateRows -> sums.rows,
        extent -> last.extent, replay -> last.replay, dirty -> last.dirty, logBytes -> last.logBytes, commitMs -> last.commitMs,
        agentMs -> (last.agentUs + 500) / 1000, held -> last.held, estimate -> last.recoveryEstimateMs, fileBytes -> state.live.fileBytes,
        deadBytes -> state.live.deadBytes, spilledBytes -> pages.spilledBytes, movedBytes -> pages.movedBytes, fileReads -> pages.fileReads))
  }
}
