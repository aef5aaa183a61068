package org.apache.spark.sql.cec

import java.util.Properties

import org.apache.spark.SPARK_VERSION

/** What this jar was built as, and for which Spark: written into the jar by its build. */
private[cec] object BuildInfo {
  private val properties: Properties = {
    val all = new Properties()
    val stream = getClass.getResourceAsStream("/META-INF/spark-cec/build.properties")
    if (stream != null) try all.load(stream) finally stream.close()
    all
  }

  val version: String = properties.getProperty("product.version", "unknown")
  val sparkVersion: String = properties.getProperty("spark.version", "unknown")

  /** Refuses to run under another Spark than the one that the jar was compiled for. */
  def checkSpark(): Unit =
    if (sparkVersion != SPARK_VERSION) {
      throw new IllegalStateException(
        s"this spark-cec jar was built for Spark $sparkVersion, but Spark $SPARK_VERSION is running: " +
          "build it with `python -m spark_cec.build` where that Spark is installed")
    }
}
