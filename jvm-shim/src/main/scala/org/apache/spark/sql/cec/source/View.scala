package org.apache.spark.sql.cec.source

import java.util.UUID

import scala.jdk.CollectionConverters._
import scala.util.control.NonFatal

import org.apache.hadoop.fs.Path

import org.apache.spark.internal.Logging
import org.apache.spark.sql.SparkSession
import org.apache.spark.sql.catalyst.util.DateTimeUtils
import org.apache.spark.sql.cec.agent._
import org.apache.spark.sql.cec.recovery.InputBoundary
import org.apache.spark.sql.execution.streaming.state.{StateSchemaCompatibilityChecker, StateStoreId, StateStoreProviderId}
import org.apache.spark.sql.internal.SQLConf
import org.apache.spark.sql.types._
import org.apache.spark.sql.util.CaseInsensitiveStringMap
import org.apache.spark.unsafe.types.UTF8String

/** A part of a log to read, by the parsed options of a read. Serializable, because tasks get it. */
private[source] sealed trait View extends Serializable with Logging {
  def name: String
  def path: String
  def conf: Map[String, String]

  /** The columns that the log has now. All are nullable, because older batches may lack a column. */
  def schema(): StructType

  /** Refuses a user's schema with unknown columns or types. If the log has no columns yet, any schema is accepted. */
  def check(wanted: StructType): Unit = if (!believesSchema) {
    val there = columns
    if (there.nonEmpty) wanted.foreach { column =>
      val named = there.filter(each => SQLConf.get.resolver(each.name, column.name))
      def known = there.distinctBy(_.name).map(each => s"${each.name} ${each.dataType.sql}").mkString(", ")
      if (named.isEmpty) throw new IllegalArgumentException(s"$path has no column ${column.name} in its view \"$name\": there are $known")
      if (!named.exists(_.dataType.asNullable == column.dataType.asNullable)) throw new IllegalArgumentException(
        s"column ${column.name} of $path, view \"$name\", is ${named.head.dataType.sql}, not ${column.dataType.sql}: read it as it is, and cast it")
    }
  }

  /** Whether later batches may have new columns or types. The agent then compares the schema when it reads. */
  protected def believesSchema: Boolean = false

  /** All columns that a user may name. */
  protected def columns: Seq[StructField] = schema().fields.toSeq

  /**
   * The splits of a read, as JSON for `read_split`.
   *
   * @param as the schema to read
   * @param seen the identity of the last batch when the read was first planned
   * @param buckets the rows to read of these batches; None for all
   */
  def splits(
      as: StructType, first: Long, last: Long, whole: Boolean, seen: Option[String] = None, buckets: Option[BucketRange] = None): Seq[String] = {
    val request = ViewSplitsRequest(path, conf, name, first, last, whole, mayLose, seen, Some(as.json), buckets = buckets)
    val answer = Agent.call(bound(request), conf)
    warn(answer.lost)
    answer.splits.map(_.toString)
  }

  /** Reads one split into a spool file; None if it has no rows. */
  def read(split: String, columns: Seq[String]): Option[String] = {
    val answer = Agent.call(ReadSplitRequest(path, conf, Json.parse(split), Some(columns), mayLose), conf)
    warn(answer.lost)
    answer.spool
  }

  /** Warns of lost output that the reader skipped, because the user allowed it. */
  private def warn(losses: Seq[String]): Unit =
    losses.foreach(lost => logWarning(s"Spark CEC: $path, passed over because of failOnDataLoss=false: $lost"))

  /** Whether a row may have the type that a column had long ago. */
  def hasFormerTypes: Boolean = false

  /** Whether damaged or expired output is skipped. */
  protected def mayLose: Boolean

  /** Adds the bounds of this view. */
  protected def bound(request: ViewSplitsRequest): ViewSplitsRequest = request
}

/**
 * The last batch of a stream's next batch, its identity, and the newest batch in the log. `boundary`: of the rows behind
 * those that were read.
 */
private[source] final case class NextEnd(batch: Long, of: Option[String], newest: Long, boundary: InputBoundary)

