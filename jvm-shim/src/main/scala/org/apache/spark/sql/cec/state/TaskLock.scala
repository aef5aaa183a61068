package org.apache.spark.sql.cec.state

import org.apache.spark.TaskContext

/**
 * Lets one task at a time use a store. A task keeps the lock until it ends, because it may read the store after its
 * commit. A thread without a task keeps the lock until it releases it.
 */
private[cec] final class TaskLock(store: String, timeoutMs: Long) {
  @volatile private var holder: AnyRef = _
  private var endAction: () => Unit = () => ()

  /** For each end of a holder. */
  private var freeAction: () => Unit = () => ()

  /** Waits until no other task has the store. */
  def acquire(): Unit = synchronized {
    val me = TaskLock.me
    if (Option(TaskContext.get()).exists(_.isCompleted())) throw new IllegalStateException(s"a thread asks for store $store, and its $me has ended")
    if (!awaitFree(me, orElse = false)) throw new IllegalStateException(s"store $store is still in use by $holder after $timeoutMs ms")
    if (holder == null) {
      holder = me
      Option(TaskContext.get()).foreach(_.addTaskCompletionListener[Unit](_ => endTask(me)))
    }
  }

  /** Whether no other has the store, or something else holds, after some time. */
  private def awaitFree(me: AnyRef, orElse: => Boolean): Boolean = {
    val deadline = System.nanoTime() + timeoutMs * 1000000L
    def leftMs = (deadline - System.nanoTime()) / 1000000L
    def isFree = holder == null || holder == me || orElse
    while (!isFree && leftMs > 0) wait(leftMs)
    isFree
  }

  /**
   * Runs the action while nobody has the store, and after each later end of a holder, who may have come too late to know. Answers whether it
   * ran now: if a task keeps the store for long, it runs at the end of that task.
   */
  def whenFree(action: => Unit): Boolean = synchronized {
    var runs = 0
    freeAction = () => {
      runs += 1
      action
    }
    // Between the end of a holder and this thread's turn, the next task may have the store.
    val isFree = awaitFree(TaskLock.me, orElse = runs > 0)
    if (isFree && runs == 0) freeAction()
    isFree
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
    try freeAction() finally notifyAll()
  }
}

private object TaskLock {
  def me: AnyRef = Option(TaskContext.get())
    .map(task => s"task ${task.taskAttemptId()} of stage ${task.stageId()}, partition ${task.partitionId()}")
    .getOrElse(Thread.currentThread)
}
