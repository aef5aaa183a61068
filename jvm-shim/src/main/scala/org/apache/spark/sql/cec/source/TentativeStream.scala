package org.apache.spark.sql.cec.source

import com.fasterxml.jackson.databind.node.ObjectNode

import org.apache.hadoop.fs.Path

import org.apache.spark.sql.catalyst.InternalRow
import org.apache.spark.sql.catalyst.expressions.GenericInternalRow
import org.apache.spark.sql.cec.agent.{EpochAnswer, Json}
import org.apache.spark.sql.connector.read.{InputPartition, PartitionReader, PartitionReaderFactory}
import org.apache.spark.sql.connector.read.streaming._
import org.apache.spark.sql.execution.vectorized.ConstantColumnVector
import org.apache.spark.sql.types._
import org.apache.spark.sql.vectorized.ColumnVector
import org.apache.spark.unsafe.types.UTF8String

/**
 * The columns of a stream of tentative rows beside those of the flow. `_kind` is stable, tentative or undo. `_epoch` is
 * the epoch of a tentative row, as flow/number. A row of kind undo takes back all tentative rows of its epoch.
 */
private[source] object TentativeColumns {
  private val Kind = "_kind"
  private val Epoch = "_epoch"

  val schema: StructType = new StructType().add(Kind, StringType).add(Epoch, StringType)

  val stable: Map[String, Any] = Map(Kind -> UTF8String.fromString("stable"), Epoch -> null)

  def tentative(epoch: String): Map[String, Any] = Map(Kind -> UTF8String.fromString("tentative"), Epoch -> UTF8String.fromString(epoch))

  def undo(epoch: String): Map[String, Any] = Map(Kind -> UTF8String.fromString("undo"), Epoch -> UTF8String.fromString(epoch))

  /** The columns of a flow, and these. Refuses a flow that has a column of such a name. */
  def addTo(columns: StructType, path: String): StructType = {
    columns.find(column => schema.exists(_.name.equalsIgnoreCase(column.name))).foreach(column => throw new IllegalArgumentException(
      s"$path has the column ${column.name}: give it another name, because readers of tentative rows get one of that name"))
    StructType(columns ++ schema)
  }

  /** The columns that the logs have. */
  def without(all: StructType): StructType = StructType(all.filterNot(column => schema.fieldNames.contains(column.name)))

  /** The name of an epoch, which no other epoch has, of another flow or of another replica. */
  def nameOf(flow: String, replica: Option[String], number: Long): String =
    (Seq(new Path(flow).getName) ++ replica ++ Seq(number.toString)).mkString("/")

  /** A column that has one value in all rows. */
  def vector(column: StructField, value: Any): ColumnVector = {
    val made = new ConstantColumnVector(1, column.dataType)
    value match {
      case null => made.setNull()
      case text: UTF8String => made.setUtf8String(text)
    }
    made
  }
}

/** How far a stream is in an epoch: the newest batch that it has read of the output, which begins after `begin`. */
private[source] final case class EpochPlace(number: Long, begin: Long, batch: Long)

/**
 * How far a stream of stable and tentative rows is.
 *
 * @param batch the newest batch of the flow that was read, which `of` tells from another one with the same number
 * @param epoch the epoch whose rows were read, and not taken back
 */
private[source] final case class TentativeOffset(batch: Long, of: Option[String], epoch: Option[EpochPlace]) extends Offset {
  override def json(): String = {
    val node = Json.obj().put("batch", batch)
    of.foreach(node.put("of", _))
    epoch.foreach(place => node.putObject("epoch").put("number", place.number).put("begin", place.begin).put("batch", place.batch))
    node.toString
  }

  /**
   * The offset after this one.
   *
   * The rows of an epoch come after the stable ones before it. They stay until the stream has those that replace them:
   * rows of the flow, or of the next epoch. If the flow had passed the epoch when the next one began, nothing has to come of that one.
   *
   * @param upTo the flow's batch that the stream reads up to, and its identity
   * @param newest the newest epoch, as of before that batch was looked up
   */
  def next(upTo: Long, identity: Option[String], newest: EpochAnswer): TentativeOffset = {
    val place = (newest.number, newest.closedAfter) match {
      case (Some(number), None) if epoch.exists(_.number == number) => epoch.map(known => known.copy(batch = math.max(known.batch, newest.newest)))
      case (Some(number), None) if upTo >= newest.follows && (epoch.isEmpty || newest.hasRows || newest.hasPassed) =>
        Some(EpochPlace(number, newest.beginsAfter, newest.newest))
      case (Some(_), None) => epoch
      case (Some(_), Some(after)) => epoch.filter(_ => upTo < after)
      case (None, _) => None
    }
    TentativeOffset(upTo, identity, place)
  }
}

