package org.apache.spark.sql.cec.agent

import java.io.IOException
import java.nio.ByteBuffer
import java.nio.channels.{ClosedChannelException, FileChannel, WritableByteChannel}
import java.nio.file.{Files, Path, StandardOpenOption}

import scala.util.control.NonFatal

import org.apache.spark.internal.Logging

/**
 * The place of a new spool file.
 *
 * @param overflow where the file goes on if its first directory becomes full; None: it is in the last directory
 */
private[cec] final case class SpoolPath(file: Path, overflow: Option[Path] = None) {
  /** Removes the file, wherever it is. */
  def delete(): Unit = (file +: overflow.toSeq).foreach(Files.deleteIfExists)
}

/**
 * A new spool file. Nobody knows at its first row how large it becomes. If its directory cannot take more, the file
 * moves to the overflow and goes on there.
 */
private[cec] final class SpoolFile(place: SpoolPath) extends WritableByteChannel with Logging {
  private var at = place.file
  private var channel = FileChannel.open(at, StandardOpenOption.CREATE_NEW, StandardOpenOption.WRITE)
  private var left = place.overflow

  /** Where the file is. */
  def path: Path = at

  override def write(bytes: ByteBuffer): Int = try channel.write(bytes) catch {
    case ended: ClosedChannelException => throw ended
    case full: IOException =>
      moveTo(left.getOrElse(throw noRoom(full)), full)
      write(bytes)
  }

  override def isOpen: Boolean = channel.isOpen

  override def close(): Unit = channel.close()

  private def noRoom(full: IOException): IOException = new IOException(
    s"the spool file $at takes no more rows (${full.getMessage}), nor does the directory that takes over: make room there, or set " +
      s"${AgentProcess.SpoolKey} to a larger one", full)

  /** Takes the bytes so far to another directory. A write that fails has written none of its bytes. */
  private def moveTo(overflow: Path, full: IOException): Unit = {
    try {
      Files.copy(at, overflow)
      val there = FileChannel.open(overflow, StandardOpenOption.APPEND)
      channel.close()
      channel = there
    } catch {
      case failure: IOException =>
        full.addSuppressed(failure)
        throw noRoom(full)
    }
    logInfo(s"the spool file $at goes on as $overflow: ${full.getMessage}")
    left = None
    try Files.deleteIfExists(at) catch { case NonFatal(failure) => logWarning(s"the spool file $at is left", failure) }
    at = overflow
  }
}
