package org.apache.spark.sql.cec.state

import java.io.File
import java.nio.ByteBuffer
import java.util.{ArrayList, TreeMap}

import scala.collection.mutable
import scala.jdk.CollectionConverters._

import org.rocksdb._

import org.apache.spark.{SparkConf, SparkEnv}
import org.apache.spark.sql.cec.Acquired
import org.apache.spark.sql.cec.agent.CecException
import org.apache.spark.sql.execution.streaming.state.RocksDBLoader
import org.apache.spark.util.Utils

/**
 * The windows that no batch touched lately, on the local disk, so that the state may be larger than the heap.
 *
 * A window is either here or in the table, never in both. The log is the truth: a store that loads begins with an
 * empty directory.
 *
 * A RocksDB with three column families has the windows: rows by window id, ids by footprint, and ids by the batch that
 * dirtied them.
 *
 * @param keyFields fields of a state key
 * @param valueFields fields of a value
 * @param grouped whether a window may have several rows
 */
private[state] final class ColdWindows(keyFields: Int, valueFields: Int, grouped: Boolean) {
  import ColdWindows._

  private var directory: File = _
  private val families = new ArrayList[ColumnFamilyHandle]()
  private var options: NativeOptions = _
  private var db: RocksDB = _
  private val openIterators = mutable.Set.empty[RocksIterator]

  /** Ids by footprint, and ids by the batch that dirtied the window. */
  val byFootprint = new Index(1, _.footprint)
  val byDirty = new Index(2, _.dirtySince)
  private val indexes = Seq(byFootprint, byDirty)

  /** The ids of the windows by a version that they carry, and the number of windows per version. */
  final class Index private[ColdWindows] (familyIndex: Int, versionOf: Window => Long) {
    private[ColdWindows] val counted = new TreeMap[java.lang.Long, Array[Int]]()
    private def family = families.get(familyIndex)

    def counts: Iterator[(Long, Int)] = counted.asScala.iterator.map { case (version, n) => version.longValue -> n(0) }

    /** The ids of the windows that carry `version` at the time of the call. */
    def at(version: Long): Iterator[Array[Byte]] =
      if (!counted.containsKey(version)) Iterator.empty
      else {
        val first = ByteBuffer.allocate(8).putLong(version).array
        scan(family, first).map(_._1).takeWhile(key => ByteBuffer.wrap(key).getLong == version).map(key => java.util.Arrays.copyOfRange(key, 8, key.length))
      }

    private[ColdWindows] def add(batch: WriteBatch, window: Window, id: Array[Byte]): Unit = if (versionOf(window) != Window.Clean)
      batch.put(family, entry(window, id), Nothing)

    /** Adds windows, which are sorted by id. */
    private[ColdWindows] def add(sorted: Array[Row]): Unit = ingest(
      family,
      sorted.filter(row => versionOf(row.window) != Window.Clean).sortBy(row => versionOf(row.window)).iterator
        .map(row => entry(row.window, row.id) -> Nothing))

    private[ColdWindows] def remove(window: Window, id: Array[Byte]): Unit = if (versionOf(window) != Window.Clean)
      db.singleDelete(family, options.writeOptions, entry(window, id))

    private[ColdWindows] def countWindow(window: Window, change: Int): Unit = if (versionOf(window) != Window.Clean) {
      val n = counted.computeIfAbsent(versionOf(window), _ => new Array[Int](1))
      n(0) += change
      if (n(0) == 0) counted.remove(versionOf(window))
    }

    private def entry(window: Window, id: Array[Byte]): Array[Byte] =
      ByteBuffer.allocate(8 + id.length).putLong(versionOf(window)).put(id).array
  }

  /** Removes the window with this id and returns it; null if it is not here. */
  def take(id: Array[Byte]): Window = if (db == null) null else explainFailure {
    val found = db.get(rowFamily, id)
    if (found == null) null
    else {
      val window = decodeWindow(id, found)
      db.singleDelete(rowFamily, options.writeOptions, id)
      indexes.foreach(_.remove(window, id))
      countWindow(window, -1)
      window
    }
  }

  /** Adds windows. If this fails, some windows are in both places, and the caller must load the store again. */
  def give(windows: Iterator[Window]): Unit = windows.grouped(WrittenAtOnce).foreach { some =>
    if (db == null) open()
    explainFailure {
      val batch = new WriteBatch()
      try {
        some.foreach { window =>
          val id = window.id
          batch.put(rowFamily, id, ColdWindows.encodeWindow(window))
          indexes.foreach(_.add(batch, window, id))
        }
        db.write(options.writeOptions, batch)
      } finally batch.close()
      some.foreach(countWindow(_, 1))
    }
  }

  /**
   * Adds the many windows of a load, as sorted files that RocksDB takes as they are. If windows came one by one,
   * RocksDB would sort them in memory, write them, and merge small files.
   */
  def giveMany(windows: Iterator[Window]): Unit = {
    if (db == null) open()
    explainFailure {
      val sorted = windows.map(window => new Row(window.id, window)).toArray
      java.util.Arrays.sort(sorted, (a: Row, b: Row) => java.util.Arrays.compareUnsigned(a.id, b.id))
      ingest(rowFamily, sorted.iterator.map(row => row.id -> ColdWindows.encodeWindow(row.window)))
      indexes.foreach(_.add(sorted))
      sorted.foreach(row => countWindow(row.window, 1))
    }
  }

  /** All windows at the time of the call. The windows are copies: a change to one is lost. */
  def iterator: Iterator[(Array[Byte], Window)] = if (db == null) Iterator.empty else scan(rowFamily, Nothing).map { case (id, row) => id -> decodeWindow(id, row) }

  /** Frees the iterators that no reader read to the end. Call it between batches only. */
  def closeIterators(): Unit = {
    openIterators.foreach(_.close())
    openIterators.clear()
  }

  /** Removes all windows and the directory. */
  def clear(): Unit = if (db != null) {
    closeIterators()
    families.forEach(_.close())
    families.clear()
    db.close()
    options.close()
    db = null
    indexes.foreach(_.counted.clear())
    Utils.deleteRecursively(directory)
  }

  private def open(): Unit = {
    val acquired = new Acquired
    directory = Utils.createExecutorLocalTempDir(Option(SparkEnv.get).map(_.conf).getOrElse(new SparkConf), "cec-live")
    acquired.undo(Utils.deleteRecursively(directory))
    acquired.step(explainFailure {
      RocksDBLoader.loadLibrary()
      options = acquired(new NativeOptions)
      val names = Seq("default", "footprint", "dirty").map(name => new ColumnFamilyDescriptor(name.getBytes, options.familyOptions))
      db = RocksDB.open(options.databaseOptions, directory.getPath, names.asJava, families)
    })
  }

  private def ingest(family: ColumnFamilyHandle, sorted: Iterator[(Array[Byte], Array[Byte])]): Unit = if (sorted.hasNext) {
    val file = new File(directory, "load.sst").getPath
    val writer = new SstFileWriter(options.envOptions, options.fileOptions)
    try {
      writer.open(file)
      sorted.foreach { case (key, value) => writer.put(key, value) }
      writer.finish()
    } finally writer.close()
    db.ingestExternalFile(family, java.util.List.of(file), options.ingestOptions)
  }

  private def rowFamily = families.get(0)

  private def countWindow(window: Window, change: Int): Unit = indexes.foreach(_.countWindow(window, change))

  private def decodeWindow(id: Array[Byte], row: Array[Byte]): Window = {
    val hash = Window.row(id, 0).hashCode
    // The caller may use the buffer of the id again.
    val window = if (grouped) new GroupWindow(id.clone, hash) else new KeyWindow(id.length, hash)
    val from = ByteBuffer.wrap(row)
    window.footprint = from.getLong
    window.dirtySince = from.getLong
    window match {
      case one: KeyWindow => one.put(ByteBuffer.allocate(id.length + from.remaining).put(id).put(from).array)
      case group: GroupWindow =>
        while (from.hasRemaining) {
          val (key, value) = (new Array[Byte](from.getInt), new Array[Byte](from.getInt))
          from.get(key).get(value)
          group.rows.put(Window.row(key, keyFields), Window.row(value, valueFields))
        }
    }
    window
  }

  private def scan(family: ColumnFamilyHandle, from: Array[Byte]): Iterator[(Array[Byte], Array[Byte])] = {
    val cursor = db.newIterator(family)
    openIterators += cursor
    cursor.seek(from)
    new Iterator[(Array[Byte], Array[Byte])] {
      override def hasNext: Boolean = cursor.isOwningHandle && {
        val more = cursor.isValid
        if (!more) {
          explainFailure(cursor.status())
          cursor.close()
          openIterators -= cursor
        }
        more
      }
      override def next(): (Array[Byte], Array[Byte]) = {
        if (!hasNext) throw new NoSuchElementException("no more windows")
        val found = (cursor.key, cursor.value)
        cursor.next()
        found
      }
    }
  }

  private def explainFailure[A](body: => A): A = try body catch {
    case failure: RocksDBException =>
      throw new CecException("LiveStore",
        s"the windows on the local disk, in $directory, cannot be read or written (${failure.getMessage}): see to the room in spark.local.dir; " +
          "a restart of the query loads them anew from its log", failure)
  }
}

