package org.apache.spark.sql.cec.source

import com.fasterxml.jackson.databind.node.ObjectNode

import org.apache.spark.sql.cec.agent.{EpochReading, Json}
import org.apache.spark.sql.cec.recovery.InputBoundary
import org.apache.spark.sql.connector.read.{InputPartition, PartitionReaderFactory}
import org.apache.spark.sql.connector.read.streaming._
import org.apache.spark.sql.types.StructType

/**
 * How far a stream of stable and tentative rows by buckets is.
 *
 * @param epoch what it has of an epoch, and the read of the batch that ends here; None if no tentative row counts
 */
private[source] final case class TentativeBucketOffset(stable: BucketOffset, epoch: Option[EpochReading]) extends Offset {
  override def json(): String = epoch.fold(stable.json()) { reading =>
    Json.parse(stable.json()) match {
      case fields: ObjectNode => fields.set[ObjectNode]("epoch", reading.toJson).toString
      case other => throw new IllegalStateException(s"an offset by buckets is no object: $other")
    }
  }

  /** The epoch whose rows the batch that begins here and ends at `to` takes back. */
  def undoneBy(to: TentativeBucketOffset): Option[EpochReading] = epoch.filterNot(has => to.epoch.exists(isSame(has, _)))

  /** What the batch that begins here and ends at `to` reads of an epoch. */
  def readBy(to: TentativeBucketOffset): Option[EpochReading] = to.epoch.filterNot(epoch.contains)

  private def isSame(one: EpochReading, other: EpochReading) = one.replica == other.replica && one.number == other.number
}

private[source] object TentativeBucketOffset {
  /** Parses the offset of a stream by buckets of the column `by`, which may have read stable rows alone so far. */
  def parse(json: String, by: String): TentativeBucketOffset = Json.parse(json.trim) match {
    case fields: ObjectNode =>
      val epoch = Option(fields.remove("epoch"))
      val stable = BucketOffset.parse(fields.toString, by) // first, because it refuses the offset of another stream
      TentativeBucketOffset(stable, epoch.map(EpochReading.of))
    case other => TentativeBucketOffset(BucketOffset.parse(other.toString, by), None)
  }
}

/**
 * The output of a flow by buckets, as a stream of stable and tentative rows. The stable ones come from any replica, and
 * the tentative ones from the epoch of one replica.
 *
 * @param retained how many batches Spark's offset log keeps, any of which a recovery may run again
 * @param place Spark's metadata path for this source
 */
private final class TentativeBucketStream(view: OutputView, buckets: Buckets, schema: StructType, retained: Int, place: String)
    extends MicroBatchStream with SupportsTriggerAvailableNow with BoundedChannel {
  private val stored = TentativeColumns.without(schema)
  private val stable = new BucketStream(view, buckets, stored, retained, place)

  override def initialOffset(): Offset = stable.initialOffset() match { case begin: BucketOffset => TentativeBucketOffset(begin, None) }

  override def deserializeOffset(json: String): Offset = TentativeBucketOffset.parse(json, buckets.time)

  override def getDefaultReadLimit: ReadLimit = stable.getDefaultReadLimit

  override def latestOffset(): Offset = stable.latestOffset()

  override def prepareForTriggerAvailableNow(): Unit = stable.prepareForTriggerAvailableNow()

  override def latestOffset(start: Offset, limit: ReadLimit): Offset = {
    val from = start.asInstanceOf[TentativeBucketOffset]
    val end = stable.latestOffset(from.stable, limit).asInstanceOf[BucketOffset]
    TentativeBucketOffset(end, view.epochAfter(end.untilMs, from.epoch, buckets, stable.query, place))
  }

  override def boundary: InputBoundary = stable.boundary

  override def reportLatestOffset(): Offset = stable.reportLatestOffset()

  override def planInputPartitions(start: Offset, end: Offset): Array[InputPartition] = {
    val (from, to) = (start.asInstanceOf[TentativeBucketOffset], end.asInstanceOf[TentativeBucketOffset])
    val sure = stable.planInputPartitions(from.stable, to.stable).collect { case CecPartition(split, _) => CecPartition(split, TentativeColumns.stable) }
    val tentative = from.readBy(to).toSeq.flatMap { epoch =>
      val range = buckets.tentative(epoch.afterMs, epoch.untilMs)
      val channel = channelOf(epoch)
      val splits = channel.readEpoch(epoch.number)(_.splits(stored, epoch.since, epoch.batch, whole = false, epoch.of, Some(range)))
      splits.getOrElse(Nil).map(EpochPartition(_, TentativeColumns.tentative(nameOf(epoch)), channel.path, epoch.number))
    }
    val undone = from.undoneBy(to).map(epoch => RowPartition(TentativeColumns.undo(nameOf(epoch))))
    Array[InputPartition](sure.toSeq ++ tentative ++ undone: _*)
  }

  private def replicaOf(epoch: EpochReading) = Option(epoch.replica).filter(_.nonEmpty)

  private def channelOf(epoch: EpochReading) = stable.viewOf(replicaOf(epoch))

  private def nameOf(epoch: EpochReading) = TentativeColumns.nameOf(view.path, replicaOf(epoch), epoch.number)

  override def createReaderFactory(): PartitionReaderFactory = new CecReaderFactory(view, schema)

  override def commit(end: Offset): Unit = {
    val to = end.asInstanceOf[TentativeBucketOffset]
    stable.commit(to.stable)
    // A stream of replicas may come back to an epoch, and then needs all of its rows again.
    if (buckets.copies.isEmpty) to.epoch.foreach(epoch => view.ofEpoch(epoch.number).noteEnd(Some(epoch.first - 1), retained))
  }

  override def stop(): Unit = stable.stop()

  override def toString: String = s"cec ${view.path} by buckets, with tentative rows"
}
