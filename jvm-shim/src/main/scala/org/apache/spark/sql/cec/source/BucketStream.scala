package org.apache.spark.sql.cec.source

import java.util.UUID
import java.util.concurrent.ConcurrentHashMap

import scala.collection.mutable
import scala.util.control.NonFatal

import org.apache.hadoop.fs.Path

import org.apache.spark.sql.SparkSession
import org.apache.spark.sql.cec.agent.{BucketEndAnswer, Json}
import org.apache.spark.sql.cec.recovery.InputBoundary
import org.apache.spark.sql.connector.read.{InputPartition, PartitionReaderFactory}
import org.apache.spark.sql.connector.read.streaming._
import org.apache.spark.sql.execution.streaming.runtime.StreamExecution
import org.apache.spark.sql.types.StructType

/**
 * How far a stream is in a channel that it reads by buckets. It says all that a repeat of a batch needs.
 *
 * @param untilMs all rows below were given out, or are late, in ms since 1970
 * @param batch the newest batch that was looked at, which `of` tells from another one with the same number
 * @param first the oldest batch that may have rows at `untilMs` or later
 * @param by the column with the times
 * @param replica the replica of the pipeline in whose channel these batches are; None if there are no replicas
 * @param since the first batch of the channel with rows of the interval that ends here, if the interval before is of
 *   another replica
 */
private[source] final case class BucketOffset(
    untilMs: Long, batch: Long, first: Long, by: String, of: Option[String] = None, replica: Option[String] = None, since: Option[Long] = None)
    extends Offset {
  override def json(): String = {
    val node = Json.obj().put("by", by).put("until", untilMs).put("batch", batch).put("first", first)
    of.foreach(node.put("of", _))
    replica.foreach(node.put("replica", _))
    since.foreach(node.put("since", _))
    node.toString
  }
}

private[source] object BucketOffset {
  /** Parses the offset of a stream by buckets of the column `by`. Refuses one of another stream, whose rows it would lose or double. */
  def parse(json: String, by: String): BucketOffset = {
    val node = Json.parse(json.trim)
    if (!node.isObject || !node.has("by")) throw new IllegalArgumentException(
      s"the query has read whole batches so far, up to $json, and is to read by buckets now: $Mend")
    if (node.get("by").asText != by) throw new IllegalArgumentException(
      s"the query has read by buckets of ${node.get("by").asText} so far, up to $json, and is to read by those of $by now: $Mend")
    if (node.has("epoch")) throw new IllegalArgumentException(BatchOffset.refusesTentative(json))
    BucketOffset(
      node.get("until").asLong, node.get("batch").asLong, node.get("first").asLong, by, Json.text(node.get("of")),
      Json.text(node.get("replica")), Option(node.get("since")).map(_.asLong))
  }

  /** Where a stream begins. Spark's watermark begins at 1970, and operators drop what is at or below the watermark. */
  val BeginMs = 1L

  /** What a user can do who reads in another way than before. */
  val Mend = "read as before, or give the flow another name, so that it begins anew"
}

/**
 * The output of a query as a stream of buckets: a batch has the rows of some interval of time, in the order of their time.
 * The agent plans the intervals, the same for all streams of the query that share a union.
 *
 * @param retained how many batches Spark's offset log keeps, any of which a recovery may run again
 * @param place Spark's metadata path for this source
 */
