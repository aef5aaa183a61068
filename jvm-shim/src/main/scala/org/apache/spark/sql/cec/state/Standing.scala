package org.apache.spark.sql.cec.state

import org.apache.spark.sql.cec.agent.CecException

/**
 * How far the windows in memory can be trusted. The log takes commits and flushes of a [[Verified]] version only. So
 * windows that a replay has not proved never reach the log.
 */
private[state] sealed trait Standing

private[state] object Standing {
  /** No version is loaded. */
  case object Unloaded extends Standing

  /** A replay is under way. */
  case object Replaying extends Standing

  /**
   * A replay differed from the first run. The store refuses every later task of the run with the same error.
   *
   * @param difference the error of the replay
   */
  final class Refused(val difference: CecException) extends Standing
}

/** The proof that the windows are the state of a version. The proof is valid while it is the store's standing. */
private[cec] final class Verified private (val version: Long) extends Standing {
  /** The proof after one more commit. */
  private[state] def next: Verified = new Verified(version + 1)
}

private[state] object Verified {
  /** Proves a store without windows. */
  def empty(version: Long): Verified = new Verified(version)

  /** Proves a checkpoint without dirty windows that has the committed digest: see `ReplayCheck.loaded`. */
  def loaded(version: Long): Verified = new Verified(version)

  /** Proves the end of a replay without a difference: see `ReplayCheck.end`. */
  def replayed(version: Long): Verified = new Verified(version)

  /** Accepts the windows as the replay left them, because the user said so (`onDivergence=accept`). */
  def accepted(version: Long): Verified = new Verified(version)
}
