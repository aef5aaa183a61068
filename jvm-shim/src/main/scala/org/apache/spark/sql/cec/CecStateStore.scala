package org.apache.spark.sql.cec

import org.apache.hadoop.conf.Configuration

import org.apache.spark.internal.Logging
import org.apache.spark.sql.catalyst.expressions.UnsafeRow
import org.apache.spark.sql.cec.agent.CecException
import org.apache.spark.sql.cec.exchange.DurableVersions
import org.apache.spark.sql.cec.state.{CommittedStores, JoinMetrics, RowLimit, StoreInputs, StoreMetrics, StoreState, StoreTurns, TaskLock}
import org.apache.spark.sql.errors.QueryExecutionErrors
import org.apache.spark.sql.execution.streaming.state._
import org.apache.spark.sql.types.StructType

/**
 * The common part of reading and writing stores: one column family, one value per key.
 *
 * A call by a thread that may outlive the task holds the monitor of `turns`, and rows are copies. Else the task's end could take the
 * windows away in the middle of the call. Spark's `TRANSFORM` makes a view in the task's thread, and uses it in another one.
 */
private[cec] abstract class CecStoreView(val id: StateStoreId, state: StoreState, turns: StoreTurns, turn: Long) extends ReadStateStore {
  /** The thread that has made the view, if the task waits for it, else null. */
  private val awaited: Thread = if (StoreTurns.mayOutliveTask) null else Thread.currentThread

  /** Whether the task may end in the middle of a call of this thread. */
  protected final def mayOutliveTask: Boolean = Thread.currentThread ne awaited

  /** Fails if the store may not be read any more. */
  protected def verifyReadable(): Unit

  override def get(key: UnsafeRow, colFamilyName: String): UnsafeRow =
    if (!mayOutliveTask) find(key, colFamilyName)
    else turns.synchronized {
      val found = find(key, colFamilyName)
      if (found == null) null else found.copy()
    }

  private def find(key: UnsafeRow, colFamilyName: String): UnsafeRow = {
    verifyReadable()
    verifyFamily(colFamilyName)
    require(key != null, "the key may not be null")
    state.live.get(key)
  }

  override def multiGet(keys: Array[UnsafeRow], colFamilyName: String): Iterator[UnsafeRow] = {
    verifyReadable()
    verifyFamily(colFamilyName)
    keys.iterator.map(get(_, colFamilyName))
  }

  override def iterator(colFamilyName: String): StateStoreIterator[UnsafeRowPair] = scan(colFamilyName, state.live.iterator)

  override def prefixScan(prefixKey: UnsafeRow, colFamilyName: String): StateStoreIterator[UnsafeRowPair] = scan(colFamilyName, {
    if (!state.hasPrefix) throw StateStoreErrors.unsupportedOperationException("prefixScan without a prefix", Unsupported.Name)
    state.live.prefixScan(prefixKey)
  })

  override def rangeScan(
      startKey: Option[UnsafeRow], endKey: Option[UnsafeRow], colFamilyName: String): StateStoreIterator[UnsafeRowPair] = scan(colFamilyName, {
    if (!state.hasOrder) throw StateStoreErrors.unsupportedOperationException("rangeScan without an order", Unsupported.Name)
    state.live.rangeScan(startKey, endKey)
  })

  private def scan(colFamilyName: String, open: => Iterator[UnsafeRowPair]): StateStoreIterator[UnsafeRowPair] = {
    def rows: Iterator[UnsafeRowPair] = {
      verifyReadable()
      verifyFamily(colFamilyName)
      open
    }
    val opened = if (mayOutliveTask) turns.synchronized(rows) else rows
    new StateStoreIterator(turns.guard(turn, opened, mayOutliveTask, verifyReadable()), () => ())
  }

  override def valuesIterator(key: UnsafeRow, colFamilyName: String): Iterator[UnsafeRow] = refuse("valuesIterator")
  override def prefixScanWithMultiValues(prefix: UnsafeRow, colFamilyName: String): StateStoreIterator[UnsafeRowPair] =
    refuse("prefixScanWithMultiValues")
  override def iteratorWithMultiValues(colFamilyName: String): StateStoreIterator[UnsafeRowPair] = refuse("iteratorWithMultiValues")
  override def allColumnFamilyNames: Set[String] = Set(StateStore.DEFAULT_COL_FAMILY_NAME)

  protected def refuse(operation: String): Nothing =
    throw StateStoreErrors.unsupportedOperationException(operation, Unsupported.Name)

  protected def verifyFamily(name: String): Unit =
    if (name != StateStore.DEFAULT_COL_FAMILY_NAME) throw StateStoreErrors.multipleColumnFamiliesNotSupported(Unsupported.Name)
}

/** A store that reads the windows of one version. */
private[cec] final class CecReadStore(
    id: StateStoreId, state: StoreState, turns: StoreTurns, turn: Long, lock: TaskLock, val version: Long)
    extends CecStoreView(id, state, turns, turn) {
  private var ended = false
  StoreInputs.look()

  override def abort(): Unit = endRead()
  override def release(): Unit = endRead()

  override protected def verifyReadable(): Unit = {
    require(!ended, s"store $id was released")
    turns.verify(turn)
  }

  private def endRead(): Unit = if (!ended) {
    ended = true
    lock.release()
  }
}