/**
 * How a stream reads its channel by buckets of time, which it shares with other streams of its query.
 *
 * @param union all channels and the length of a bucket, as JSON for the agent
 * @param own the place of this stream's channel among them
 */
private[source] final case class Buckets(union: String, own: Int) {
  private def member = Json.parse(union).get("members").get(own)

  /** Whether the channel is that of an epoch, so that the stream is of a fork. Its flow may have read later batches of the other flow. */
  def isOfEpoch: Boolean = member.hasNonNull("begins_after")

  /** The column with the time. */
  def time: String = member.get("time").asText

  /** The paths of the channel by the replicas of its pipeline; empty if the stream reads one of them alone. */
  def copies: Map[String, String] =
    member.path("copies").elements.asScala.map(copy => copy.get("replica").asText -> copy.get("path").asText).toMap

  /** The tentative rows of an interval of time. None is kept aside as late, because the flow's own batches have it. */
  def tentative(fromMs: Long, untilMs: Long): BucketRange = BucketRange(time, fromMs, untilMs, Long.MaxValue)

  /** The rows of an interval of time. `freshFrom`: the first batch that was not looked at before. */
  def range(fromMs: Long, untilMs: Long, freshFrom: Long, reader: Option[String]): BucketRange = {
    val of = Json.parse(union)
    // Only of the channels of sources rows can be late in each replica.
    val isAgreed = of.path("replicated").asBoolean && member.path("is_source").asBoolean
    BucketRange(time, fromMs, untilMs, freshFrom, reader, isAgreed, member.get("delay_ms").asLong, of.get("bucket_ms").asLong)
  }
}

/**
 * The rows that the sink wrote: whole batches, once.
 *
 * @param startingMs reads only batches published since then, in ms since 1970
 * @param maxBatches how many of the query's batches one batch of a stream takes at most
 * @param maxRows how many rows one batch of a stream takes at most; a single larger batch of the query is taken whole
 * @param mayLose whether damaged or expired output is skipped
 * @param mayWait whether to wait for a query that has not begun
 * @param newColumns whether the schema may have columns that no batch has yet
 * @param reader the name under which the stream notes its progress, and keeps late rows aside; None if it does neither
 * @param buckets how a stream reads by buckets; None if it reads whole batches
 * @param tentative whether a stream reads tentative rows, too
 */
