package org.apache.spark.sql.cec.state

import scala.collection.mutable

/**
 * What a batch did to the windows.
 *
 * @param dirty open before and after
 * @param newlyDirty those of them that were as the log has them before
 */
private[state] final class Changes(
    val opened: Iterable[Window], val closed: Iterable[Window], val dirty: Iterable[Window], val newlyDirty: Iterable[Window])

private[state] object Changes {
  /** No batch. */
  val None: Changes = new Changes(Nil, Nil, Nil, Nil)

  def of(windows: LiveWindows): Changes = {
    val opened, closed, dirty, newlyDirty = mutable.ArrayBuffer.empty[Window]
    windows.touched.forEach { before =>
      val window = before.window
      if (window.isOpen) {
        if (before.wasOpen) {
          dirty += window
          if (!window.isDirty) newlyDirty += window
        } else opened += window
      } else if (before.wasOpen) closed += window
    }
    new Changes(opened, closed, dirty, newlyDirty)
  }
}
