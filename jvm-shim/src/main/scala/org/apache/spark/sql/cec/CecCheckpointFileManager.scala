package org.apache.spark.sql.cec

import java.io.{ByteArrayInputStream, ByteArrayOutputStream, EOFException, FileNotFoundException}
import java.util.Base64

import scala.jdk.CollectionConverters._

import org.apache.hadoop.conf.Configuration
import org.apache.hadoop.fs._

import org.apache.spark.{SparkContext, SparkEnv}
import org.apache.spark.sql.cec.agent._
import org.apache.spark.sql.execution.streaming.checkpointing.CheckpointFileManager
import org.apache.spark.sql.execution.streaming.checkpointing.CheckpointFileManager.CancellableFSDataOutputStream
import org.apache.spark.sql.internal.SQLConf

/**
 * A checkpoint file manager (`spark.sql.streaming.checkpointFileManagerClass`) for object stores and local disks.
 *
 * Spark's own manager writes an entry of its offset and commit logs to a temporary file and renames it. An object store
 * has no rename: Hadoop looks, copies and deletes, with about 24 requests, and two drivers may both succeed. This
 * manager writes an entry with one conditional request of the agent. So one driver alone can plan or commit a batch.
 *
 * It does so on the driver, for the directories of these two logs, in stores whose conditional writes the agent knows.
 * On a local disk [[LocalFileManager]] does all. All else goes to Spark's own manager, large entries too.
 *
 * @param path the directory of one log
 */
final class CecCheckpointFileManager(path: Path, hadoopConf: Configuration) extends CheckpointFileManager {
  import CecCheckpointFileManager._

  /** The manager of all other files. */
  private lazy val others: CheckpointFileManager =
    if (LocalFileManager.serves(path, hadoopConf)) new LocalFileManager(path, hadoopConf)
    else {
      val plain = new Configuration(hadoopConf)
      plain.unset(Key)
      CheckpointFileManager.create(path, plain)
    }

  /** The checkpoint whose log this is; None if Spark's manager does all. */
  private val checkpoint: Option[String] = findCheckpoint(path).filter(_ => isDriver)

  private lazy val conf = hadoopConf.asScala.map(entry => entry.getKey -> entry.getValue)
    .filter(_._1.startsWith("spark.sql.streaming.stateStore.")).toMap

  private lazy val retained = hadoopConf.getLong(SQLConf.MIN_BATCHES_TO_RETAIN.key, SQLConf.MIN_BATCHES_TO_RETAIN.defaultValue.get.toLong)

  /** The entries of the log; None if Spark's manager does all. */
  private val entries: Option[LogEntries] = checkpoint.map(known => new LogEntries(new Requests(known), retained))

  /** The entries and the number of this one, if the file is an entry of the log. */
  private def asEntry(file: Path): Option[(LogEntries, Long)] =
    entries.filter(_ => file.getParent == path).flatMap(known => file.getName.toLongOption.filter(_.toString == file.getName).map(known -> _))

  override def createAtomic(file: Path, overwriteIfPossible: Boolean): CancellableFSDataOutputStream = asEntry(file) match {
    case Some((entries, number)) => new Entry(new ByteArrayOutputStream, entries.create(number, _, overwriteIfPossible))
    case None => others.createAtomic(file, overwriteIfPossible)
  }

  override def exists(file: Path): Boolean = asEntry(file) match {
    case Some((entries, number)) => entries.exists(number)
    case None if isLog(file) => true // an object store has no directories
    case None => others.exists(file)
  }

  override def delete(file: Path): Unit = asEntry(file) match {
    case Some((entries, number)) => entries.delete(number)
    case None => others.delete(file)
  }

  private final class Requests(checkpoint: String) extends EntryRequests {
    private def name(number: Long) = s"${path.getName}/$number"

    override def create(number: Long, content: Array[Byte], overwrites: Boolean): Unit = {
      val file = new Path(path, number.toString)
      if (content.length > LargestBytes) createLarge(file, content, overwrites)
      else try Agent.call(CreateFileRequest(checkpoint, name(number), Base64.getEncoder.encodeToString(content), overwrites), conf) catch {
        case exists: CecException if exists.isA("AlreadyExists") =>
          val known = new FileAlreadyExistsException(s"$file exists already") // the class that Spark knows
          known.initCause(exists)
          throw known
      }
    }

