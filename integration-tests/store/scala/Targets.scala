package org.apache.spark.sql.cec.testing

import scala.collection.mutable
import scala.jdk.CollectionConverters._

import com.fasterxml.jackson.databind.JsonNode
import com.fasterxml.jackson.databind.node.ArrayNode

import org.apache.spark.sql.catalyst.InternalRow
import org.apache.spark.sql.catalyst.expressions.{BoundReference, UnsafeProjection, UnsafeRow}
import org.apache.spark.sql.cec.agent.Json
import org.apache.spark.sql.cec.state.{BatchFacts, LiveWindows, StoreState}
import org.apache.spark.sql.execution.streaming.state._
import org.apache.spark.sql.types.{DataType, DoubleType, IntegerType, LongType, StringType, StructField, StructType}
import org.apache.spark.unsafe.types.UTF8String

/** The rows of the tests' stores: one int as key, or two with the first as prefix, and two longs as value. */
private final class Shape(val grouped: Boolean) {
  private def struct(fields: String*)(kind: org.apache.spark.sql.types.DataType) =
    StructType(fields.map(StructField(_, kind, nullable = false)))

  val keySchema: StructType = if (grouped) struct("group", "key")(IntegerType) else struct("key")(IntegerType)
  val valueSchema: StructType = struct("a", "b")(LongType)
  val encoder: KeyStateEncoderSpec =
    if (grouped) PrefixKeyScanStateEncoderSpec(keySchema, 1) else NoPrefixKeyStateEncoderSpec(keySchema)

  def prefix: Option[(Int, UnsafeRow => UnsafeRow)] = if (!grouped) None else {
    val projection = UnsafeProjection.create(Seq(BoundReference(0, IntegerType, nullable = false)))
    Some((1, projection(_)))
  }
}

private object Shape {
  /** As Spark names the buffer of an average. */
  val ofAverages: StructType = StructType(Seq(StructField("sum", DoubleType), StructField("count", LongType)))
}

private object Rows {
  private def fresh(fields: Int): UnsafeRow = {
    val row = new UnsafeRow(fields)
    row.pointTo(new Array[Byte](8 + 8 * fields), 8 + 8 * fields)
    row
  }

  def key(node: JsonNode): UnsafeRow = if (node.isNull) null else {
    val row = fresh(node.size)
    (0 until node.size).foreach(i => row.setInt(i, node.get(i).asInt))
    row
  }

  def value(node: JsonNode): UnsafeRow = if (node.isNull) null else {
    val row = fresh(node.size)
    (0 until node.size).foreach(i => row.setLong(i, node.get(i).asLong))
    row
  }

  def ints(row: UnsafeRow): JsonNode = numbers(row, i => row.getInt(i).toLong)

  def longs(row: UnsafeRow): JsonNode = numbers(row, row.getLong(_))

  private lazy val ofText = UnsafeProjection.create(Array[DataType](StringType))

  def text(text: UTF8String): UnsafeRow = ofText(InternalRow(text))

  /** A value that says that it has so many bytes; they are not there to be read. */
  def pretended(size: Int): UnsafeRow = {
    val row = new UnsafeRow(2)
    row.pointTo(null, 0L, size)
    row
  }

  /** A value of that many bytes: one long, and behind the row's fields what it says, drawn from that long as seed. */
  def large(seed: Long, size: Int): UnsafeRow = {
    val bytes = new Array[Byte](size)
    new java.util.SplittableRandom(seed).nextBytes(bytes)
    java.util.Arrays.fill(bytes, 0, 8, 0.toByte)
    val row = new UnsafeRow(2)
    row.pointTo(bytes, size)
    row.setLong(0, seed)
    row
  }

  private def numbers(row: UnsafeRow, at: Int => Long): JsonNode = if (row == null) null else {
    val list = Json.arr()
    (0 until row.numFields).foreach(i => list.add(at(i)))
    list
  }
}

/** Something that steps can be run on: `[name, argument, ...]`, each with an answer. */
private abstract class Target {
  private val open = mutable.Map.empty[String, Iterator[UnsafeRowPair]]

  def run(steps: JsonNode): JsonNode = {
    val answers = Json.arr()
    steps.elements.asScala.foreach { each =>
      val answer = each.get(0).asText match {
        case "open" =>
          open(each.get(1).asText) = iterator
          null
        case "next" => pairs(open(each.get(1).asText).take(each.get(2).asInt))
        case "iterate" => pairs(iterator)
        case name => step(name, each)
      }
      answers.add(answer)
    }
    answers
  }

  protected def iterator: Iterator[UnsafeRowPair]
  protected def step(name: String, arguments: JsonNode): JsonNode

  protected def pairs(found: Iterator[UnsafeRowPair]): ArrayNode = {
    val list = Json.arr()
    found.foreach(pair => list.addArray().add(Rows.ints(pair.key)).add(Rows.longs(pair.value)))
    list
  }

  protected def number(value: Long): JsonNode = Json.parse(value.toString)

  protected def text(value: Option[String]): JsonNode = Json.obj().put("text", value.orNull).get("text")
}

/** A store as Spark sees it. */
private final class StoreTarget(store: ReadStateStore) extends Target {
  private val Default = StateStore.DEFAULT_COL_FAMILY_NAME

  private def writable: StateStore = store.asInstanceOf[StateStore]

  override protected def iterator: Iterator[UnsafeRowPair] = store.iterator(Default)