private[source] final case class OutputView(
    path: String, conf: Map[String, String], startingMs: Option[Long], maxBatches: Option[Long], maxRows: Option[Long], mayLose: Boolean,
    mayWait: Boolean, newColumns: Boolean, reader: Option[String], buckets: Option[Buckets], tentative: Boolean) extends View {
  override def name: String = "output"

  override protected def bound(request: ViewSplitsRequest): ViewSplitsRequest = request.copy(orFlow = buckets.exists(_.isOfEpoch))

  /** The first batch to read. */
  def first: Long = Agent.call(ViewOffsetsRequest(path, conf, mayWait, startingTimestampMs = startingMs), conf).first

  /** The batch after which a stream begins, whose directory is `place`. That is noted, and stays the same once the first batch is planned. */
  def begin(place: String): Long = {
    val found = new StreamBegin(new Path(place), SparkSession.active.sessionState.newHadoopConf()).orElse(first - 1)
    note(begins = Some(found))
    found
  }

  /** The newest batch with output; -1 if there is none. */
  def newest: Long = Agent.call(ViewOffsetsRequest(path, conf, mayWait), conf).last

  /**
   * Asks where the stream's next batch ends, which begins after `batch` and goes no further than `upTo`.
   *
   * @param seen the identity of `batch`
   * @param checked whether the stream has asked before
   * @param source which of the query's sources asks
   */
  def endAfter(batch: Long, seen: Option[String], checked: Boolean, upTo: Option[Long], source: String): NextEnd = {
    val answer = Agent.call(ViewOffsetsRequest(
      path, conf, mayWait, mayLose, None, Some(batch), upTo, maxBatches, maxRows, seen, checked, source), conf)
    NextEnd(answer.last, answer.of, answer.newest, InputBoundary(answer.quietMs, answer.columns))
  }

  /**
   * Asks where the next batch of a stream by buckets ends, which begins at `from`.
   *
   * @param at which stream of the query asks
   */
  def bucketsAfter(from: BucketOffset, checked: Boolean, by: Buckets, at: BucketPlace): BucketEndAnswer =
    Agent.call(BucketEndRequest(
      path, conf, mayWait, mayLose, Json.parse(by.union), by.own, at.query, at.source, at.leader, at.leads,
      from.untilMs, from.batch, from.first, from.of, checked, maxRows, from.replica.getOrElse(""), at.absent), conf)

  /** Asks what the next batch of a stream by buckets reads of an epoch, whose stable rows end at `untilMs`. */
  def epochAfter(untilMs: Long, present: Option[EpochReading], by: Buckets, query: String, source: String): Option[EpochReading] =
    Agent.call(EpochEndRequest(path, conf, Json.parse(by.union), by.own, query, source, untilMs, present), conf).reading

  /** Says that the run of a stream by buckets is over. */
  def leaveBuckets(query: String, source: String): Unit = Agent.call(BucketLeaveRequest(query, source), conf)

  /**
   * Notes the progress of a stream with a name.
   *
   * @param begins the batch that the stream begins after
   * @param resumes the batch that a run of the stream goes on after
   * @param ends the last batch of a finished batch of the stream; without any, the run is over
   * @param retained the batches that Spark may run again
   */
  def note(begins: Option[Long] = None, resumes: Option[Long] = None, ends: Option[Long] = None, retained: Long = 0L): Unit =
    reader.foreach(name => Agent.call(NoteReaderRequest(path, conf, name, mayWait, begins, resumes, ends, retained), conf))

  /** Notes that the stream begins with all that is kept. A failure is a warning, because nothing is deleted then. */
  def noteBegin(): Unit = try note(begins = Some(-1L)) catch {
    case NonFatal(failure) => logWarning(s"Spark CEC: that the stream from $path begins was not noted, so more of that is kept", failure)
  }

  /** Notes after which batch a run of the stream goes on. A failure is a warning, because it matters after a rollback alone. */
  def noteResumed(batch: Long): Unit = try note(resumes = Some(batch)) catch {
    case NonFatal(failure) => logWarning(s"Spark CEC: that the stream from $path goes on was not noted", failure)
  }

  /** As `note` with `ends`, but a failure is a warning, because more is kept then. */
  def noteEnd(ends: Option[Long], retained: Long): Unit = try note(ends = ends, retained = retained) catch {
    case NonFatal(failure) => logWarning(s"Spark CEC: how far the stream from $path is was not noted, so more of that is kept", failure)
  }

  /** The newest epoch of the flow. */
  def newestEpoch: EpochAnswer = Agent.call(EpochRequest(path, conf), conf)

  /** The output of an epoch of the flow. A read passes over deleted output: the rows of its epoch do not count any more. */
  def ofEpoch(number: Long): OutputView =
    copy(path = s"${path.stripSuffix("/")}/epochs/$number", mayLose = true, mayWait = true, tentative = false)

  /**
   * Reads of an epoch's output; None if it was deleted, or is damaged. Stable rows come whatever becomes of an epoch, and take the place of its
   * rows.
   */
  def readEpoch[T](number: Long)(read: OutputView => T): Option[T] = try Some(read(ofEpoch(number))) catch {
    case failure: CecException if failure.isA("CecError") || isOver(number) => // a storage that does not answer is asked again
      logWarning(s"Spark CEC: rows of epoch $number of $path are not read: ${failure.getMessage}")
      None
  }

  private def isOver(number: Long): Boolean = {
    val now = newestEpoch
    !now.number.contains(number) || now.closedAfter.isDefined
  }

  override def schema(): StructType = {
    val found = View.newest(path, schemas)
    if (tentative) TentativeColumns.addTo(found, path) else found
  }

  override protected def columns: Seq[StructField] = if (tentative) schemas.flatten ++ TentativeColumns.schema else schemas.flatten

  override protected def believesSchema: Boolean = newColumns

  private def schemas: Seq[StructType] = View.schemas(path, conf, mayWait, mayLose)
}

