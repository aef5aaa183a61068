package org.apache.spark.sql.cec.state

/**
 * The hold rule of a replay (docs/design.md, One recovery). A replay changes only windows that are open at its end,
 * and no window before the batch that its footprint holds.
 *
 * @param dirtyFrom D of the store: batches before it need no replay here
 */
private[cec] final class ReplayVisibility(dirtyFrom: Long) {
  /** The number of mutations that the rule ignored. */
  var held: Long = 0L

  /**
   * Whether reads in `batch` see this window.
   *
   * Before batch D the store shows no window. A part of the windows would be a state that never existed, and an
   * operator of several stores (a join) may refuse it.
   */
  def visible(window: Window, batch: Long): Boolean = dirtyFrom <= batch && window.footprint <= batch

  /**
   * Whether a mutation in `batch` reaches this window. If no window with that id is open at the end, `window` is null.
   */
  def accepts(window: Window, batch: Long): Boolean = {
    val accepted = window != null && visible(window, batch)
    if (!accepted) held += 1
    accepted
  }
}
