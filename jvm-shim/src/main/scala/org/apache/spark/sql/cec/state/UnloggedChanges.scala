package org.apache.spark.sql.cec.state

/**
 * What the log does not know of a silent store, beside its dirty windows.
 *
 * @param version of the store's newest frame, 0 before the first
 * @param checkpointId of that frame
 * @param closedIds windows that it takes for open, and that a later commit has closed; some of them may be open again
 */
private[state] final class UnloggedChanges private (val version: Long, val checkpointId: Option[String], val closedIds: List[Array[Byte]]) {
  /** The same after one more commit that is not written. A window that was opened since the frame is not known to it. */
  def after(changes: BatchDelta): UnloggedChanges = {
    var ids = closedIds
    changes.closed.forEach(window => if (window.footprint <= version) ids = window.id :: ids)
    new UnloggedChanges(version, checkpointId, ids)
  }
}

private[state] object UnloggedChanges {
  /** Of a store that has no frame yet. */
  val nothing: UnloggedChanges = new UnloggedChanges(0L, None, Nil)

  /** Of a store whose frame of `version` has all of it. */
  def since(version: Long, checkpointId: String): UnloggedChanges = new UnloggedChanges(version, Some(checkpointId), Nil)
}