/** The rows that came too late for a stream that reads by buckets, with the columns of the output. */
private[source] final case class LateView(path: String, conf: Map[String, String], reader: String) extends View {
  override def name: String = "late"
  override def hasFormerTypes: Boolean = true
  override protected def mayLose: Boolean = false
  override def schema(): StructType = View.newest(path, View.schemas(path, conf, mayWait = false, mayLose))
  override protected def bound(request: ViewSplitsRequest): ViewSplitsRequest = request.copy(reader = Some(reader))
}

/** The raw control records. */
private[source] final case class LogView(path: String, conf: Map[String, String]) extends View {
  override def name: String = "log"
  override protected def mayLose: Boolean = false
  override def schema(): StructType = new StructType()
    .add("segment", StringType).add("offset", LongType).add("operator", LongType).add("partition", IntegerType).add("store", StringType)
    .add("version", LongType).add("kind", StringType).add("window", BinaryType).add("key", BinaryType).add("value", BinaryType)
}

/** The windows of an eventual checkpoint, by the state schema that Spark stored. */
private[source] final case class WindowsView(
    path: String, conf: Map[String, String], operator: Long, store: String, version: Option[Long], key: StructType, value: StructType)
    extends View {
  override def name: String = "windows"
  override protected def mayLose: Boolean = false
  /** The columns that the agent gives, with rows of state still encoded. */
  def stored: StructType = new StructType()
    .add("key", BinaryType).add("value", BinaryType).add("partition", IntegerType).add("footprint_version", LongType).add("dirty", BooleanType)
  override def schema(): StructType = new StructType()
    .add("key", key).add("value", value).add("partition", IntegerType).add("footprint_version", LongType).add("dirty", BooleanType)
  override protected def bound(request: ViewSplitsRequest): ViewSplitsRequest =
    request.copy(operator = operator, store = store, version = version)
}