    private def createLarge(file: Path, content: Array[Byte], overwrites: Boolean): Unit = {
      val whole = others.createAtomic(file, overwrites)
      try whole.write(content) catch {
        case failure: Throwable =>
          whole.cancel()
          throw failure
      }
      whole.close()
    }

    override def read(number: Long): Option[Array[Byte]] =
      Agent.call(ReadFileRequest(checkpoint, name(number)), conf).content.map(Base64.getDecoder.decode(_))

    override def list(): Seq[String] = Agent.call(ListFilesRequest(checkpoint, path.getName), conf).names

    override def delete(numbers: Seq[Long]): Unit = Agent.call(DeleteFilesRequest(checkpoint, numbers.map(name)), conf)
  }

  override def open(file: Path): FSDataInputStream = asEntry(file) match {
    case Some((entries, number)) =>
      new FSDataInputStream(new EntryBytes(entries.read(number).getOrElse(throw new FileNotFoundException(s"$file does not exist"))))
    case None => others.open(file)
  }

  /** The sizes and times are zero: Spark reads the names of a log alone. */
  override def list(directory: Path, filter: PathFilter): Array[FileStatus] = entries.filter(_ => isLog(directory)) match {
    case Some(known) => known.list().map(name => new FileStatus(0L, false, 1, 0L, 0L, new Path(directory, name)))
      .filter(status => filter.accept(status.getPath)).toArray
    case None => others.list(directory, filter)
  }

  override def mkdirs(directory: Path): Unit = if (!isLog(directory)) others.mkdirs(directory)

  private def isLog(file: Path): Boolean = entries.isDefined && file == path
  override def isLocal: Boolean = others.isLocal
  override def createCheckpointDirectory(): Path = others.createCheckpointDirectory()
}

private[cec] object CecCheckpointFileManager {
  val Key: String = SQLConf.STREAMING_CHECKPOINT_FILE_MANAGER_CLASS.parent.key

  private val Logs = Set("offsets", "commits")

  /** Hadoop's schemes of the stores whose creation of an object the agent knows to be exclusive. */
  private val Schemes = Set("s3a", "s3", "gs", "abfs", "abfss", "wasb", "wasbs")

  /** A longer entry goes to Spark's manager, because the agent's calls are texts. */
  private val LargestBytes = 4 << 20

  /** The checkpoint of a log on an object store; None for another directory or another store. */
  def findCheckpoint(directory: Path): Option[String] =
    Option.when(Logs(directory.getName) && Schemes(String.valueOf(directory.toUri.getScheme)))(directory.getParent.toString)

  private def isDriver: Boolean = Option(SparkEnv.get).exists(_.executorId == SparkContext.DRIVER_IDENTIFIER)

  /** An entry's bytes, as Hadoop reads them. */
  private final class EntryBytes(content: Array[Byte]) extends ByteArrayInputStream(content) with Seekable with PositionedReadable {
    override def seek(to: Long): Unit = {
      if (to < 0 || to > count) throw new EOFException(s"there is no byte $to among $count")
      pos = to.toInt
    }
    override def getPos: Long = pos.toLong
    override def seekToNewSource(to: Long): Boolean = false
    override def read(at: Long, into: Array[Byte], offset: Int, length: Int): Int =
      if (at >= count) -1
      else {
        val size = Math.min(length.toLong, count - at).toInt
        System.arraycopy(content, at.toInt, into, offset, size)
        size
      }
    override def readFully(at: Long, into: Array[Byte], offset: Int, length: Int): Unit =
      if (read(at, into, offset, length) < length) throw new EOFException(s"there are no $length bytes after byte $at")
    override def readFully(at: Long, into: Array[Byte]): Unit = readFully(at, into, 0, into.length)
  }

  /** Keeps what is written, and gives it to `write` at its end, once. */
  private final class Entry(content: ByteArrayOutputStream, write: Array[Byte] => Unit) extends CancellableFSDataOutputStream(content) {
    private var isOver = false

    override def close(): Unit = if (!isOver) {
      isOver = true
      write(content.toByteArray)
    }

    override def cancel(): Unit = isOver = true
  }
}
