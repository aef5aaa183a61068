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
   * Whether reads in `batch` see a window with this footprint.
   *
   * Before batch D the store shows no window. A part of the windows would be a state that never existed, and an
   * operator of several stores (a join) may refuse it.
   */
  def visible(footprint: Long, batch: Long): Boolean = dirtyFrom <= batch && footprint <= batch

  /**
   * Whether a mutation in `batch` reaches a window.
   *
   * @param isKnown whether a window with that id is open at the end
   */
  def accepts(isKnown: Boolean, footprint: Long, batch: Long): Boolean = {
    val accepted = isKnown && visible(footprint, batch)
    if (!accepted) held += 1
    accepted
  }
}
