package org.apache.spark.sql.cec.state

import java.util.ArrayList

/** What a batch did to the windows. */
private[state] final class BatchDelta {
  val opened, closed = new ArrayList[Window]()

  /** Open before and after, and as the log has them before. */
  val newlyDirty = new ArrayList[Window]()

  /** Open before and after, and perhaps another if the batch were run again: they must be written. */
  val rounded = new ArrayList[Window]()

  /** How many were open before and after. */
  var kept: Int = 0
}

private[state] object BatchDelta {
  /** No batch. */
  val None: BatchDelta = new BatchDelta

  def of(windows: LiveWindows, averages: Option[ExactAverages]): BatchDelta = {
    val (changes, touched) = (new BatchDelta, windows.touched)
    var i = 0
    while (i < touched.size) {
      val window = touched.window(i)
      if (window.isOpen) {
        if (touched.wasOpen(i)) {
          changes.kept += 1
          if (!window.isDirty) changes.newlyDirty.add(window)
          if (averages.exists(!_.areExact(window))) changes.rounded.add(window)
        } else changes.opened.add(window)
      } else if (touched.wasOpen(i)) changes.closed.add(window)
      i += 1
    }
    changes
  }
}
