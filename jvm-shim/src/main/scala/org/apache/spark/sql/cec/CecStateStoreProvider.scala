package org.apache.spark.sql.cec

import scala.util.control.NonFatal

import org.apache.hadoop.conf.Configuration

import org.apache.spark.TaskContext
import org.apache.spark.internal.Logging
import org.apache.spark.sql.catalyst.CatalystTypeConverters
import org.apache.spark.sql.catalyst.expressions.{BoundReference, UnsafeProjection, UnsafeRow}
import org.apache.spark.sql.cec.agent.{Agent, DurableCommit, ResolveRequest}
import org.apache.spark.sql.cec.exchange.{DurableVersions, HostedStore, LocalStores}
import org.apache.spark.sql.cec.state.{
  ExactAverages, LoadFailure, PageMemory, PartitionDirectory, RangeOrder, Recovery, RowDigest, AgentStoreClient, StoreMetrics, StoreState, StoreTurns, TaskLock, UnwrittenCommit}
import org.apache.spark.sql.execution.streaming.state._
import org.apache.spark.sql.types.StructType

/**
 * The state store provider of Spark CEC: one instance per state store and run of a query.
 *
 * The provider has the windows of one version in memory and obeys the contract of [[StateStore]]. The agent makes
 * commits durable. Spark makes this class by name, on the driver only to ask for its metrics. So the provider does
 * nothing before `init`.
 */
class CecStateStoreProvider extends StateStoreProvider with HostedStore with Logging {
  private var id: StateStoreId = _
  private var keySchema: StructType = _
  private var valueSchema: StructType = _
  private var encoder: KeyStateEncoderSpec = _
  private var storeConf: StateStoreConf = _
  private var hadoopConf: Configuration = _
  private var state: StoreState = _
  @volatile private var run: Option[RunContext] = None
  private lazy val directory = new PartitionDirectory(id, hadoopConf)
  private lazy val durable = new DurableVersions(id, storeConf, hadoopConf)
  private lazy val turns = new StoreTurns(id)
  private lazy val lock = new TaskLock(id.toString, StoreConfs.lockTimeoutMs(storeConf))

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
    directory.make()
    val (begun, turn) = begin(version, stateStoreCkptId, loadEmpty, turns.beginWrite())
    new CecStateStore(id, begun, turns, turn, lock, version, storeConf, hadoopConf, durable)
  }

  override def getReadStore(version: Long, stateStoreCkptId: Option[String]): ReadStateStore = {
    val (begun, turn) = begin(version, stateStoreCkptId, empty = false, turns.beginRead())
    new CecReadStore(id, begun, turns, turn, lock, version)
  }

  override def supportedCustomMetrics: Seq[StateStoreCustomMetric] = StoreMetrics.all

  override def checkpoint: String = StoreConfs.checkpointOf(id)

  override def generation: Option[Long] = run.map(_.generation)

  override def agentConf: Map[String, String] = storeConf.sqlConfs

  override def home: String = run.map(_.home).getOrElse("")

  override def unwritten(version: Long): Option[UnwrittenCommit] = Option(state).flatMap(_.unwritten(version))

  override def noteWritten(commit: UnwrittenCommit, answer: DurableCommit): Unit = state.noteWritten(commit, answer)

  override def writtenCommit(version: Long): Option[String] = Option(state).flatMap(_.writtenCommit(version))

  override def forget(): Unit = dropState()

  override def flush(version: Long): Unit = exclusively(flushState(version))

  override def handOver(version: Long): Boolean = exclusively {
    val here = Option(state).exists(_.writeWhole(version))
    if (here) dropState()
    here
  }

  override def end(version: Long, write: Boolean): Unit = exclusively(try if (write) flushState(version) finally dropState())

  private def flushState(version: Long): Unit = Option(state).foreach(known => known.rewindTo(version).foreach(known.flush))

  override def exclusively[A](body: => A): A = {
    lock.acquire()
    try synchronized(body) finally lock.release()
  }

  /**
   * Writes the dirty windows, because Spark may close a store that another executor is about to request. A query that
   * has ended has flushed already. Spark closes a store once: one that a task uses for longer is closed at the end of that task.
   */
  override def close(): Unit = if (!lock.whenFree(synchronized(settle()))) logWarning(s"store $id is in use, and is closed when its task ends")

  private def settle(): Unit = try if (state != null) state.settle() catch {
    case NonFatal(failure) => logWarning(s"store $id is closed with windows that are not in the log: a restart of its query replays them", failure)
  } finally dropState()

  override def toString: String = s"CecStateStoreProvider[id = $id]"

  /**
   * Brings the store to `version` and begins a batch, and a turn.
   *
   * @param empty whether the next version starts without windows, for a caller that rewrites a state
   */
  private def begin(version: Long, checkpointId: Option[String], empty: Boolean, beginTurn: => Long): (StoreState, Long) = {
    if (version < 0) throw LoadFailure.negative(id, version)
    lock.acquire()
    // A late attempt of an old batch would take the newest windows away. What fails behind this line drops them, too.
    Option(TaskContext.get()).foreach(_.killTaskIfInterrupted())
    try {
      synchronized(turns.synchronized {
        LoadFailure.orResult(checkpoint, hadoopConf) {
          val isNew = state == null
          if (!isNew && run.isDefined) LocalStores.announce()
          if (isNew) state = openState(if (empty) 0L else version)
          if (empty) state.beginEmpty(version) else state.begin(version, checkpointId)
          if (isNew) validateFirstRow()
        }
        (state, beginTurn)
      })
    } catch {
      case failure: Throwable =>
        // If the store refused its replay, keep it, so that a retried task gets the same error.
        try if (state == null || !state.isRefused) dropState() finally lock.release()
        throw failure
    }
  }

  /**
   * Checks the first loaded row as Spark's own providers do. If the schema changed behind Spark's check, reads would
   * return garbage.
   */
  private def validateFirstRow(): Unit =
    state.live.iterator.nextOption().foreach(row => StateStoreProvider.validateStateRowFormat(row.key, keySchema, row.value, valueSchema, id, storeConf))

  /** Drops the windows and closes the log. */
  private def dropState(): Unit = synchronized {
    val dropped = Option(state)
    state = null
    LocalStores.remove(this)
    turns.synchronized {
      turns.end()
      dropped.foreach(_.close())
    }
  }

  private def openState(version: Long): StoreState = {
    val conf = storeConf.sqlConfs
    directory.verifyAll(checkpoint, version, conf)
    run = RunContext.ofTask(checkpoint, hadoopConf)
    val (home, logId, generation) = run.map(r => (r.home, Option(r.logId), r.generation)).getOrElse {
      val known = Agent.call(ResolveRequest(checkpoint, conf), conf)
      (known.home, known.logId, known.generation)
    }
    val prefix = encoder match {
      case spec: PrefixKeyScanStateEncoderSpec => Some((spec.numColsPrefixKey, prefixOf(spec)))
      case _ => None
    }
    val order = encoder match {
      case spec: RangeKeyScanStateEncoderSpec => Some(new RangeOrder(keySchema, spec.orderingOrdinals))
      case _ => None
    }
    val acquired = new Acquired
    val log = new AgentStoreClient(id, home, logId, generation, prefix.isDefined, storeConf.minVersionsToRetain, run, conf)
    acquired.undo(log.close())
    if (run.isDefined) LocalStores.add(this)
    acquired.step(new StoreState(
      id, log, keySchema.length, valueSchema.length, prefix, order, new RowDigest(valueSchema), ExactAverages.of(valueSchema),
      deferred = run.exists(r => r.deferred.contains(id.operatorId) && id.storeName == StateStoreId.DEFAULT_STORE_NAME),
      run.fold(Recovery(0L, 0L, counted = false, accept = false))(r =>
        Recovery(r.replayTo, r.base, r.counted.contains(id.operatorId), r.accept)),
      version => run.isDefined && LocalStores.requestHandOver(this, version),
      describe,
      PageMemory.limitedTo(StoreConfs.memoryBytes(conf)),
      silent = run.exists(_.silent),
      together = run.exists(_.together)))
  }

  /** Turns the id of a window, its key or its prefix, into text for people. */
  private lazy val describe: UnsafeRow => String = {
    val schema = encoder match {
      case spec: PrefixKeyScanStateEncoderSpec => StructType(keySchema.take(spec.numColsPrefixKey))
      case _ => keySchema
    }
    val convert = CatalystTypeConverters.createToScalaConverter(schema)
    row => String.valueOf(convert(row))
  }

  private def prefixOf(spec: PrefixKeyScanStateEncoderSpec): UnsafeRow => UnsafeRow = {
    val columns = (0 until spec.numColsPrefixKey).map(i => BoundReference(i, keySchema(i).dataType, keySchema(i).nullable))
    val projection = UnsafeProjection.create(columns)
    projection(_)
  }
}

