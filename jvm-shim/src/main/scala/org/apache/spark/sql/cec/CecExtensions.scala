package org.apache.spark.sql.cec

import org.apache.spark.sql.{SparkSessionExtensions, SparkSessionExtensionsProvider}
import org.apache.spark.sql.cec.recovery.{PhysicalRules, PrepareQuery}

/**
 * The extension that Spark loads by `META-INF/services`: an analyzer rule and physical rules. The rules act only on
 * queries with our provider, our sink or a pipeline's protocol.
 */
class CecExtensions extends SparkSessionExtensionsProvider {
  override def apply(extensions: SparkSessionExtensions): Unit = {
    BuildInfo.checkSpark()
    extensions.injectPostHocResolutionRule(session => new PrepareQuery(session))
    extensions.injectColumnar(_ => new PhysicalRules)
  }
}
