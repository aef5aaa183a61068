package org.apache.spark.sql.cec.pipeline;

import org.apache.spark.scheduler.Pool;
import org.apache.spark.scheduler.SchedulingMode;

/**
 * A pool of the FAIR scheduler that may be given precedence while it exists: with a share of one task, it gets the next
 * core before those that have none. Spark reads shares from a file, once; and what is a val in Scala only Java overrides.
 */
public final class FlowPool extends Pool {
  private volatile boolean first = false;

  public FlowPool(String name) {
    super(name, SchedulingMode.FIFO(), 0, 1);
  }

  public void precede(boolean others) {
    first = others;
  }

  @Override
  public int minShare() {
    return first ? 1 : 0;
  }
}
