package org.apache.spark.sql.cec.source

import java.util.UUID

import com.fasterxml.jackson.databind.JsonNode
import com.fasterxml.jackson.databind.node.ObjectNode
import scala.jdk.CollectionConverters._

import org.apache.spark.sql.SparkSession
import org.apache.spark.sql.cec.agent.{Agent, Json}
import org.apache.spark.sql.execution.streaming.state.{StateSchemaCompatibilityChecker, StateStoreId, StateStoreProviderId}
import org.apache.spark.sql.internal.SQLConf
import org.apache.spark.sql.types._
import org.apache.spark.sql.util.CaseInsensitiveStringMap

/** What of a log is read: the options of a read, parsed. Serializable: it goes to the tasks. */
private[source] sealed trait View extends Serializable {
  def name: String
  def path: String
  def conf: Map[String, String]

  /** Columns, as the log has them now. */
  def schema(): StructType

  /** Pieces of work, as JSON that `read_split` understands. */
  def splits(first: Long, last: Long, whole: Boolean): Seq[String] = {
    val arguments = about.put("view", name).put("first", first).put("last", last).put("whole", whole)
    bounds(arguments)
    call("view_splits", arguments).get("splits").elements.asScala.map(_.toString).toSeq
  }

  /** First and last batch that hold output; the last is -1 if none does. */
  def offsets(startingTimestampMs: Option[Long]): (Long, Long) = {
    val arguments = about
    startingTimestampMs.foreach(arguments.put("starting_timestamp_ms", _))
    val answer = call("view_offsets", arguments)
    (answer.get("first").asLong, answer.get("last").asLong)
  }

  /** Reads one piece: the spool file with its rows, if there are any. */
  def read(split: String, columns: Seq[String]): Option[String] = {
    val arguments = about
    arguments.set[JsonNode]("split", Json.parse(split))
    arguments.set[JsonNode]("columns", Json.strings(columns))
    Json.text(call("read_split", arguments).get("spool"))
  }

  protected def bounds(arguments: ObjectNode): Unit = ()

  protected def about: ObjectNode = {
    val arguments = Json.obj().put("path", path)
    arguments.set[JsonNode]("conf", Json.map(conf))
    arguments
  }

  protected def call(name: String, arguments: ObjectNode): JsonNode = Agent.call(name, arguments, conf)
}

/** The rows that the sink wrote: whole batches, once. */
private[source] final case class OutputView(path: String, conf: Map[String, String]) extends View {
  override def name: String = "output"
  override def schema(): StructType = Json.text(call("view_schema", about).get("schema")) match {
    case Some(json) => DataType.fromJson(json).asInstanceOf[StructType]
    case None => throw new IllegalArgumentException(s"$path holds no output: if its query writes with the cec sink, wait for the first batch or give the schema; other sinks' rows are not in it")
  }
}

/** The raw control records. */
private[source] final case class LogView(path: String, conf: Map[String, String]) extends View {
  override def name: String = "log"
  override def schema(): StructType = new StructType()
    .add("segment", StringType).add("offset", LongType).add("operator", LongType).add("partition", IntegerType).add("store", StringType)
    .add("version", LongType).add("kind", StringType).add("window", BinaryType).add("key", BinaryType).add("value", BinaryType)
}

/** The windows of an eventual checkpoint, by the schema of the state that Spark stored. */
private[source] final case class WindowsView(
    path: String, conf: Map[String, String], operator: Long, store: String, version: Option[Long], key: StructType, value: StructType)
    extends View {
  override def name: String = "windows"
  /** The columns as the agent gives them, rows of state still encoded. */
  def stored: StructType = new StructType()
    .add("key", BinaryType).add("value", BinaryType).add("partition", IntegerType).add("footprint_version", LongType).add("dirty", BooleanType)
  override def schema(): StructType = new StructType()
    .add("key", key).add("value", value).add("partition", IntegerType).add("footprint_version", LongType).add("dirty", BooleanType)
  override protected def bounds(arguments: ObjectNode): Unit = {
    arguments.put("operator", operator).put("store", store)
    version.foreach(arguments.put("version", _))
  }
}

private[source] object View {
  /** The options of a read. */
  private val Known =
    Seq("path", "view", "operatorId", "storeName", "version", "startingTimestamp", "maxBatchesPerTrigger")

  def of(options: CaseInsensitiveStringMap): View = {
    options.keySet.asScala.find(key => !Known.exists(_.equalsIgnoreCase(key))).foreach(key => throw new IllegalArgumentException(
      s"""option("$key", "${options.get(key)}"): there is no such option of format("cec"); there are ${Known.mkString(", ")}"""))
    val path = Option(options.get("path")).getOrElse(
      throw new IllegalArgumentException("""format("cec") wants a path: load("<checkpoint of the query, or path of its sink>")"""))
    val conf = SQLConf.get.getAllConfs.filter(_._1.startsWith("spark.sql.streaming.stateStore."))
    options.getOrDefault("view", "output").toLowerCase(java.util.Locale.ROOT) match {
      case "output" => OutputView(path, conf)
      case "log" => LogView(path, conf)
      case "windows" => windows(path, conf, options)
      case other => throw new IllegalArgumentException(s"""option("view", "$other"): give output, windows or log""")
    }
  }

  private def windows(path: String, conf: Map[String, String], options: CaseInsensitiveStringMap): WindowsView = {
    val (operator, store) = (options.getLong("operatorId", 0L), options.getOrDefault("storeName", StateStoreId.DEFAULT_STORE_NAME))
    val id = StateStoreProviderId(StateStoreId(s"$path/state", operator, 0, store), UUID.randomUUID())
    val hadoopConf = SparkSession.active.sessionState.newHadoopConf()
    val schemas = try new StateSchemaCompatibilityChecker(id, hadoopConf, Nil, None, false).readSchemaFile() catch {
      case _: java.io.FileNotFoundException => Nil
    }
    val stored = schemas.headOption.getOrElse(throw new IllegalArgumentException(
      s"$path has no state of operator $operator, store $store: the view windows wants a query's checkpoint, after its first batch, and " +
        "option(\"operatorId\") and option(\"storeName\") where it has several (a join has four stores; `cec inspect` lists them)"))
    val version = Option(options.get("version")).map(_.toLong)
    WindowsView(path, conf, operator, store, version, stored.keySchema, stored.valueSchema)
  }
}
