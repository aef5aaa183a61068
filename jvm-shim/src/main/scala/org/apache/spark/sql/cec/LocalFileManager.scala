package org.apache.spark.sql.cec

import java.io.IOException
import java.nio.channels.{ClosedByInterruptException, FileChannel}
import java.nio.file.{FileAlreadyExistsException => NameIsTaken, FileSystemException, FileSystems, Files, Path => LocalPath}
import java.nio.file.StandardCopyOption.ATOMIC_MOVE
import java.nio.file.StandardOpenOption.READ
import java.nio.file.attribute.PosixFilePermissions

import scala.util.Using

import org.apache.hadoop.conf.Configuration
import org.apache.hadoop.fs._
import org.apache.hadoop.fs.local.LocalFs
import org.apache.hadoop.fs.permission.FsPermission

import org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager

/**
 * Checkpoint files on a local disk, without a process for each.
 *
 * Without its native library, Hadoop starts ten processes (`chmod`, `readlink`) for each file of Spark's own manager.
 * This manager writes the same files, with Hadoop's checksums, by calls of Java alone. If the disk has links, one of two
 * drivers alone can create a file, because a link fails if the name exists. A file is on the disk before its name is.
 *
 * @param path the directory of the files
 */
private[cec] class LocalFileManager(path: Path, hadoopConf: Configuration)
    extends FileSystemBasedCheckpointFileManager(path, hadoopConf) {
  import LocalFileManager._

  private val disk = new Disk
  override protected val fs: FileSystem = new LocalFileSystem(disk)
  fs.initialize(FsConstants.LOCAL_FS_URI, hadoopConf)
  fs.setVerifyChecksum(false) // as Spark's manager: two attempts of a task may mix a file and a checksum

  override def renameTempFile(from: Path, to: Path, overwrites: Boolean): Unit = {
    val (written, target) = (disk.localPath(from), disk.localPath(to))
    val (itsChecksum, checksum) = (checksumOf(written), checksumOf(target))
    try {
      sync(written)
      // A checksum must not stand beside other content: other readers would refuse the file. A file may lack its checksum.
      if (overwrites || !Files.exists(target)) Files.deleteIfExists(checksum)
      if (overwrites) Files.move(written, target, ATOMIC_MOVE) else giveName(written, target)
      if (Files.exists(itsChecksum)) Files.move(itsChecksum, checksum, ATOMIC_MOVE)
      syncNames(target.getParent)
    } finally {
      Files.deleteIfExists(written)
      Files.deleteIfExists(itsChecksum)
    }
  }

  /** Gives the file its name, if nothing has it. A file system without links renames it, as Spark's manager does. */
  private def giveName(written: LocalPath, target: LocalPath): Unit =
    try link(written, target) catch {
      case taken: NameIsTaken => throw existing(target, taken)
      case noLinks @ (_: UnsupportedOperationException | _: FileSystemException) =>
        if (Files.exists(target)) throw existing(target, noLinks)
        Files.move(written, target, ATOMIC_MOVE)
    }

  protected def link(written: LocalPath, target: LocalPath): Unit = Files.createLink(target, written)
}

private[cec] object LocalFileManager {

  /** Whether Spark's own manager would use Hadoop's class for local disks there, with permissions as POSIX has them. */
  def serves(directory: Path, conf: Configuration): Boolean = {
    val (local, scheme) = (FsConstants.LOCAL_FS_URI.getScheme, directory.toUri.getScheme)
    (if (scheme == null) FileSystem.getDefaultUri(conf).getScheme else scheme) == local &&
      conf.getClass(s"fs.AbstractFileSystem.$local.impl", classOf[LocalFs]) == classOf[LocalFs] &&
      FileSystems.getDefault.supportedFileAttributeViews.contains("posix")
  }

  /** Hadoop's local disk. It sets permissions by Java: Hadoop would start `chmod`. */
  private final class Disk extends RawLocalFileSystem {
    def localPath(file: Path): LocalPath = pathToFile(file).toPath

    override def setPermission(file: Path, permission: FsPermission): Unit = {
      val text = Seq(permission.getUserAction, permission.getGroupAction, permission.getOtherAction).map(_.SYMBOL).mkString
      Files.setPosixFilePermissions(localPath(file), PosixFilePermissions.fromString(text))
    }
  }

  /** The file that holds a file's checksums, by Hadoop's rule for names. */
  private def checksumOf(file: LocalPath): LocalPath = file.resolveSibling(s".${file.getFileName}.crc")

  private def existing(target: LocalPath, cause: Throwable): FileAlreadyExistsException = {
    val known = new FileAlreadyExistsException(s"$target exists already") // the class that Spark knows
    known.initCause(cause)
    known
  }

  private def sync(file: LocalPath): Unit = Using.resource(FileChannel.open(file, READ))(_.force(true))

  /** Makes the names in a directory durable. Where a file system refuses this, they are as durable as it makes them. */
  private def syncNames(directory: LocalPath): Unit = try sync(directory) catch {
    case interrupted: ClosedByInterruptException => throw interrupted
    case _: IOException =>
  }
}
