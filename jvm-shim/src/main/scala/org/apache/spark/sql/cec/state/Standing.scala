package org.apache.spark.sql.cec.state

import org.apache.spark.sql.cec.agent.CecException

/**
 * How far the windows in memory can be trusted. The log takes commits and flushes of a [[Verified]] version only, so
 * windows that a replay has not proved, or has proved wrong, cannot reach it by any way.
 */
private[state] sealed trait Standing

private[state] object Standing {
  /** The windows of no version are there. */
  case object Unloaded extends Standing

  /** A replay is bringing the windows forward. */
  case object Replaying extends Standing

  /**
   * A replay came out different. It stays so for the run: a task that is tried again, in any stage, gets the same error.
   *
   * @param difference what differs
   */
  final class Refused(val difference: CecException) extends Standing
}

/** The proof that the windows are those of a version. It holds for as long as it is the store's standing. */
private[cec] final class Verified private (val version: Long) extends Standing {
  /** After one more commit. */
  private[state] def next: Verified = new Verified(version + 1)
}

private[state] object Verified {
  /** A store that has no version yet, or begins one without windows. */
  def empty(version: Long): Verified = new Verified(version)

  /** A checkpoint with nothing dirty, whose digest is the committed one: `ReplayCheck.loaded` says so. */
  def loaded(version: Long): Verified = new Verified(version)

  /** The end of a replay that found no difference: `ReplayCheck.end` says so. */
  def replayed(version: Long): Verified = new Verified(version)

  /** The user takes the windows as the replay left them (`onDivergence=accept`). */
  def accepted(version: Long): Verified = new Verified(version)
}
