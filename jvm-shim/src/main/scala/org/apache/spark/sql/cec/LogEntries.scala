package org.apache.spark.sql.cec

import java.util

import scala.collection.mutable.ArrayBuffer
import scala.util.control.NonFatal

import org.apache.spark.internal.Logging

/** The requests for the entries of one log. Each costs a round trip to an object store. */
private[cec] trait EntryRequests {
  /** Creates an entry. Fails if it exists, unless it may be overwritten. */
  def create(number: Long, content: Array[Byte], overwrites: Boolean): Unit

  /** The bytes of an entry; None if it does not exist. */
  def read(number: Long): Option[Array[Byte]]

  /** The names in the log's directory. */
  def list(): Seq[String]

  /** Deletes the entries that exist. */
  def delete(numbers: Seq[Long]): Unit
}

/**
 * The entries of one of Spark's logs, with as few requests as possible. Thread-safe.
 *
 * Before Spark creates an entry, it asks whether the entry exists. The answer for the one after the newest is no. If
 * another driver has written that entry, its creation fails, which has the same effect. Before Spark reads an entry, it
 * asks the same, and it reads most entries several times. An entry never changes, so this class keeps the last ones.
 *
 * At each batch Spark deletes one old entry. This class deletes many at once, later. If the driver dies before that, the
 * first deletion of the next run lists the log, and finds them.
 *
 * @param retained how many of the newest entries Spark keeps
 */
private[cec] final class LogEntries(requests: EntryRequests, retained: Long) extends Logging {
  /** The newest entry that this class created. */
  private var newest: Option[Long] = None

  /** The highest entry that was ever seen: created or listed. */
  private var highest = -1L
  private val old = ArrayBuffer.empty[Long]

  private val known = new util.LinkedHashMap[Long, Array[Byte]] {
    override def removeEldestEntry(eldest: util.Map.Entry[Long, Array[Byte]]): Boolean = size > LogEntries.Known
  }

  def create(number: Long, content: Array[Byte], overwrites: Boolean): Unit = {
    requests.create(number, content, overwrites)
    synchronized {
      newest = Some(number)
      highest = Math.max(highest, number)
      note(number, content)
    }
  }

  def read(number: Long): Option[Array[Byte]] = synchronized(Option(known.get(number))).orElse {
    val found = requests.read(number)
    found.foreach(content => synchronized(note(number, content)))
    found
  }

  private def note(number: Long, content: Array[Byte]): Unit = {
    known.remove(number)
    if (content.length <= LogEntries.KnownBytes) known.put(number, content)
  }

  /** The names in the directory. Entries that wait for their deletion are among them. */
  def list(): Seq[String] = {
    val names = requests.list()
    synchronized { highest = names.flatMap(_.toLongOption).foldLeft(highest)(Math.max) }
    names
  }

  def exists(number: Long): Boolean = !synchronized(newest).exists(_ + 1 == number) && read(number).isDefined

  /** Deletes an entry: an old one at some time, any other one now. */
  def delete(number: Long): Unit = synchronized {
    known.remove(number)
    if (number <= highest - retained) {
      old += number
      if (old.size >= LogEntries.DeletedTogether) deleteOld()
    } else {
      requests.delete(old.toSeq :+ number) // so that no older entry is left if Spark takes the log back
      old.clear()
      if (newest.contains(number)) newest = None
      highest = Math.min(highest, number - 1)
    }
  }

  /** An old entry does no harm, so a failure must not end a batch. */
  private def deleteOld(): Unit =
    try {
      requests.delete(old.toSeq)
      old.clear()
    } catch {
      case NonFatal(failure) => logWarning(s"${old.size} old entries are not deleted yet; the next batch tries again", failure)
    }
}

private[cec] object LogEntries {
  val DeletedTogether = 20

  /** How many entries to keep, and the longest one. */
  val Known = 16
  val KnownBytes: Int = 256 << 10
}