/** The confs of Spark that this provider reads. */
private[cec] object StoreConfs {
  private val MemoryKey = "spark.sql.streaming.stateStore.cec.memory"
  private val Units = Map("" -> 0, "b" -> 0, "kb" -> 10, "kib" -> 10, "mb" -> 20, "mib" -> 20, "gb" -> 30, "gib" -> 30)
  private val Share = raw"\s*(\d+)\s*%\s*".r
  private val Size = raw"\s*(\d+)\s*([a-z]*)\s*".r
  private val LockTimeoutKey = "spark.sql.streaming.stateStore.rocksdb.lockAcquireTimeoutMs"

  /** How long a task waits for the store: RocksDB's setting, under its key. */
  def lockTimeoutMs(conf: StateStoreConf): Long = conf.sqlConfs.get(LockTimeoutKey).map(_.toLong).getOrElse(60000L)

  /** The heap that the pages of all stores of this JVM may take: by default half of it. The agent has checked the setting. */
  def memoryBytes(conf: Map[String, String]): Long = conf.getOrElse(MemoryKey, "50%").toLowerCase(java.util.Locale.ROOT) match {
    case Share(percent) => Runtime.getRuntime.maxMemory / 100 * percent.toLong
    case Size(number, unit) => number.toLong << Units(unit)
    case other => throw new IllegalArgumentException(s"$MemoryKey=$other is neither a size nor a share of the heap")
  }

  /** The query's checkpoint location, which has the stores in `<checkpoint>/state`. */
  def checkpointOf(id: StateStoreId): String = new org.apache.hadoop.fs.Path(id.checkpointRootLocation).getParent.toString
}

/** The features that this provider lacks. `init` refuses them. */
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
