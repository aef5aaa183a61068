package org.apache.spark.sql.cec

import org.apache.hadoop.conf.Configuration

import org.apache.spark.TaskContext
import org.apache.spark.internal.Logging
import org.apache.spark.sql.catalyst.expressions.{BoundReference, UnsafeProjection, UnsafeRow}
import org.apache.spark.sql.cec.agent.{Agent, Json}
import org.apache.spark.sql.cec.state.{Lease, RangeOrder, StoreLog, StoreMetrics, StoreState}
import org.apache.spark.sql.execution.streaming.state._
import org.apache.spark.sql.types.{DoubleType, FloatType, StructType}

/**
 * The state store provider of Spark CEC: one instance per state store and run of a query.
 *
 * It holds the windows of one version in memory and obeys the contract of [[StateStore]]; what is durable is the agent's.
 * A class that Spark makes by name, and also on the driver, only to ask for its metrics: nothing happens before `init`.
 */
class CecStateStoreProvider extends StateStoreProvider with Logging {
  private var id: StateStoreId = _
  private var keySchema: StructType = _
  private var valueSchema: StructType = _
  private var encoder: KeyStateEncoderSpec = _
  private var storeConf: StateStoreConf = _
  private var hadoopConf: Configuration = _
  private var state: StoreState = _
  private lazy val lease = new Lease(id.toString, StoreConfs.leaseTimeoutMs(storeConf))

  override def init(
      stateStoreId: StateStoreId,
      keySchema: StructType,
      valueSchema: StructType,
      keyStateEncoderSpec: KeyStateEncoderSpec,
      useColumnFamilies: Boolean,
      storeConf: StateStoreConf,
      hadoopConf: Configuration,
      useMultipleValuesPerKey: Boolean,
      stateSchemaProvider: Option[StateSchemaProvider]): Unit = {
    BuildInfo.checkSpark()
    Unsupported.refuse(keyStateEncoderSpec, useColumnFamilies, useMultipleValuesPerKey)
    this.id = stateStoreId
    this.keySchema = keySchema
    this.valueSchema = valueSchema
    this.encoder = keyStateEncoderSpec
    this.storeConf = storeConf
    this.hadoopConf = hadoopConf
  }

  override def stateStoreId: StateStoreId = id

  override def getStore(
      version: Long,
      stateStoreCkptId: Option[String],
      forceSnapshotOnCommit: Boolean,
      loadEmpty: Boolean): StateStore = {
    if (loadEmpty) throw StateStoreErrors.unsupportedOperationException("getStore with loadEmpty", Unsupported.Name)
    new CecStateStore(id, begin(version, stateStoreCkptId), lease, version, storeConf, hadoopConf)
  }

  override def getReadStore(version: Long, stateStoreCkptId: Option[String]): ReadStateStore =
    new CecReadStore(id, begin(version, stateStoreCkptId), lease, version)

  override def supportedCustomMetrics: Seq[StateStoreCustomMetric] = StoreMetrics.all

  override def close(): Unit = synchronized { state = null }

  override def toString: String = s"CecStateStoreProvider[id = $id]"

  private def begin(version: Long, checkpointId: Option[String]): StoreState = {
    if (version < 0) throw new IllegalArgumentException(s"store $id: version $version is negative")
    lease.acquire()
    try {
      synchronized {
        if (state == null) state = open()
        state.begin(version, checkpointId)
        state
      }
    } catch {
      case failure: Throwable =>
        synchronized { state = null }
        lease.release()
        throw failure
    }
  }

  private def open(): StoreState = {
    val conf = storeConf.sqlConfs
    val checkpoint = StoreConfs.checkpointOf(id)
    val run = RunContext.ofTask(checkpoint)
    val (home, generation) = run.map(r => (r.home, r.generation)).getOrElse {
      val arguments = Json.obj().put("checkpoint", checkpoint)
      arguments.set[com.fasterxml.jackson.databind.JsonNode]("conf", Json.map(conf))
      val answer = Agent.call("resolve", arguments, conf)
      (answer.get("home").asText, answer.get("generation").asLong)
    }
    val prefix = encoder match {
      case spec: PrefixKeyScanStateEncoderSpec => Some((spec.numColsPrefixKey, prefixOf(spec)))
      case _ => None
    }
    val order = encoder match {
      case spec: RangeKeyScanStateEncoderSpec => Some(new RangeOrder(keySchema, spec.orderingOrdinals))
      case _ => None
    }
    val log = new StoreLog(id, home, generation, prefix.isDefined, storeConf.minVersionsToRetain, run, conf)
    new StoreState(
      id, log, keySchema.length, valueSchema.length, prefix, order,
      exact = !valueSchema.existsRecursively(kind => kind == FloatType || kind == DoubleType),
      deferred = run.exists(r => r.deferred.contains(id.operatorId) && id.storeName == StateStoreId.DEFAULT_STORE_NAME),
      replayTo = run.map(_.replayTo).getOrElse(0L))
  }

  private def prefixOf(spec: PrefixKeyScanStateEncoderSpec): UnsafeRow => UnsafeRow = {
    val columns = (0 until spec.numColsPrefixKey).map(i => BoundReference(i, keySchema(i).dataType, keySchema(i).nullable))
    val projection = UnsafeProjection.create(columns)
    projection(_)
  }
}

/** What Spark tells a store by conf. */
private[cec] object StoreConfs {
  private val LeaseTimeoutKey = "spark.sql.streaming.stateStore.rocksdb.lockAcquireTimeoutMs"

  /** How long a task waits for another one to let go of a store: the same as RocksDB's, under its key. */
  def leaseTimeoutMs(conf: StateStoreConf): Long = conf.sqlConfs.get(LeaseTimeoutKey).map(_.toLong).getOrElse(60000L)

  /** The query's checkpoint location, from a store's: `<checkpoint>/state`. */
  def checkpointOf(id: StateStoreId): String = new org.apache.hadoop.fs.Path(id.checkpointRootLocation).getParent.toString
}

/** What this provider does not do, refused when a store is made. */
private[cec] object Unsupported {
  val Name = "CecStateStoreProvider"

  def refuse(encoder: KeyStateEncoderSpec, columnFamilies: Boolean, multipleValues: Boolean): Unit = {
    if (columnFamilies) throw StateStoreErrors.multipleColumnFamiliesNotSupported(Name)
    if (multipleValues) throw StateStoreErrors.unsupportedOperationException("multipleValuesPerKey", Name)
    encoder match {
      case _: NoPrefixKeyStateEncoderSpec | _: PrefixKeyScanStateEncoderSpec | _: RangeKeyScanStateEncoderSpec =>
      case other => throw StateStoreErrors.unsupportedOperationException(other.getClass.getSimpleName, Name)
    }
  }
}