private[source] final class BucketStream(view: OutputView, buckets: Buckets, schema: StructType, retained: Int, place: String)
    extends MicroBatchStream with SupportsTriggerAvailableNow with BoundedChannel {
  val query: String = new Path(place).getParent.toString
  private val id = UUID.randomUUID().toString
  private lazy val leader = BucketLeaders.of(query, id)
  private val time = buckets.time
  private val copies = buckets.copies.map { case (replica, path) => replica -> view.copy(path = path) }
  private var checked = false

  /** What the stream does not need any more of the other replicas, by the end of a batch in ms since 1970. */
  private val needless = mutable.Map.empty[Long, Map[String, Long]]

  /** The channel in a replica, or the only one. */
  def viewOf(replica: Option[String]): OutputView = replica.fold(view)(copies)

  /** The start of the batch that Spark asked for last, with the channel's newest batch, from which users see the lag. */
  private var asked: Option[BucketOffset] = None

  /** The end of that batch, in ms since 1970. */
  private var plannedMs: Option[Long] = None

  /** Begins the stream, because Spark asks for it only without an offset. */
  override def initialOffset(): Offset = if (copies.nonEmpty) {
    copies.values.foreach(_.noteBegin()) // each with all that it keeps
    BucketOffset(BucketOffset.BeginMs, -1L, 0L, time)
  } else {
    val begin = view.begin(place)
    BucketOffset(BucketOffset.BeginMs, begin, begin + 1, time)
  }

  override def deserializeOffset(json: String): Offset = BucketOffset.parse(json, time)

  override def getDefaultReadLimit: ReadLimit = ReadLimit.allAvailable()

  override def latestOffset(): Offset = throw new IllegalStateException("Spark asks this stream with a limit")

  /** Refuses the trigger. Without this, Spark would take the answer to its first question for all that is available. */
  override def prepareForTriggerAvailableNow(): Unit = throw new IllegalArgumentException(
    "a stream by buckets reads on as its inputs go on, and cannot run with the trigger availableNow: use processingTime")

  override def latestOffset(start: Offset, limit: ReadLimit): Offset = {
    val from = start.asInstanceOf[BucketOffset]
    if (!checked && copies.isEmpty) view.noteResumed(from.first - 1)
    val end = view.bucketsAfter(from, checked, buckets, BucketPlace(query, place, leader, leads = leader == id, BucketWaits.leftOut))
    checked = true
    BucketWaits.note(end)
    asked = Some(from.copy(batch = end.newest))
    plannedMs = Some(end.untilMs)
    if (end.untilMs == from.untilMs) from
    else {
      if (end.others.nonEmpty) needless(end.untilMs) = end.others
      BucketOffset(end.untilMs, end.batch, end.first, time, end.of, Option(end.replica).filter(_.nonEmpty), end.since)
    }
  }

  /** What the last batch has read, and what the next one will have read. A row below that is late, and is not given out. */
  override def boundary: InputBoundary = InputBoundary(None, asked.map(time -> _.untilMs).toMap, plannedMs.map(time -> _).toMap)

  override def reportLatestOffset(): Offset = asked.orNull

  override def planInputPartitions(start: Offset, end: Offset): Array[InputPartition] = {
    val (from, to) = (start.asInstanceOf[BucketOffset], end.asInstanceOf[BucketOffset])
    if (to.untilMs == from.untilMs) Array.empty
    else {
      // Of another replica than before no batch is fresh: its rows below the interval were given out of the first one.
      val (first, freshFrom) = to.since.fold((from.first, from.batch + 1))((_, to.batch + 1))
      val range = buckets.range(from.untilMs, to.untilMs, freshFrom, view.reader)
      viewOf(to.replica).splits(schema, first, to.batch, whole = false, to.of, Some(range)).map(CecPartition(_): InputPartition).toArray
    }
  }

  override def createReaderFactory(): PartitionReaderFactory = new CecReaderFactory(view, schema)

  /** Batches before the oldest one with rows to come are not needed any more. */
  override def commit(end: Offset): Unit = {
    val at = end.asInstanceOf[BucketOffset]
    viewOf(at.replica).noteEnd(Some(at.first - 1), retained)
    needless.remove(at.untilMs).foreach(_.foreach { case (replica, batch) => copies(replica).noteEnd(Some(batch), retained) })
    needless.filterInPlace((untilMs, _) => untilMs > at.untilMs)
  }

  override def stop(): Unit = {
    if (checked) BucketWaits.forget() // a replay has streams of its own, and what the driver has ordered holds behind it
    BucketLeaders.forget(query, id)
    try view.leaveBuckets(query, place) catch { case NonFatal(_) => } // an agent that is dead has forgotten it
    (if (copies.isEmpty) Seq(view) else copies.values).foreach(_.noteEnd(None, retained))
  }

  override def toString: String = s"cec ${view.path} by buckets"
}

/**
 * A stream among those of its query.
 *
 * @param query which of the process's queries
 * @param source which of its sources
 * @param leader the stream that Spark asks first, and whose every call begins a plan
 * @param absent the channels for which the query does not wait; None for those of the union
 */
private[source] final case class BucketPlace(query: String, source: String, leader: String, leads: Boolean, absent: Option[Seq[String]])

/** The first stream of each query that Spark has asked in this run. Spark asks the streams in one order. */
private object BucketLeaders {
  private val known = new ConcurrentHashMap[String, String]

  def of(query: String, stream: String): String = Option(known.putIfAbsent(query, stream)).getOrElse(stream)

  def forget(query: String, stream: String): Unit = known.remove(query, stream)
}

/**
 * What streams by buckets wait for, and what waits for them, by the id of their query. The driver of a pipeline asks for it, and
 * says for which channels a query that runs must not wait.
 */
private[cec] object BucketWaits {
  private val waits = new ConcurrentHashMap[String, String]
  private val unread = new ConcurrentHashMap[String, String]
  private val absent = new ConcurrentHashMap[String, String]

  /** Notes what the agent has said to the query of this thread. */
  def note(end: BucketEndAnswer): Unit = query.foreach { id =>
    val held = end.heldMs.zip(end.waitsFor).map { case (ms, name) => s"$ms $name" }
    val parts = Seq(held, end.back, end.givenUp)
    put(waits, id, if (parts.forall(_.isEmpty)) "" else parts.map(_.mkString(",")).mkString(";"))
    put(unread, id, end.unread.zip(end.dueBytes.zip(end.waitingBytes)).map { case (name, (due, waiting)) => s"$due $waiting $name" }.mkString(","))
  }

  /** Forgets the query of this thread. */
  def forget(): Unit = query.foreach { id =>
    waits.remove(id)
    unread.remove(id)
    absent.remove(id)
  }

  /** Has a query wait for all channels but these, which are separated by commas, until it stops. */
  def leaveOut(query: String, channels: String): Unit = absent.put(query, channels)

  /** The channels for which the query of this thread must not wait; None if its union says that. */
  def leftOut: Option[Seq[String]] = query.flatMap(id => Option(absent.get(id))).map(_.split(',').toSeq.filter(_.nonEmpty))

  /**
   * For each channel that holds rows of others back the time in ms and its name, slowest first, with commas. Behind a semicolon, the
   * channels for which the query does not wait, and which are back; behind another one, those that it has given up. All are of one
   * plan. Empty if there are none.
   */
  def of(query: String): String = waits.getOrDefault(query, "")

  /** For each channel the bytes that the query must read, those that wait for another channel, and its name, with commas; empty if nobody measures. */
  def unreadBy(query: String): String = unread.getOrDefault(query, "")

  private def query: Option[String] =
    SparkSession.getActiveSession.flatMap(session => Option(session.sparkContext.getLocalProperty(StreamExecution.QUERY_ID_KEY)))

  private def put(known: ConcurrentHashMap[String, String], id: String, said: String): Unit =
    if (said.isEmpty) known.remove(id) else known.put(id, said)
}
