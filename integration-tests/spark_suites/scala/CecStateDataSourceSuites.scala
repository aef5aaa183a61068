package org.apache.spark.sql.cec.suites

import org.apache.spark.sql.execution.datasources.v2.state.{StateDataSourceChangeDataReaderSuite, StateDataSourceReadSuite}
import org.apache.spark.sql.execution.streaming.state.StateStoreProvider

/** Spark's `statestore` reader over checkpoints of the provider that the session is configured with. */
class CecStateDataSourceReadSuite extends StateDataSourceReadSuite {
  override protected def newStateStoreProvider(): StateStoreProvider =
    StateStoreProvider.create(spark.sessionState.conf.stateStoreProviderClass)
}

/** Its change feed. */
class CecStateDataSourceChangesSuite extends StateDataSourceChangeDataReaderSuite {
  override protected def newStateStoreProvider(): StateStoreProvider =
    StateStoreProvider.create(spark.sessionState.conf.stateStoreProviderClass)
}
