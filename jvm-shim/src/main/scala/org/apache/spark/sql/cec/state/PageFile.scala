package org.apache.spark.sql.cec.state

import java.io.{File, IOException}
import java.nio.{ByteBuffer, MappedByteBuffer}
import java.nio.channels.FileChannel
import java.nio.channels.FileChannel.MapMode
import java.nio.file.{Files, StandardOpenOption}

import scala.collection.mutable

import sun.nio.ch.{DirectBuffer, FileChannelImpl}

import org.apache.spark.{SparkConf, SparkEnv}
import org.apache.spark.sql.cec.agent.CecException
import org.apache.spark.storage.StorageUtils
import org.apache.spark.util.Utils

/**
 * A file for pages that were not filled lately, in `spark.local.dir`. It is mapped into memory in parts, so that a
 * record is read where it lies, and the system decides which pages it keeps in memory. Nobody writes to a mapping: if
 * the disk is full, a write to the file says so, and a write to a mapping would end the process.
 *
 * A page takes a slot, whose size is the next power of two. A part has slots of one size. Parts of the file that nobody
 * has written take no room on the disk, so the end of a slot costs nothing.
 *
 * The file has no name any more once it is open. So nothing is left of it when the process ends.
 */
private[state] final class PageFile private (channel: FileChannel, place: String) {
  import PageFile._

  private val parts = mutable.ArrayBuffer.empty[MappedByteBuffer]
  private val slots = mutable.LongMap.empty[Slot]
  /** By the power of two that is their size. */
  private val free = Array.fill(MostBits + 1)(mutable.ArrayBuffer.empty[Slot])
  private var end = 0L

  /** Writes a page and returns the address of its bytes. */
  def write(page: Array[Byte]): Long = {
    val slotsOfSize = free(bitsOf(page.length))
    try {
      if (slotsOfSize.isEmpty) addPart(bitsOf(page.length))
      writeBytes(page, slotsOfSize.last.position)
    } catch {
      case failure: IOException =>
        throw new CecException("LiveStore",
          s"windows beyond spark.sql.streaming.stateStore.cec.memory cannot be written to $place (${failure.getMessage}): see to the room in " +
            "spark.local.dir; a restart of the query loads them anew from its log", failure)
    }
    val slot = slotsOfSize.remove(slotsOfSize.size - 1)
    slots(slot.address) = slot
    slot.address
  }

  /** Frees the page at this address. Another page may take its place at once. */
  def free(address: Long): Unit = slots.remove(address).foreach(slot => free(slot.bits) += slot)

  /** Frees file and memory. A read of one of its pages would end the process. */
  def close(): Unit = {
    channel.close()
    parts.foreach(StorageUtils.dispose)
    parts.clear()
  }

  /** Writes by pieces, because the JVM copies each piece to memory beside the heap. */
  private def writeBytes(page: Array[Byte], position: Long): Unit = {
    val from = ByteBuffer.wrap(page)
    while (from.position < page.length) {
      from.limit(from.position + Math.min(PieceBytes, page.length - from.position))
      channel.write(from, position + from.position)
    }
  }

  private def addPart(bits: Int): Unit = {
    val bytes = Math.max(1L << bits, Math.min(PartBytes, (1L << bits) * PartSlots))
    channel.write(ByteBuffer.wrap(new Array[Byte](1)), end + bytes - 1) // a mapping must not end behind the file
    val part = channel.map(MapMode.READ_ONLY, end, Math.min(bytes, Int.MaxValue))
    parts += part
    val address = part.asInstanceOf[DirectBuffer].address
    (bytes >> bits).toInt - 1 to 0 by -1 foreach { i => free(bits) += new Slot(end + ((i: Long) << bits), address + ((i: Long) << bits), bits) }
    end += bytes
  }
}

private[state] object PageFile {
  private val PartSlots = 256
  private val PartBytes = 64L << 20
  private val PieceBytes = 1 << 20
  /** The system's own pages have 4 KiB. No array has more than 2^31 bytes. */
  private val LeastBits = 12
  private val MostBits = 31

  private final class Slot(val position: Long, val address: Long, val bits: Int)

  private def bitsOf(bytes: Int): Int = Math.max(LeastBits, 32 - Integer.numberOfLeadingZeros(bytes - 1))

  /** Makes an empty file in this executor's local directory. */
  def make(): PageFile = {
    val directory = Utils.createExecutorLocalTempDir(Option(SparkEnv.get).map(_.conf).getOrElse(new SparkConf), "cec-pages")
    in(directory)
  }

  private[state] def in(directory: File): PageFile = {
    val path = new File(directory, "pages").toPath
    val channel = FileChannel.open(path, StandardOpenOption.CREATE_NEW, StandardOpenOption.READ, StandardOpenOption.WRITE)
    // Spark interrupts a task that it kills. The channel would close, and the store could spill no more.
    channel.asInstanceOf[FileChannelImpl].setUninterruptible()
    Files.delete(path)
    // On NFS an open file keeps another name until it is closed, and with it the directory. Spark deletes that at the JVM's end.
    try Utils.deleteRecursively(directory) catch { case _: IOException => () }
    new PageFile(channel, directory.getPath)
  }
}
