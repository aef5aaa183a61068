package org.apache.spark.sql.cec.state

/**
 * The time that checks may take: CI/CP of the time of the store's own tasks.
 *
 * A store saves up at most CI, or the share of one task if that is longer. A store owes at most CI. So a slow first
 * check, which waits for the JVM to load classes, does not stop checks for a minute.
 */
private[state] final class CheckpointTimeBudget {
  private var balanceNs = 0.0

  /** Returns the ns that checks may take after a task of `taskNs`. */
  def grant(taskNs: Long, share: Double, floorMs: Double): Double = {
    val earned = share * taskNs
    balanceNs = Math.max(balanceNs, -floorMs * 1e6)
    balanceNs = Math.min(balanceNs + earned, Math.max(floorMs * 1e6, earned))
    balanceNs
  }

  def spend(ns: Long): Unit = balanceNs -= ns
}
