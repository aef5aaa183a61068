package org.apache.spark.sql.cec.state

/** The windows that a batch touched, sorted by their change. */
private[state] final class BatchDelta {
  val opened, closed = new IntList

  /** Windows open before and after the batch, and clean before it. */
  val newlyDirty = new IntList

  /**
   * Windows open before and after the batch, with averages that a second run may round in another way. A commit must
   * write them.
   */
  val rounded = new IntList

  /** The number of windows open before and after the batch. */
  var kept: Int = 0
}

private[state] object BatchDelta {
  /** The changes of no batch. */
  val None: BatchDelta = new BatchDelta

  def of(live: LiveWindows, averages: Option[ExactAverages]): BatchDelta = {
    val (changes, touched) = (new BatchDelta, live.touched)
    var i = 0
    while (i < touched.size) {
      val window = touched.window(i)
      if (live.isOpen(window)) {
        if (touched.wasOpen(i)) {
          changes.kept += 1
          if (!live.isDirty(window)) changes.newlyDirty.add(window)
          if (averages.exists(!_.areExact(live, window))) changes.rounded.add(window)
        } else changes.opened.add(window)
      } else if (touched.wasOpen(i)) changes.closed.add(window)
      i += 1
    }
    changes
  }
}
