package org.apache.spark.sql.cec.state

import org.apache.spark.TaskContext

/**
 * Lets one task at a time use a store. A task keeps the lock until it ends, because a store is still read after its
 * commit; a thread without a task keeps it until it releases it.
 */
private[cec] final class TaskLock(store: String, timeoutMs: Long) {
  private var holder: AnyRef = _
  private var onEnd: () => Unit = () => ()

  /** Waits until the store is free, or is this task's own already. */
  def acquire(): Unit = synchronized {
    val me = TaskLock.me
    val deadline = System.nanoTime() + timeoutMs * 1000000L
    while (holder != null && holder != me) {
      val leftMs = (deadline - System.nanoTime()) / 1000000L
      if (leftMs <= 0) throw new IllegalStateException(s"store $store is still in use by $holder after $timeoutMs ms")
      wait(leftMs)
    }
    if (holder == null) {
      holder = me
      Option(TaskContext.get()).foreach(_.addTaskCompletionListener[Unit](_ => finish(me)))
    }
  }

  /** What is to happen if the holder ends without having let go: the batch under way is taken back. */
  def atEnd(action: () => Unit): Unit = synchronized { onEnd = action }

  /** Lets go, unless a task holds the lock: it does when it ends. */
  def release(): Unit = synchronized {
    if (holder == TaskLock.me && TaskContext.get() == null) free()
  }

  private def finish(task: AnyRef): Unit = synchronized {
    if (holder == task) {
      try onEnd() finally free()
    }
  }

  private def free(): Unit = {
    holder = null
    onEnd = () => ()
    notifyAll()
  }
}

private object TaskLock {
  def me: AnyRef = Option(TaskContext.get())
    .map(task => s"task ${task.taskAttemptId()} of stage ${task.stageId()}, partition ${task.partitionId()}")
    .getOrElse(Thread.currentThread)
}
