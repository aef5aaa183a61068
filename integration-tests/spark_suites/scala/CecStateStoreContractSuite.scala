package org.apache.spark.sql.cec.suites

import java.io.File

import scala.util.{Random, Try}

import org.apache.hadoop.conf.Configuration
import org.scalactic.source
import org.scalatest.{BeforeAndAfter, Tag}

import org.apache.spark.sql.catalyst.util.quietly
import org.apache.spark.sql.execution.streaming.state._
import org.apache.spark.sql.internal.SQLConf
import org.apache.spark.sql.test.SharedSparkSession
import org.apache.spark.sql.types.StructType
import org.apache.spark.util.Utils

/** Spark's contract of a state store, with the provider that the session is configured with. */
class CecStateStoreContractSuite extends StateStoreSuiteBase[StateStoreProvider] with SharedSparkSession with BeforeAndAfter {
  import StateStoreTestsHelper._

  private val NewestVersionTried = 64

  /** What does not link with this release of Spark is the failure of one test, not the end of the run. */
  override protected def test(name: String, tags: Tag*)(body: => Any)(implicit position: source.Position): Unit =
    super.test(name, tags: _*)(try body catch { case problem: LinkageError => fail(problem.toString, problem) })

  before(StateStore.stop())
  after(StateStore.stop())

  override def newStoreProvider(): StateStoreProvider = newStoreProvider(newId())

  override def newStoreProvider(id: StateStoreId): StateStoreProvider = make(id)

  override def newStoreProvider(id: StateStoreId, useColumnFamilies: Boolean): StateStoreProvider =
    make(id, useColumnFamilies = useColumnFamilies)

  override def newStoreProvider(id: StateStoreId, conf: Configuration): StateStoreProvider = make(id, hadoopConf = conf)

  override def newStoreProvider(minDeltasForSnapshot: Int, numOfVersToRetainInMemory: Int): StateStoreProvider =
    make(newId(), conf = getDefaultSQLConf(minDeltasForSnapshot, numOfVersToRetainInMemory))

  override def newStoreProvider(
      keySchema: StructType,
      encoder: KeyStateEncoderSpec,
      useColumnFamilies: Boolean): StateStoreProvider =
    make(newId(), keySchema, encoder, useColumnFamilies)

  override def newStoreProvider(useColumnFamilies: Boolean): StateStoreProvider =
    make(newId(), useColumnFamilies = useColumnFamilies)

  override def newStoreProviderWithClonedConf(id: StateStoreId): StateStoreProvider = make(id, conf = cloneSQLConf())

  override def newStoreProviderNoInit(): StateStoreProvider = StateStoreProvider.create(sqlConf.stateStoreProviderClass)

  override def getLatestData(provider: StateStoreProvider, useColumnFamilies: Boolean): Set[((String, Int), Int)] =
    getData(provider, -1, useColumnFamilies)

  /** What a new provider, which must load it, finds at `version`; -1 is the newest that can be loaded. */
  override def getData(provider: StateStoreProvider, version: Int, useColumnFamilies: Boolean): Set[((String, Int), Int)] =
    tryWithProviderResource(newStoreProvider(provider.stateStoreId, useColumnFamilies)) { reloaded =>
      val wanted = if (version >= 0) version else newestVersion(provider.stateStoreId, useColumnFamilies)
      val store = reloaded.getReadStore(wanted)
      try store.iterator().map(rowPairToDataPair).toSet finally store.release()
    }

  override def getDefaultSQLConf(minDeltasForSnapshot: Int, numOfVersToRetainInMemory: Int): SQLConf = {
    val conf = sqlConf.clone()
    conf.setConf(SQLConf.STATE_STORE_MIN_DELTAS_FOR_SNAPSHOT, minDeltasForSnapshot)
    conf.setConf(SQLConf.MAX_BATCHES_TO_RETAIN_IN_MEMORY, numOfVersToRetainInMemory)
    conf.setConf(SQLConf.MIN_BATCHES_TO_RETAIN, 2)
    conf
  }

  private def newestVersion(id: StateStoreId, useColumnFamilies: Boolean): Int =
    NewestVersionTried.to(0, -1).find { version =>
      Try(tryWithProviderResource(newStoreProvider(id, useColumnFamilies))(_.getReadStore(version).release())).isSuccess
    }.getOrElse(throw new IllegalStateException(s"no version of $id can be loaded"))

  override protected def sqlConf: SQLConf = spark.sessionState.conf

  override protected def testQuietly(name: String)(body: => Unit): Unit = test(name)(quietly(body))

  /** A store's checkpoint root is `<checkpoint>/state`. */
  private def newId(): StateStoreId =
    StateStoreId(new File(Utils.createTempDir(), "state").getAbsolutePath, Random.nextInt(Int.MaxValue), 0)

  private def make(
      id: StateStoreId,
      keys: StructType = keySchema,
      encoder: KeyStateEncoderSpec = NoPrefixKeyStateEncoderSpec(keySchema),
      useColumnFamilies: Boolean = false,
      conf: SQLConf = getDefaultSQLConf(
        SQLConf.STATE_STORE_MIN_DELTAS_FOR_SNAPSHOT.defaultValue.get,
        SQLConf.MAX_BATCHES_TO_RETAIN_IN_MEMORY.defaultValue.get),
      hadoopConf: Configuration = new Configuration()): StateStoreProvider = {
    val provider = newStoreProviderNoInit()
    provider.init(
      id, keys, valueSchema, encoder, useColumnFamilies, new StateStoreConf(conf), hadoopConf,
      useMultipleValuesPerKey = false, stateSchemaProvider = None)
    provider
  }
}
