package org.apache.spark.sql.cec.state

/**
 * The changes of a silent store that the log lacks, beside its dirty windows.
 *
 * @param version of the store's newest frame, 0 before the first
 * @param checkpointId of that frame
 * @param closedIds windows that the log has open and a later commit closed; some may be open again
 */
private[state] final class UnloggedChanges private (val version: Long, val checkpointId: Option[String], val closedIds: List[Array[Byte]]) {
  /**
   * The changes after one more commit. A window that opened after the frame is unknown to the log, so its close is no
   * change.
   */
  def after(live: LiveWindows, changes: BatchDelta): UnloggedChanges = {
    var ids = closedIds
    changes.closed.foreach(window => if (live.footprint(window) <= version) ids = live.id(window).copy().getBytes :: ids)
    new UnloggedChanges(version, checkpointId, ids)
  }
}

private[state] object UnloggedChanges {
  /** The changes of a store without a frame. */
  val nothing: UnloggedChanges = new UnloggedChanges(0L, None, Nil)

  /** The changes just after a frame of the whole version. */
  def since(version: Long, checkpointId: String): UnloggedChanges = new UnloggedChanges(version, Some(checkpointId), Nil)
}
