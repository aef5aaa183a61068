package org.apache.spark.sql.cec.state;

import org.apache.spark.sql.execution.streaming.state.StateStoreCustomMetric;

/**
 * A metric of the present state, which Spark keeps in the progress of an idle query. The class is in Java, because
 * Spark 4.2 lacks this method, and Scala refuses `override` where there is nothing to override.
 */
public abstract class GaugeMetric implements StateStoreCustomMetric {
  public boolean isSnapshot() {
    return true;
  }
}
