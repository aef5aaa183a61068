package org.apache.spark.sql.cec.bench

import org.apache.spark.sql.api.java.UDF2

/** Stands in for work on a row: the task is busy for some microseconds, and takes no processor from the others. */
class Work extends UDF2[java.lang.Long, java.lang.Integer, java.lang.Long] {
  override def call(value: java.lang.Long, microseconds: java.lang.Integer): java.lang.Long = {
    java.util.concurrent.locks.LockSupport.parkNanos(microseconds * 1000L)
    value
  }
}
