package org.apache.spark.sql.cec.state

import java.util.Properties
import java.util.concurrent.{CountDownLatch, TimeUnit}
import java.util.concurrent.atomic.AtomicReference

import org.apache.spark.{TaskContext, TaskContextImpl}
import org.apache.spark.executor.TaskMetrics

/** Tasks and threads for tests of locks. */
private[state] object Tasks {
  private val WaitS = 30L

  /** A task without a scheduler. The type of its processors differs between releases of Spark. */
  def make(attempt: Long): TaskContextImpl = {
    val constructor = classOf[TaskContextImpl].getConstructors.maxBy(_.getParameterCount)
    val processors: AnyRef = if (constructor.getParameterTypes.apply(10) == classOf[Int]) Int.box(1) else BigDecimal(1)
    constructor.newInstance(
      Int.box(1), Int.box(0), Int.box(attempt.toInt), Long.box(attempt), Int.box(0), Int.box(1), null, new Properties, null, TaskMetrics.empty,
      processors, Map.empty).asInstanceOf[TaskContextImpl]
  }

  /** Runs the body as a part of this task. */
  def within[A](task: TaskContextImpl)(body: => A): A = {
    val before = TaskContext.get()
    TaskContext.setTaskContext(task)
    try body finally if (before == null) TaskContext.unset() else TaskContext.setTaskContext(before)
  }

  /** A thread that runs the body. */
  final class Running(body: => Unit) {
    private val error = new AtomicReference[Throwable]
    private val begun = new CountDownLatch(1)
    private val thread = new Thread(() => {
      begun.countDown()
      try body catch { case failure: Throwable => error.set(failure) }
    })
    thread.setDaemon(true)
    thread.start()

    def isDone: Boolean = !thread.isAlive

    /** Returns when the thread waits for a monitor or for a time. */
    def untilItWaits(): Unit = until(Set(Thread.State.TIMED_WAITING, Thread.State.WAITING))

    /** Returns when another thread has a monitor that the thread needs. */
    def untilItIsBlocked(): Unit = until(Set(Thread.State.BLOCKED))

    private def until(wanted: Set[Thread.State]): Unit = {
      require(begun.await(WaitS, TimeUnit.SECONDS))
      val deadline = System.nanoTime() + TimeUnit.SECONDS.toNanos(WaitS)
      while (!wanted(thread.getState)) {
        if (!thread.isAlive) throw new AssertionError("the thread did not wait", error.get)
        if (System.nanoTime() > deadline) throw new AssertionError(s"the thread is ${thread.getState}")
        Thread.onSpinWait()
      }
    }

    /** Waits for the end, and throws what the thread threw. */
    def await(): Unit = {
      thread.join(TimeUnit.SECONDS.toMillis(WaitS))
      if (thread.isAlive) throw new AssertionError("the thread did not end")
      if (error.get != null) throw error.get
    }
  }
}
