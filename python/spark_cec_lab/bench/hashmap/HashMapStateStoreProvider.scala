package org.apache.spark.sql.execution.streaming.state

import org.apache.hadoop.conf.Configuration

import org.apache.spark.sql.catalyst.expressions.UnsafeRow
import org.apache.spark.sql.types.StructType

/**
 * The benchmark's hash map of rows: a `java.util.HashMap` of row objects that keeps nothing durable, cannot roll back and knows one
 * version. It is no lower bound: a third of its task time is the map itself, and a store with a better table may be faster.
 */
class HashMapStateStoreProvider extends StateStoreProvider {
  private var id: StateStoreId = _
  private val rows = new java.util.HashMap[UnsafeRow, UnsafeRow]()
  private var newest = 0L

  override def init(
      stateStoreId: StateStoreId, keySchema: StructType, valueSchema: StructType, keyStateEncoderSpec: KeyStateEncoderSpec,
      useColumnFamilies: Boolean, storeConf: StateStoreConf, hadoopConf: Configuration, useMultipleValuesPerKey: Boolean,
      stateSchemaProvider: Option[StateSchemaProvider]): Unit = {
    require(!useColumnFamilies && !useMultipleValuesPerKey, "the hash map has one value for a key")
    id = stateStoreId
  }

  override def stateStoreId: StateStoreId = id

  override def getStore(version: Long, ckptId: Option[String], forceSnapshot: Boolean, loadEmpty: Boolean): StateStore = {
    require(version == newest, s"the hash map has version $newest, not $version: it cannot go back")
    new HashMapStore(version)
  }

  override def getReadStore(version: Long, ckptId: Option[String]): ReadStateStore = getStore(version, ckptId, false, false)

  override def close(): Unit = rows.clear()

  override def supportedCustomMetrics: Seq[StateStoreCustomMetric] = Nil

  private final class HashMapStore(val version: Long) extends StateStore {
    private var committed = false

    override def id: StateStoreId = stateStoreId
    override def get(key: UnsafeRow, family: String): UnsafeRow = rows.get(key)
    override def multiGet(keys: Array[UnsafeRow], family: String): Iterator[UnsafeRow] = keys.iterator.map(rows.get)
    override def put(key: UnsafeRow, value: UnsafeRow, family: String): Unit = {
      val kept = value.copy()
      if (rows.replace(key, kept) == null) rows.put(key.copy(), kept)
    }
    override def remove(key: UnsafeRow, family: String): Unit = rows.remove(key)

    override def iterator(family: String): StateStoreIterator[UnsafeRowPair] = {
      val pair = new UnsafeRowPair()
      // Who goes over it removes on the way.
      val entries = rows.entrySet.toArray(new Array[java.util.Map.Entry[UnsafeRow, UnsafeRow]](0)).iterator
      new StateStoreIterator(entries.map(entry => pair.withRows(entry.getKey, entry.getValue)), () => ())
    }

    override def commit(): Long = {
      committed = true
      newest = version + 1
      newest
    }
    override def abort(): Unit = ()
    override def release(): Unit = ()
    override def hasCommitted: Boolean = committed
    override def metrics: StateStoreMetrics = StateStoreMetrics(rows.size, 0, Map.empty, Map.empty)
    override def getStateStoreCheckpointInfo(): StateStoreCheckpointInfo = StateStoreCheckpointInfo(id.partitionId, newest, None, None)
    override def allColumnFamilyNames: Set[String] = Set(StateStore.DEFAULT_COL_FAMILY_NAME)

    override def prefixScan(prefix: UnsafeRow, family: String): StateStoreIterator[UnsafeRowPair] = refuse()
    override def rangeScan(start: Option[UnsafeRow], end: Option[UnsafeRow], family: String): StateStoreIterator[UnsafeRowPair] = refuse()
    override def valuesIterator(key: UnsafeRow, family: String): Iterator[UnsafeRow] = refuse()
    override def prefixScanWithMultiValues(prefix: UnsafeRow, family: String): StateStoreIterator[UnsafeRowPair] = refuse()
    override def iteratorWithMultiValues(family: String): StateStoreIterator[UnsafeRowPair] = refuse()
    override def createColFamilyIfAbsent(
        family: String, keySchema: StructType, valueSchema: StructType, spec: KeyStateEncoderSpec, multiple: Boolean, internal: Boolean): Unit =
      refuse()
    override def removeColFamilyIfExists(family: String): Boolean = refuse()
    override def putList(key: UnsafeRow, values: Array[UnsafeRow], family: String): Unit = refuse()
    override def merge(key: UnsafeRow, value: UnsafeRow, family: String): Unit = refuse()
    override def mergeList(key: UnsafeRow, values: Array[UnsafeRow], family: String): Unit = refuse()

    private def refuse(): Nothing = throw new UnsupportedOperationException("the hash map has puts, gets, removals and whole scans")
  }
}
