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
 * The file has no name any more once it is open. So nothing is left of it when the process ends.
 */
private[state] final class PageFile private (channel: FileChannel, place: String) {
  import PageFile._

  private val parts = mutable.ArrayBuffer.empty[MappedByteBuffer]
  private val free = new IntList
  private val slots = mutable.LongMap.empty[Int]
  private var count = 0

  /** Writes a page and returns the address of its bytes. */
  def write(page: Array[Byte]): Long = {
    val slot = if (free.isEmpty) count else free.pop()
    try {
      val from = ByteBuffer.wrap(page)
      while (from.hasRemaining) channel.write(from, slot * SlotBytes + from.position)
      while (slot / PartSlots >= parts.size) {
        val begin = parts.size * PartBytes
        // A mapping must not end behind the file.
        if (channel.size < begin + PartBytes) channel.write(ByteBuffer.wrap(new Array[Byte](1)), begin + PartBytes - 1)
        parts += channel.map(MapMode.READ_ONLY, begin, PartBytes)
      }
    } catch {
      case failure: IOException =>
        free.add(slot)
        if (slot == count) count += 1
        throw new CecException("LiveStore",
          s"windows beyond spark.sql.streaming.stateStore.cec.memory cannot be written to $place (${failure.getMessage}): see to the room in " +
            "spark.local.dir; a restart of the query loads them anew from its log", failure)
    }
    if (slot == count) count += 1
    val address = parts(slot / PartSlots).asInstanceOf[DirectBuffer].address + slot % PartSlots * SlotBytes
    slots(address) = slot
    address
  }

  /** Frees the page at this address. Another page may take its place at once. */
  def free(address: Long): Unit = slots.remove(address).foreach(free.add)

  /** Frees file and memory. A read of one of its pages would end the process. */
  def close(): Unit = {
    channel.close()
    parts.foreach(StorageUtils.dispose)
    parts.clear()
  }
}

private[state] object PageFile {
  private val SlotBytes = 8L * (Pages.PageWords + 2)
  private val PartSlots = 256
  private val PartBytes = PartSlots * SlotBytes

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
    Utils.deleteRecursively(directory)
    new PageFile(channel, directory.getPath)
  }
}
