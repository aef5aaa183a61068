package org.apache.spark.sql.cec.bench

import org.apache.spark.sql.api.java.UDF2

/** Stands in for work on a row: the task is busy for some microseconds, and takes no processor from the others. */
class Work extends UDF2[java.lang.Long, java.lang.Integer, java.lang.Long] {
  override def call(value: java.lang.Long, microseconds: java.lang.Integer): java.lang.Long = {
    val owed = Work.owedNs.get
    owed(0) += microseconds * 1000L
    if (owed(0) >= Work.LeastNs) {
      val begun = System.nanoTime()
      java.util.concurrent.locks.LockSupport.parkNanos(owed(0))
      owed(0) -= System.nanoTime() - begun
    }
    value
  }
}

private object Work {
  /** Waits shorter than this are put together: to wake up for each row takes more processor than all else that a task does. */
  val LeastNs: Long = 50000000L

  /** What the rows of this thread have yet to wait for. */
  val owedNs: ThreadLocal[Array[Long]] = ThreadLocal.withInitial(() => new Array[Long](1))
}
