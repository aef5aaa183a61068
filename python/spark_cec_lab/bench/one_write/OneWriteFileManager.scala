package org.apache.spark.sql.execution.streaming.checkpointing

import java.io.FileNotFoundException

import org.apache.hadoop.conf.Configuration
import org.apache.hadoop.fs._

import org.apache.spark.sql.execution.streaming.checkpointing.CheckpointFileManager.CancellableFSDataOutputStream
import org.apache.spark.sql.internal.SQLConf

/**
 * The cheapest checkpoint file manager on S3A, for a benchmark: one request for each file, without a look at what is
 * there. Neither its writes nor its answers are safe with two drivers, so it is no manager to use.
 */
class OneWriteFileManager(path: Path, hadoopConf: Configuration) extends CheckpointFileManager {
  private val files = path.getFileSystem(hadoopConf)

  private lazy val sparks: CheckpointFileManager = {
    val plain = new Configuration(hadoopConf)
    plain.unset(SQLConf.STREAMING_CHECKPOINT_FILE_MANAGER_CLASS.parent.key)
    CheckpointFileManager.create(path, plain)
  }

  /** S3A's request for one object's metadata. Its `exists` would list, too. */
  private lazy val look = files.getClass.getMethod("getObjectMetadata", classOf[Path])

  override def createAtomic(file: Path, overwriteIfPossible: Boolean): CancellableFSDataOutputStream = {
    val stream = files.createFile(file).overwrite(true).opt("fs.s3a.create.performance", true).build()
    new CancellableFSDataOutputStream(stream) {
      override def cancel(): Unit = stream.abort()
    }
  }

  /** An object store has no directories, so the manager's own is always there. */
  override def exists(file: Path): Boolean = file == path || {
    try {
      look.invoke(files, file)
      true
    } catch {
      case failure: java.lang.reflect.InvocationTargetException if failure.getCause.isInstanceOf[FileNotFoundException] => false
    }
  }

  override def delete(file: Path): Unit = files.delete(file, false)
  override def open(file: Path): FSDataInputStream = sparks.open(file)
  override def list(directory: Path, filter: PathFilter): Array[FileStatus] =
    try sparks.list(directory, filter) catch { case _: FileNotFoundException => Array.empty }
  override def mkdirs(directory: Path): Unit = ()
  override def isLocal: Boolean = false
  override def createCheckpointDirectory(): Path = sparks.createCheckpointDirectory()
}
