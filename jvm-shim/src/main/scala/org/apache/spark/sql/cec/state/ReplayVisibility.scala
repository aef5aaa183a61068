package org.apache.spark.sql.cec.state

/**
 * The hold rule, while a replay brings a store forward (docs/design.md, One recovery): nothing in a replay can
 * touch a window that is not open at the end of it, nor one before the batch that its footprint already holds.
 *
 * @param dirtyFrom D of the store: before that batch it has nothing to replay
 */
private[cec] final class ReplayVisibility(dirtyFrom: Long) {
  /** Mutations that were held back. */
  var held: Long = 0L

  /**
   * Whether reads in `batch` see this window. A store that has nothing to replay yet shows none at all: a part of its
   * windows would be a state that never was, and an operator of several stores (a join) may rightly refuse one.
   */
  def visible(window: Window, batch: Long): Boolean = dirtyFrom <= batch && window.footprint <= batch

  /** Whether a mutation in `batch` reaches this window (null: no window with that id is open at the end). */
  def accepts(window: Window, batch: Long): Boolean = {
    val accepted = window != null && visible(window, batch)
    if (!accepted) held += 1
    accepted
  }
}