private[source] object TentativeOffset {
  def parse(json: String): TentativeOffset = {
    val node = Json.parse(json.trim)
    val epoch = Option(node.get("epoch")).filter(_.isObject)
    // A stream of stable rows may read tentative ones from now on. The other way needs an offset without an epoch.
    node match {
      case fields: ObjectNode => fields.remove("epoch")
      case _ =>
    }
    val BatchOffset(batch, of) = BatchOffset.parse(node.toString)
    TentativeOffset(batch, of, epoch.map(place => EpochPlace(place.get("number").asLong, place.get("begin").asLong, place.get("batch").asLong)))
  }
}

/**
 * The output of a flow as a stream of stable and tentative rows. While the flow waits for an input, an epoch of it has
 * rows without that input. They are taken back when the flow's own rows are there.
 *
 * @param retained how many batches Spark's offset log keeps, any of which a recovery may run again
 * @param place Spark's metadata path for this source
 */
private final class TentativeStream(view: OutputView, schema: StructType, retained: Int, place: String)
    extends MicroBatchStream with SupportsTriggerAvailableNow {
  /** What there was when the trigger of all that is available asked. */
  private var available: Option[(Long, EpochAnswer)] = None
  private val stored = TentativeColumns.without(schema)
  private var checked = false
  private var newest: Option[Long] = None

  override def initialOffset(): Offset = TentativeOffset(view.begin(place), None, None)

  override def deserializeOffset(json: String): Offset = TentativeOffset.parse(json)

  override def getDefaultReadLimit: ReadLimit = ReadLimit.allAvailable()

  override def prepareForTriggerAvailableNow(): Unit = {
    val epoch = view.newestEpoch
    available = Some((view.newest, epoch))
  }

  override def latestOffset(): Offset = throw new IllegalStateException("Spark asks this stream with a limit")

  override def latestOffset(start: Offset, limit: ReadLimit): Offset = {
    val from = start.asInstanceOf[TentativeOffset]
    if (!checked) view.noteResumed(from.batch)
    val epoch = available.fold(view.newestEpoch)(_._2) // before the flow's output, which has all that replaces a closed epoch
    val end = view.endAfter(from.batch, from.of, checked, available.map(_._1), place)
    checked = true
    newest = Some(end.newest)
    if (end.batch == from.batch) from.next(from.batch, from.of, epoch) else from.next(end.batch, end.of, epoch)
  }

  override def reportLatestOffset(): Offset = TentativeOffset(newest.getOrElse(view.newest), None, None)

  override def planInputPartitions(start: Offset, end: Offset): Array[InputPartition] = {
    val (from, to) = (start.asInstanceOf[TentativeOffset], end.asInstanceOf[TentativeOffset])
    val stable = view.splits(stored, from.batch + 1, to.batch, whole = false, to.of).map(CecPartition(_, TentativeColumns.stable))
    val tentative = to.epoch.toSeq.flatMap { epoch =>
      val read = from.epoch.filter(_.number == epoch.number).fold(epoch.begin)(_.batch)
      splitsOf(epoch, read + 1).map(EpochPartition(_, TentativeColumns.tentative(nameOf(epoch.number)), view.path, epoch.number))
    }
    val undone = from.epoch.map(_.number).filterNot(to.epoch.map(_.number).contains).map(number => RowPartition(TentativeColumns.undo(nameOf(number))))
    (stable ++ tentative ++ undone).toArray
  }

  private def nameOf(number: Long): String = TentativeColumns.nameOf(view.path, None, number)

  private def splitsOf(epoch: EpochPlace, first: Long): Seq[String] =
    view.readEpoch(epoch.number)(_.splits(stored, first, epoch.batch, whole = false)).getOrElse(Nil)

  override def createReaderFactory(): PartitionReaderFactory = new CecReaderFactory(view, schema)

  override def commit(end: Offset): Unit = {
    val to = end.asInstanceOf[TentativeOffset]
    view.noteEnd(Some(to.batch), retained)
    to.epoch.foreach(epoch => view.ofEpoch(epoch.number).noteEnd(Some(epoch.batch), retained))
  }

  override def stop(): Unit = view.noteEnd(None, retained)

  override def toString: String = s"cec ${view.path} with tentative rows"
}

/** One row, with these values by column and null in the other columns. */
private[source] final case class RowPartition(values: Map[String, Any]) extends InputPartition

private[source] final class RowReader(values: Map[String, Any], schema: StructType) extends PartitionReader[InternalRow] {
  private var left = 1

  override def next(): Boolean = {
    left -= 1
    left == 0
  }

  override def get(): InternalRow = new GenericInternalRow(schema.fieldNames.map(name => values.getOrElse(name, null)))

  override def close(): Unit = ()
}
