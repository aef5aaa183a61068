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
 * Windows that no batch has touched lately, on the local disk: what makes a state larger than the heap. A window is either here or in the
 * table, never in both. Nothing here lasts: the log is the truth, and a store that is loaded begins with an empty directory.
 *
 * A RocksDB with three column families: the rows by window id, and, for the books, ids by footprint and by the batch that dirtied them.
 *
 * @param keyFields fields of a state key
 * @param valueFields fields of a value
 * @param grouped whether a window may have several rows
 */
private[state] final class ColdWindows(keyFields: Int, valueFields: Int, grouped: Boolean) {
  import ColdWindows._

  private var directory: File = _
  private val families = new ArrayList[ColumnFamilyHandle]()
  private var native: Native = _
  private var db: RocksDB = _
  private val openIterators = mutable.Set.empty[RocksIterator]

  /** Windows by footprint, and by the batch that dirtied them. */
  val byFootprint = new Index(1, _.footprint)
  val byDirty = new Index(2, _.dirtySince)
  private val indexes = Seq(byFootprint, byDirty)

  /** Ids in the order of a version that the windows carry, and how many there are of each. */
  final class Index private[ColdWindows] (place: Int, versionOf: Window => Long) {
    private[ColdWindows] val counted = new TreeMap[java.lang.Long, Array[Int]]()
    private def family = families.get(place)

    def counts: Iterator[(Long, Int)] = counted.asScala.iterator.map { case (version, n) => version.longValue -> n(0) }

    /** The ids of the windows that carry `version`, as they are when this is asked. */
    def at(version: Long): Iterator[Array[Byte]] =
      if (!counted.containsKey(version)) Iterator.empty
      else {
        val first = ByteBuffer.allocate(8).putLong(version).array
        scan(family, first).map(_._1).takeWhile(key => ByteBuffer.wrap(key).getLong == version).map(key => java.util.Arrays.copyOfRange(key, 8, key.length))
      }

    private[ColdWindows] def add(batch: WriteBatch, window: Window, id: Array[Byte]): Unit = if (versionOf(window) != Window.Clean)
      batch.put(family, entry(window, id), Nothing)

    /** Adds windows in the order of their ids. */
    private[ColdWindows] def add(sorted: Array[Row]): Unit = ingest(
      family,
      sorted.filter(row => versionOf(row.window) != Window.Clean).sortBy(row => versionOf(row.window)).iterator
        .map(row => entry(row.window, row.id) -> Nothing))

    private[ColdWindows] def remove(window: Window, id: Array[Byte]): Unit = if (versionOf(window) != Window.Clean)
      db.singleDelete(family, native.writing, entry(window, id))

    private[ColdWindows] def note(window: Window, change: Int): Unit = if (versionOf(window) != Window.Clean) {
      val n = counted.computeIfAbsent(versionOf(window), _ => new Array[Int](1))
      n(0) += change
      if (n(0) == 0) counted.remove(versionOf(window))
    }

    private def entry(window: Window, id: Array[Byte]): Array[Byte] =
      ByteBuffer.allocate(8 + id.length).putLong(versionOf(window)).put(id).array
  }

  /** Takes the window with this id out of here; null if it is not here. */
  def take(id: Array[Byte]): Window = if (db == null) null else onDisk {
    val found = db.get(rows, id)
    if (found == null) null
    else {
      val window = filled(id, found)
      db.singleDelete(rows, native.writing, id)
      indexes.foreach(_.remove(window, id))
      note(window, -1)
      window
    }
  }

  /** Takes windows in; they are here, all of them, or after a failure a part of them is in both places, and the store must be loaded anew. */
  def give(windows: Iterator[Window]): Unit = windows.grouped(WrittenAtOnce).foreach { some =>
    if (db == null) open()
    onDisk {
      val batch = new WriteBatch()
      try {
        some.foreach { window =>
          val id = window.id
          batch.put(rows, id, ColdWindows.encode(window))
          indexes.foreach(_.add(batch, window, id))
        }
        db.write(native.writing, batch)
      } finally batch.close()
      some.foreach(note(_, 1))
    }
  }

  /**
   * The same for many windows at once, as a load brings them: in order, as files that the database takes as they are. One by one they
   * would be sorted in its memory, written, and written again when it has too many small files.
   */
  def giveMany(windows: Iterator[Window]): Unit = {
    if (db == null) open()
    onDisk {
      val sorted = windows.map(window => new Row(window.id, window)).toArray
      java.util.Arrays.sort(sorted, (a: Row, b: Row) => java.util.Arrays.compareUnsigned(a.id, b.id))
      ingest(rows, sorted.iterator.map(row => row.id -> ColdWindows.encode(row.window)))
      indexes.foreach(_.add(sorted))
      sorted.foreach(row => note(row.window, 1))
    }
  }

  /** All windows as they are now. They stay here: what is done to one of these is lost. */
  def iterator: Iterator[(Array[Byte], Window)] = if (db == null) Iterator.empty else scan(rows, Nothing).map { case (id, row) => id -> filled(id, row) }

  /** Gives back what those hold who did not read to the end. Between batches only. */
  def closeIterators(): Unit = {
    openIterators.foreach(_.close())
    openIterators.clear()
  }

  /** Forgets all windows, and leaves nothing on the disk. */
  def clear(): Unit = if (db != null) {
    closeIterators()
    families.forEach(_.close())
    families.clear()
    db.close()
    native.close()
    db = null
    indexes.foreach(_.counted.clear())
    Utils.deleteRecursively(directory)
  }

  private def open(): Unit = {
    val acquired = new Acquired
    directory = Utils.createExecutorLocalTempDir(Option(SparkEnv.get).map(_.conf).getOrElse(new SparkConf), "cec-live")
    acquired.undo(Utils.deleteRecursively(directory))
    acquired.step(onDisk {
      RocksDBLoader.loadLibrary()
      native = acquired(new Native)
      val names = Seq("default", "footprint", "dirty").map(name => new ColumnFamilyDescriptor(name.getBytes, native.family))
      db = RocksDB.open(native.database, directory.getPath, names.asJava, families)
    })
  }

  private def ingest(family: ColumnFamilyHandle, sorted: Iterator[(Array[Byte], Array[Byte])]): Unit = if (sorted.hasNext) {
    val file = new File(directory, "load.sst").getPath
    val writer = new SstFileWriter(native.files, native.written)
    try {
      writer.open(file)
      sorted.foreach { case (key, value) => writer.put(key, value) }
      writer.finish()
    } finally writer.close()
    db.ingestExternalFile(family, java.util.List.of(file), native.ingestion)
  }

  private def rows = families.get(0)

  private def note(window: Window, change: Int): Unit = indexes.foreach(_.note(window, change))

  private def filled(id: Array[Byte], row: Array[Byte]): Window = {
    val hash = Window.row(id, 0).hashCode
    // The id may be in a buffer that is used again.
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
          onDisk(cursor.status())
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

  private def onDisk[A](body: => A): A = try body catch {
    case failure: RocksDBException =>
      throw new CecException("LiveStore",
        s"the windows on the local disk, in $directory, cannot be read or written (${failure.getMessage}): see to the room in spark.local.dir; " +
          "a restart of the query loads them anew from its log", failure)
  }
}

private[state] object ColdWindows {
  private val Nothing = Array.emptyByteArray
  private val WrittenAtOnce = 4096

  /** For all stores of a JVM together: blocks that are read, and what is not written out yet. */
  private val MemoryBytes = 256L << 20
  private lazy val cache = new LRUCache(MemoryBytes)
  private lazy val buffers = new WriteBufferManager(MemoryBytes / 2, cache)

  private final class Row(val id: Array[Byte], val window: Window)

  /** What RocksDB is to do, in its own memory. */
  private final class Native extends AutoCloseable {
    private val owned = mutable.ArrayBuffer.empty[AutoCloseable]

    val database: DBOptions = own(new DBOptions().setCreateIfMissing(true).setCreateMissingColumnFamilies(true).setWriteBufferManager(buffers)
      .setInfoLogLevel(InfoLogLevel.ERROR_LEVEL).setKeepLogFileNum(1).setMaxBackgroundJobs(2))

    /**
     * Filters stay out of the cache, whose shards they would fill: that of a file of a million windows is larger than one. They take 1.25
     * bytes a key, and with them a read looks into one file, however many there are: so files are merged late, and writes never wait for it.
     */
    val family: ColumnFamilyOptions = own(new ColumnFamilyOptions().setCompressionType(CompressionType.LZ4_COMPRESSION)
      .setLevel0FileNumCompactionTrigger(8).setLevel0SlowdownWritesTrigger(64).setLevel0StopWritesTrigger(128)
      .setSoftPendingCompactionBytesLimit(0).setHardPendingCompactionBytesLimit(0)
      .setTableFormatConfig(new BlockBasedTableConfig().setBlockCache(cache).setFilterPolicy(own(new BloomFilter(10)))))

    val writing: WriteOptions = own(new WriteOptions().setDisableWAL(true))
    val files: EnvOptions = own(new EnvOptions)
    val written: Options = own(new Options(database, family))
    val ingestion: IngestExternalFileOptions = own(new IngestExternalFileOptions().setMoveFiles(true))

    private def own[A <: AutoCloseable](made: A): A = {
      owned += made
      made
    }

    override def close(): Unit = owned.reverseIterator.foreach(_.close())
  }

  /** Footprint and dirt, then of a window of one key its value, of a group each row with the sizes of key and value before it. */
  private def encode(window: Window): Array[Byte] = {
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