  override protected def step(name: String, arguments: JsonNode): JsonNode = {
    def key = Rows.key(arguments.get(1))
    name match {
      case "get" => Rows.longs(store.get(key, Default))
      case "multi_get" =>
        val list = Json.arr()
        store.multiGet(arguments.get(1).elements.asScala.map(Rows.key).toArray, Default).foreach(row => list.add(Rows.longs(row)))
        list
      case "get_family" => Rows.longs(store.get(key, arguments.get(2).asText))
      case "put" =>
        writable.put(key, Rows.value(arguments.get(2)), Default)
        null
      case "put_reused" => putReused(arguments.get(1))
      case "put_large" =>
        arguments.get(1).elements.asScala.foreach { each =>
          writable.put(Rows.key(each.get(0)), Rows.large(each.get(1).asLong, each.get(2).asInt), Default)
        }
        null
      case "put_oversized" =>
        writable.put(key, Rows.pretended(arguments.get(2).asInt), Default)
        null
      case "large" => large()
      case "put_family" =>
        writable.put(key, Rows.value(arguments.get(2)), arguments.get(3).asText)
        null
      case "remove" =>
        writable.remove(key, Default)
        null
      case "scan" => pairs(store.prefixScan(key, Default))
      case "commit" => number(writable.commit())
      case "abort" =>
        store.abort()
        null
      case "release" =>
        store.release()
        null
      case "committed" => Json.parse(writable.hasCommitted.toString)
      case "metrics" => metrics()
      case "checkpoint" =>
        val info = writable.getStateStoreCheckpointInfo()
        Json.arr().add(info.batchVersion).add(text(info.stateStoreCkptId)).add(text(info.baseStateStoreCkptId))
      case "family" =>
        writable.createColFamilyIfAbsent("other", new Shape(false).keySchema, new Shape(false).valueSchema, new Shape(false).encoder)
        null
      case "merge" =>
        writable.merge(key, Rows.value(arguments.get(2)), Default)
        null
    }
  }

  /** Puts several pairs by the same two row objects, as Spark's projections do. */
  private def putReused(entries: JsonNode): JsonNode = {
    val (key, value) = (Rows.key(entries.get(0).get(0)), Rows.value(entries.get(0).get(1)))
    entries.elements.asScala.foreach { entry =>
      (0 until key.numFields).foreach(i => key.setInt(i, entry.get(0).get(i).asInt))
      (0 until value.numFields).foreach(i => value.setLong(i, entry.get(1).get(i).asLong))
      writable.put(key, value, StateStore.DEFAULT_COL_FAMILY_NAME)
    }
    null
  }

  /** Of every pair that `put_large` put: key, seed, size, and whether all bytes are as they were. */
  private def large(): JsonNode = {
    val list = Json.arr()
    iterator.foreach { pair =>
      val (seed, size) = (pair.value.getLong(0), pair.value.getSizeInBytes)
      list.addArray().add(Rows.ints(pair.key)).add(seed).add(size).add(pair.value == Rows.large(seed, size))
    }
    list
  }

  private def metrics(): JsonNode = {
    val found = writable.metrics
    val answer = Json.obj().put("numKeys", found.numKeys).put("memoryUsedBytes", found.memoryUsedBytes)
    found.customMetrics.foreach { case (metric, value) => answer.put(metric.name, value) }
    answer
  }
}

/** The windows of a store below Spark's interface, with the batch's facts in the test's hand. */
private final class StateTarget(state: StoreState) extends Target {
  private var isGone = false

  /** Gives the store away at a version, as a provider does. Nobody uses the state after that. */
  def handOver(version: Long): Boolean = {
    val isGiven = !isGone && state.writeWhole(version)
    if (isGiven) close()
    isGiven
  }

  private def close(): Unit = {
    isGone = true
    state.close()
  }

  override protected def iterator: Iterator[UnsafeRowPair] = state.live.iterator

  override protected def step(name: String, arguments: JsonNode): JsonNode = {
    def key = Rows.key(arguments.get(1))
    name match {
      case "begin" =>
        state.begin(arguments.get(1).asLong, Json.text(arguments.get(2)))
        null
      case "get" => Rows.longs(state.live.get(key))
      case "put" =>
        state.live.put(key, Rows.value(arguments.get(2)))
        null
      case "remove" =>
        state.live.remove(key)
        null
      case "scan" => pairs(state.live.prefixScan(key))
      case "commit" =>
        val (inputs, taskMs) = (arguments.get(1).asLong, arguments.get(2).asLong)
        state.commit(BatchFacts(inputs, inputs, System.nanoTime() - taskMs * 1000000L))
        metrics()
      case "rollback" =>
        state.rollback()
        null
      case "rewind_to" => Json.parse(state.rewindTo(arguments.get(1).asLong).isDefined.toString)
      case "flush" =>
        state.settle()
        null
      case "close" =>
        state.settle()
        close()
        null
      case "gone" => Json.parse(isGone.toString)
      case "version" => number(state.version)
      case "replaying" => Json.parse(state.isReplaying.toString)
      case "checkpoint" => text(state.checkpointId)
      case "windows" => windows()
    }
  }

  private def metrics(): JsonNode = {
    val last = state.metrics
    Json.obj().put("opened", last.opened).put("checked", last.checked).put("closed", last.closed).put("extent", last.extent)
      .put("replay", last.replay).put("dirty", last.dirty).put("held", last.held)
  }

  /** Id, footprint and the batch that first dirtied it (null: none), of each window. */
  private def windows(): JsonNode = {
    val list = Json.arr()
    val live = state.live
    live.windows.foreach { window =>
      val dirty = if (live.dirtySince(window) == LiveWindows.Clean) null else number(live.dirtySince(window))
      list.addArray().add(Rows.ints(live.id(window))).add(live.footprint(window)).add(dirty)
    }
    list
  }
}
