package org.apache.spark.sql.cec.state

/**
 * The time that checks may take: the share CI/CP of the time the store's own tasks run. Not more than CI, or the share of
 * one task if that is longer, is saved up; nor is more than CI owed by later commits: a first check that waits for
 * classes to load is no reason to go without checks for a minute.
 */
private[state] final class CheckpointTimeBudget {
  private var balanceNs = 0.0

  /** A commit begins after a task that ran for `taskNs`: what its checks may take, in ns. */
  def grant(taskNs: Long, share: Double, floorMs: Double): Double = {
    val earned = share * taskNs
    balanceNs = Math.max(balanceNs, -floorMs * 1e6)
    balanceNs = Math.min(balanceNs + earned, Math.max(floorMs * 1e6, earned))
    balanceNs
  }

  def spend(ns: Long): Unit = balanceNs -= ns
}
