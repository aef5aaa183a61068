package org.apache.spark.sql.cec.pipeline;

import org.apache.spark.scheduler.Pool;
import org.apache.spark.scheduler.SchedulingMode;

/**
 * A pool of the FAIR scheduler that may get precedence while it exists. With a share of one task it gets the next core
 * before pools without a share. Spark reads shares from a file only once. Only Java can override a Scala val with a
 * method.
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