private[source] object View {
  /** The options of a read, by view. */
  private val KnownOptions = Map(
    "output" -> Seq(
      "startingTimestamp", "maxBatchesPerTrigger", "maxRowsPerTrigger", "failOnDataLoss", "waitForLog", "newColumns", "reader", "union", "own",
      "tentative"),
    "windows" -> Seq("operatorId", "storeName", "version"), "late" -> Seq("reader"), "log" -> Seq.empty)

  /** The schemas of the newest and the oldest batch, because the query's columns may have changed between them. */
  private[source] def schemas(path: String, conf: Map[String, String], mayWait: Boolean, mayLose: Boolean): Seq[StructType] =
    Agent.call(ViewSchemaRequest(path, conf, mayWait, mayLose), conf).schemas.map(DataType.fromJson(_).asInstanceOf[StructType].asNullable)

  private[source] def newest(path: String, schemas: Seq[StructType]): StructType = schemas.headOption.getOrElse(throw new IllegalArgumentException(
    s"$path holds no output: if its query writes with the cec sink, wait for the first batch or give the schema; other sinks' rows are not in it"))

  /** Parses the options of a read. Throws an IllegalArgumentException that names a wrong option. */
  def of(options: CaseInsensitiveStringMap): View = {
    val name = options.getOrDefault("view", "output").toLowerCase(java.util.Locale.ROOT)
    val known = KnownOptions.getOrElse(name, throw optionError("view", options, "give output, windows, late or log"))
    options.keySet.asScala.find(key => !(Seq("path", "view") ++ known).exists(_.equalsIgnoreCase(key))).foreach { key =>
      val elsewhere = for ((view, names) <- KnownOptions; option <- names if option.equalsIgnoreCase(key)) yield (view, option)
      throw elsewhere.headOption.map { case (view, option) => optionError(option, options, s"""it is for the view "$view", and this is "$name"""") }
        .getOrElse(optionError(key, options,
          s"""there is no such option of format("cec"); there are path, view, ${KnownOptions.values.flatten.mkString(", ")}"""))
    }
    val path = Option(options.get("path")).getOrElse(
      throw new IllegalArgumentException("""format("cec") wants a path: load("<checkpoint of the query, or path of its sink>")"""))
    val conf = SQLConf.get.getAllConfs.filter(_._1.startsWith("spark.sql.streaming.stateStore.")) +
      (SQLConf.CASE_SENSITIVE.key -> SQLConf.get.caseSensitiveAnalysis.toString)
    name match {
      case "output" =>
        OutputView(
          path, conf, parseTimestamp(options), parseNumber("maxBatchesPerTrigger", options, least = 1), parseNumber("maxRowsPerTrigger", options, least = 1),
          mayLose = !parseBoolean("failOnDataLoss", options, default = true), mayWait = parseBoolean("waitForLog", options, default = false),
          newColumns = parseBoolean("newColumns", options, default = false), parseReader(options), parseBuckets(options),
          tentative = parseBoolean("tentative", options, default = false))
      case "late" => LateView(path, conf, parseReader(options).getOrElse(
        throw optionError("reader", options, "the view late wants the name of the stream that read by buckets")))
      case "log" => LogView(path, conf)
      case "windows" => makeWindowsView(path, conf, options)
    }
  }

  private def optionError(option: String, options: CaseInsensitiveStringMap, mend: String) =
    new IllegalArgumentException(s"""option("$option", "${options.get(option)}"): $mend""")

  private def parseNumber(option: String, options: CaseInsensitiveStringMap, least: Long): Option[Long] =
    Option(options.get(option)).map(_.trim.toLongOption.filter(_ >= least).getOrElse(
      throw optionError(option, options, s"give a whole number from $least on")))

  private def parseBoolean(option: String, options: CaseInsensitiveStringMap, default: Boolean): Boolean =
    Option(options.get(option)).map(text => text.trim.toLowerCase(java.util.Locale.ROOT) match {
      case "true" => true
      case "false" => false
      case _ => throw optionError(option, options, "give true or false")
    }).getOrElse(default)

  private def parseReader(options: CaseInsensitiveStringMap): Option[String] = Option(options.get("reader")).map { text =>
    if (!text.matches("[A-Za-z_][A-Za-z0-9_-]{0,99}")) throw optionError("reader", options, "give a name of letters, digits, _ and -")
    text
  }

  def parseBuckets(options: CaseInsensitiveStringMap): Option[Buckets] = Option(options.get("union")).map(
    Buckets(_, parseNumber("own", options, least = 0).getOrElse(0L).toInt))

  private def parseTimestamp(options: CaseInsensitiveStringMap): Option[Long] = Option(options.get("startingTimestamp")).map { text =>
    val zone = DateTimeUtils.getZoneId(SQLConf.get.sessionLocalTimeZone)
    val ms = text.trim.toLongOption.orElse(DateTimeUtils.stringToTimestamp(UTF8String.fromString(text), zone).map(_ / 1000L)).getOrElse(
      throw optionError("startingTimestamp", options, "give a timestamp, or ms since 1970"))
    if (ms > System.currentTimeMillis) throw optionError("startingTimestamp", options, "it is yet to come: give one up to now")
    ms
  }

  private def makeWindowsView(path: String, conf: Map[String, String], options: CaseInsensitiveStringMap): WindowsView = {
    val (operator, store) = (parseNumber("operatorId", options, least = 0).getOrElse(0L), options.getOrDefault("storeName", StateStoreId.DEFAULT_STORE_NAME))
    val id = StateStoreProviderId(StateStoreId(s"$path/state", operator, 0, store), UUID.randomUUID())
    val hadoopConf = SparkSession.active.sessionState.newHadoopConf()
    val schemas = try new StateSchemaCompatibilityChecker(id, hadoopConf, Nil, None, false).readSchemaFile() catch {
      case _: java.io.FileNotFoundException => Nil
    }
    val stored = schemas.headOption.getOrElse(throw new IllegalArgumentException(
      s"$path has no state of operator $operator, store $store: the view windows wants a query's checkpoint, after its first batch, and " +
        "option(\"operatorId\") and option(\"storeName\") where it has several (a join has four stores; `cec inspect` lists them)"))
    WindowsView(path, conf, operator, store, parseNumber("version", options, least = 1), stored.keySchema, stored.valueSchema)
  }
}