/**
 * A store that takes the windows from one version to the next.
 *
 * Commit, abort and release exclude each other. A task may commit in a thread of its own, as in `RDD.pipe`, and its end
 * does not wait for that thread.
 */
private[cec] final class CecStateStore(
    id: StateStoreId, state: StoreState, turns: StoreTurns, turn: Long, lock: TaskLock, val version: Long, storeConf: StateStoreConf, hadoopConf: Configuration,
    durable: DurableVersions)
    extends CecStoreView(id, state, turns, turn) with StateStore with Logging {
  private object Phase extends Enumeration {
    val Updating, Committed, Aborted, Released = Value
  }

  @volatile private var phase = Phase.Updating
  private val inputs = new StoreInputs
  private var updates = 0L
  private var checkpointInfo = StateStoreCheckpointInfo(id.partitionId, version, None, None)
  private var metricsAtCommit = StateStoreMetrics(0, 0, Map.empty, Map.empty)

  lock.atEnd(() => if (phase == Phase.Updating) abort())

  override def put(key: UnsafeRow, value: UnsafeRow, colFamilyName: String): Unit =
    if (mayOutliveTask) turns.synchronized(update(key, value, colFamilyName)) else update(key, value, colFamilyName)

  private def update(key: UnsafeRow, value: UnsafeRow, colFamilyName: String): Unit = {
    verifyUpdating("put")
    verifyFamily(colFamilyName)
    require(key != null, "the key may not be null")
    require(value != null, "Cannot put a null value")
    RowLimit.check(id, key, value)
    updates += 1
    state.live.put(key, value)
  }

  override def remove(key: UnsafeRow, colFamilyName: String): Unit =
    if (mayOutliveTask) turns.synchronized(drop(key, colFamilyName)) else drop(key, colFamilyName)

  private def drop(key: UnsafeRow, colFamilyName: String): Unit = {
    verifyUpdating("remove")
    verifyFamily(colFamilyName)
    require(key != null, "the key may not be null")
    state.live.remove(key)
  }

  override def commit(): Long = synchronized {
    verifyUpdating("commit")
    try {
      val named = storeConf.enableStateStoreCheckpointIds
      val committed = state.commit(inputs.facts(puts = updates, named))
      phase = Phase.Committed
      inputs.end()
      checkpointInfo = StateStoreCheckpointInfo(id.partitionId, committed, filterId(state.checkpointId), filterId(state.baseCheckpointId))
      metricsAtCommit = StoreMetrics.of(state)
      JoinMetrics.note(id, metricsAtCommit)
      CommittedStores.note(id, state.checkpointId)
      if (storeConf.commitValidationEnabled) StateStore.reportCommitToCoordinator(committed, id, hadoopConf)
      durable.note(committed)
      lock.release()
      committed
    } catch {
      case ours: CecException => throw ours // Spark's error for a failed commit would hide our message
      case failure: Throwable => throw QueryExecutionErrors.failedToCommitStateFileError(this.toString, failure)
    }
  }

  override def abort(): Unit = giveUp(Phase.Aborted)
  override def release(): Unit = giveUp(Phase.Released)

  private def giveUp(as: Phase.Value): Unit = synchronized {
    if (phase == Phase.Updating) {
      turns.synchronized {
        phase = as
        inputs.end()
        if (turns.isCurrent(turn)) state.rollback()
      }
      lock.release()
    }
  }

  override def hasCommitted: Boolean = phase == Phase.Committed

  override def metrics: StateStoreMetrics = JoinMetrics.complete(id, metricsAtCommit)

  override def getStateStoreCheckpointInfo(): StateStoreCheckpointInfo = checkpointInfo

  override def createColFamilyIfAbsent(
      colFamilyName: String, keySchema: StructType, valueSchema: StructType, keyStateEncoderSpec: KeyStateEncoderSpec,
      useMultipleValuesPerKey: Boolean, isInternal: Boolean): Unit =
    throw StateStoreErrors.multipleColumnFamiliesNotSupported(Unsupported.Name)
  override def removeColFamilyIfExists(colFamilyName: String): Boolean =
    throw StateStoreErrors.removingColumnFamiliesNotSupported(Unsupported.Name)
  override def putList(key: UnsafeRow, values: Array[UnsafeRow], colFamilyName: String): Unit = refuse("putList")
  override def merge(key: UnsafeRow, value: UnsafeRow, colFamilyName: String): Unit = refuse("merge")
  override def mergeList(key: UnsafeRow, values: Array[UnsafeRow], colFamilyName: String): Unit = refuse("mergeList")

  override def toString: String = s"CecStateStore[id = $id, version = $version]"

  override protected def verifyReadable(): Unit = {
    require(phase == Phase.Updating || phase == Phase.Committed, s"store $id was aborted or released")
    turns.verify(turn)
  }

  private def verifyUpdating(what: String): Unit = {
    if (phase != Phase.Updating) throw new IllegalStateException(s"cannot $what: store $id is $phase")
    turns.verify(turn)
  }

  private def filterId(id: Option[String]): Option[String] = if (storeConf.enableStateStoreCheckpointIds) id else None
}
