package org.apache.spark.sql.cec.state;

import org.apache.spark.sql.execution.streaming.state.StateStoreCustomMetric;

/**
 * A metric of the present state, which Spark keeps in the progress of an idle query. It is in Java because Spark 4.2
 * lacks this method: Scala would demand the word `override`, or refuse it.
 */
public abstract class GaugeMetric implements StateStoreCustomMetric {
  public boolean isSnapshot() {
    return true;
  }
}
