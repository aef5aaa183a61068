package org.apache.spark.sql.cec

import org.apache.spark.sql.{SparkSessionExtensions, SparkSessionExtensionsProvider}
import org.apache.spark.sql.cec.recovery.{PhysicalRules, PrepareQuery}

/** Spark loads this by `META-INF/services`: an analyzer rule and physical rules, which act on queries with our provider only. */
class CecExtensions extends SparkSessionExtensionsProvider {
  override def apply(extensions: SparkSessionExtensions): Unit = {
    BuildInfo.checkSpark()
    extensions.injectPostHocResolutionRule(session => new PrepareQuery(session))
    extensions.injectColumnar(_ => new PhysicalRules)
  }
}
