package org.apache.spark.sql.cec.state

import org.apache.spark.TaskContext

/**
 * Lets one task at a time use a store. A task keeps the lock until it ends, because it may read the store after its
 * commit. A thread without a task keeps the lock until it releases it.
 */
private[cec] final class TaskLock(store: String, timeoutMs: Long) {
  @volatile private var holder: AnyRef = _
  private var endAction: () => Unit = () => ()

  /** Waits until no other task has the store. */
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
      Option(TaskContext.get()).foreach(_.addTaskCompletionListener[Unit](_ => endTask(me)))
    }
  }

  /** Sets the action for a holder that ends without a release. */
  def atEnd(action: () => Unit): Unit = synchronized { endAction = action }

  /**
   * Frees the lock of a thread without a task. A task frees its lock at its end. Any thread of a task passes on without
   * this monitor: the task's end holds it, and may wait for the store, which that thread has.
   */
  def release(): Unit = {
    val me = TaskLock.me
    if (TaskContext.get() == null && holder == me) synchronized { if (holder == me) freeLock() }
  }

  private def endTask(task: AnyRef): Unit = synchronized {
    if (holder == task) {
      try endAction() finally freeLock()
    }
  }

  private def freeLock(): Unit = {
    holder = null
    endAction = () => ()
    notifyAll()
  }
}

private object TaskLock {
  def me: AnyRef = Option(TaskContext.get())
    .map(task => s"task ${task.taskAttemptId()} of stage ${task.stageId()}, partition ${task.partitionId()}")
    .getOrElse(Thread.currentThread)
}