private[state] object ColdWindows {
  private val Nothing = Array.emptyByteArray
  private val WrittenAtOnce = 4096

  /** For all stores of the JVM together: cached blocks and unwritten buffers. */
  private val MemoryBytes = 256L << 20
  private lazy val cache = new LRUCache(MemoryBytes)
  private lazy val buffers = new WriteBufferManager(MemoryBytes / 2, cache)

  private final class Row(val id: Array[Byte], val window: Window)

  /** The options of RocksDB, which live in native memory. */
  private final class NativeOptions extends AutoCloseable {
    private val owned = mutable.ArrayBuffer.empty[AutoCloseable]

    val databaseOptions: DBOptions = addOwned(new DBOptions().setCreateIfMissing(true).setCreateMissingColumnFamilies(true).setWriteBufferManager(buffers)
      .setInfoLogLevel(InfoLogLevel.ERROR_LEVEL).setKeepLogFileNum(1).setMaxBackgroundJobs(2))

    /**
     * Filters stay out of the cache: the filter of a file of a million windows is larger than a shard of the cache.
     *
     * A filter takes 1.25 bytes a key. With filters, a read opens one file, however many files there are. So RocksDB
     * may merge late, and writes never wait for a merge.
     */
    val familyOptions: ColumnFamilyOptions = addOwned(new ColumnFamilyOptions().setCompressionType(CompressionType.LZ4_COMPRESSION)
      .setLevel0FileNumCompactionTrigger(8).setLevel0SlowdownWritesTrigger(64).setLevel0StopWritesTrigger(128)
      .setSoftPendingCompactionBytesLimit(0).setHardPendingCompactionBytesLimit(0)
      .setTableFormatConfig(new BlockBasedTableConfig().setBlockCache(cache).setFilterPolicy(addOwned(new BloomFilter(10)))))

    val writeOptions: WriteOptions = addOwned(new WriteOptions().setDisableWAL(true))
    val envOptions: EnvOptions = addOwned(new EnvOptions)
    val fileOptions: Options = addOwned(new Options(databaseOptions, familyOptions))
    val ingestOptions: IngestExternalFileOptions = addOwned(new IngestExternalFileOptions().setMoveFiles(true))

    private def addOwned[A <: AutoCloseable](made: A): A = {
      owned += made
      made
    }

    override def close(): Unit = owned.reverseIterator.foreach(_.close())
  }

  /**
   * The bytes of a window: footprint, dirty version, then the rows. A window of one key has its value. A group has
   * each row, after the sizes of key and value.
   */
  private def encodeWindow(window: Window): Array[Byte] = {
    val size = window match {
      case one: KeyWindow => one.valueSize
      case group: GroupWindow => group.rows.asScala.map { case (key, value) => 8 + key.getSizeInBytes + value.getSizeInBytes }.sum
    }
    val row = ByteBuffer.allocate(16 + size).putLong(window.footprint).putLong(window.dirtySince)
    window match {
      case one: KeyWindow => row.put(one.bytes, one.valueFrom, one.valueSize)
      case group: GroupWindow => group.rows.forEach { (key, value) =>
        row.putInt(key.getSizeInBytes).putInt(value.getSizeInBytes).put(key.getBytes).put(value.getBytes)
      }
    }
    row.array
  }
}
