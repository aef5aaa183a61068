package org.apache.spark.sql.cec.state;

import org.apache.spark.sql.execution.streaming.state.StateStoreCustomMetric;

/**
 * A metric of what is, not of what a batch has done: it stays in the progress of an idle query. In Java, because Spark 4.2 asks nobody
 * and has no such method to override.
 */
public abstract class GaugeMetric implements StateStoreCustomMetric {
  public boolean isSnapshot() {
    return true;
  }
}
