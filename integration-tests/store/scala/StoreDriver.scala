package org.apache.spark.sql.cec.testing

import java.io.{BufferedReader, InputStreamReader, PrintStream}
import java.nio.charset.StandardCharsets.UTF_8
import java.util.{Properties, UUID}
import java.util.concurrent.{Callable, ConcurrentHashMap, CopyOnWriteArrayList, Executors, ExecutorService, Future, TimeUnit}
import java.util.concurrent.atomic.AtomicLong

import scala.jdk.CollectionConverters._

import com.fasterxml.jackson.databind.JsonNode
import com.fasterxml.jackson.databind.node.ObjectNode
import org.apache.hadoop.conf.Configuration

import org.apache.spark.{SparkConf, SparkEnv, TaskContext, TaskContextImpl}
import org.apache.spark.sql.catalyst.InternalRow
import org.apache.spark.sql.cec.{CecStateStoreProvider, StoreConfs}
import org.apache.spark.sql.cec.agent.{Agent, DurableCommit, Json}
import org.apache.spark.sql.cec.exchange.{HostedStore, LocalStores}
import org.apache.spark.sql.cec.source.RowSpool
import org.apache.spark.sql.cec.state.{AgentStoreClient, ExactAverages, PageMemory, Recovery, RowDigest, StoreState, UnwrittenCommit}
import org.apache.spark.sql.execution.streaming.runtime.StreamExecution
import org.apache.spark.sql.execution.streaming.state._
import org.apache.spark.sql.internal.SQLConf
import org.apache.spark.sql.types.{StringType, StructField, StructType}
import org.apache.spark.unsafe.types.UTF8String

/**
 * Stores for the tests in Python: one JSON object per line of standard input, one per line of standard output.
 *
 * A request names its operation in `op` and the thread that runs it in `thread`. The answer is `{"ok": ...}` or
 * `{"error": [{"class", "message"}, ...]}`, causes included. With `"later": true` the answer is a ticket for `join`. With
 * `"foreign_loader": true` the thread has a context class loader, from then on, that does not know our classes.
 */
object StoreDriver {
  def main(arguments: Array[String]): Unit = {
    val answers = new PrintStream(System.out, true, UTF_8)
    System.setOut(System.err)
    val driver = new StoreDriver
    val requests = new BufferedReader(new InputStreamReader(System.in, UTF_8))
    Iterator.continually(requests.readLine()).takeWhile(_ != null).foreach(line => answers.println(driver.answer(Json.parse(line))))
    Runtime.getRuntime.halt(0)
  }
}

private final class StoreDriver {
  private val threads = new ConcurrentHashMap[String, ExecutorService]()
  private val running = new ConcurrentHashMap[String, Thread]()
  private val tasks = new ConcurrentHashMap[String, TaskContextImpl]()
  private val tickets = new ConcurrentHashMap[Long, Future[JsonNode]]()
  private val nextTicket = new AtomicLong()
  private val targets = new ConcurrentHashMap[String, Target]()
  private val providers = new ConcurrentHashMap[String, CecStateStoreProvider]()
  private val groups = new ConcurrentHashMap[String, CopyOnWriteArrayList[StateTarget]]()

  def answer(request: JsonNode): JsonNode = request.get("op").asText match {
    case "join" =>
      try tickets.remove(request.get("ticket").asLong).get(60, TimeUnit.SECONDS) catch { case e: Throwable => Answers.failure(e) }
    case "blocked" => Answers.ok(blocked(request))
    case "interrupt" =>
      running.get(request.get("by").asText).interrupt()
      Answers.ok(null)
    case _ =>
      val done = submit(request)
      if (request.path("later").asBoolean) {
        val ticket = nextTicket.incrementAndGet()
        tickets.put(ticket, done)
        Answers.ok(Json.parse(ticket.toString))
      } else done.get()
  }

  private def submit(request: JsonNode): Future[JsonNode] = {
    val name = request.path("thread").asText("main")
    val work: Callable[JsonNode] = () => {
      running.put(name, Thread.currentThread)
      // As the threads of an executor that are not a task's, where our jar came with the application.
      if (request.path("foreign_loader").asBoolean) Thread.currentThread.setContextClassLoader(ClassLoader.getPlatformClassLoader)
      try Answers.ok(run(request)) catch { case e: Throwable => Answers.failure(e) }
    }
    threads.computeIfAbsent(name, _ => Executors.newSingleThreadExecutor(task => new Thread(task, nameOf(name)))).submit(work)
  }

  /** As Spark names the thread of a task, which ends with the task; a thread `… alone` may outlive its task. */
  private def nameOf(name: String): String = if (name.endsWith(" alone")) s"test-$name" else s"Executor task launch worker for test-$name"

  /** Waits until the ticket's work waits for a store's lock (true), or is done (false). */
  private def blocked(request: JsonNode): JsonNode = {
    val done = tickets.get(request.get("ticket").asLong)
    val name = request.get("by").asText
    def waits: Boolean = Option(running.get(name)).exists(_.getStackTrace.exists(_.getClassName.endsWith("state.TaskLock")))
    while (!done.isDone && !waits) Thread.onSpinWait()
    Json.parse((!done.isDone).toString)
  }

  private def run(request: JsonNode): JsonNode = request.get("op").asText match {
    case "provider" =>
      providers.put(request.get("name").asText, newProvider(request))
      null
    case "get_store" =>
      targets.put(request.get("store").asText, new StoreTarget(openStore(request)))
      null
    case "state" =>
      targets.put(request.get("name").asText, newState(request))
      null
    case "do" => targets.get(request.get("target").asText).run(request.get("steps"))
    case "forget" =>
      targets.remove(request.get("target").asText)
      null
    case "close_provider" =>
      providers.get(request.get("name").asText).close()
      null
    case "hand_over" => Json.parse(providers.get(request.get("name").asText).handOver(request.get("version").asLong).toString)
    case "close_log" =>
      Agent.closeLog(request.get("home").asText)
      null
    case "open_logs" => Json.strings(Agent.openLogs)
    case "lasting_threads" =>
      Json.strings(Thread.getAllStackTraces.keySet.asScala.toSeq.filterNot(_.isDaemon).map(_.getName).filterNot(_.contains("test-")))
    case "close_all" => closeAll(request.get("blocked").asInt, request.get("quick").asInt, request.get("within_ms").asLong)
    case "interface_answers" =>
      Json.strings(Class.forName(request.get("class").asText).getMethods.filter(_.isDefault).map(_.toString).filterNot(_.contains("sql.cec.")))
    case "agent_pid" => Json.parse(Agent.pid.map(_.toString).getOrElse("null"))
    case "spool" => Json.obj().put("file", Agent.spoolFile(0, confOf(request)).file.toString).get("file")
    case "output" => writeOutput(request)
    case "begin_application" =>
      beginApplication()
      null
    case "task_begin" => beginTask(request)
    case "task_end" => endTask()
    case "task_kill" =>
      TaskContext.get().asInstanceOf[TaskContextImpl].markInterrupted("killed")
      null
    case "task_end_of" => // as the task's own thread ends it, while another one works for the task
      tasks.remove(request.get("of").asText).markTaskCompleted(None)
      null
  }

  /** Closes stores of which some never end; answers how many are left, how many of the quick ones are closed, and the milliseconds. */
  private def closeAll(blocked: Int, quick: Int, withinMs: Long): JsonNode = {
    val closed = new java.util.concurrent.atomic.AtomicInteger()
    final class Hosted(isBlocked: Boolean) extends HostedStore {
      override def checkpoint: String = "/none"
      override def stateStoreId: StateStoreId = StateStoreId("/none/state", 0, 0)
      override def generation: Option[Long] = None
      override def exclusively[A](body: => A): A = body
      override def unwritten(version: Long): Option[UnwrittenCommit] = None
      override def noteWritten(commit: UnwrittenCommit, answer: DurableCommit): Unit = ()
      override def writtenCommit(version: Long): Option[String] = None
      override def forget(): Unit = ()
      override def home: String = "/none/cec/log"
      override def agentConf: Map[String, String] = Map.empty
      override def flush(version: Long): Unit = ()
      override def handOver(version: Long): Boolean = false
      override def end(version: Long, write: Boolean): Unit = ()
      override def close(): Unit = if (isBlocked) new java.util.concurrent.CountDownLatch(1).await() else closed.incrementAndGet()
    }
    val beganNs = System.nanoTime()
    val left = LocalStores.closeAll(Seq.fill(blocked)(new Hosted(isBlocked = true)) ++ Seq.fill(quick)(new Hosted(isBlocked = false)), withinMs)
    Json.obj().put("left", left.size).put("closed", closed.get).put("ms", (System.nanoTime() - beganNs) / 1000000)
  }

  private def confOf(request: JsonNode): Map[String, String] =
    request.path("conf").properties.asScala.map(entry => entry.getKey -> entry.getValue.asText).toMap

  private def idOf(request: JsonNode): StateStoreId =
    StateStoreId(
      request.path("root").asText("/none/state"), request.get("operator").asLong, request.get("partition").asInt,
      request.path("store_name").asText(StateStoreId.DEFAULT_STORE_NAME))

  private def newProvider(request: JsonNode): CecStateStoreProvider = {
    val sqlConf = new SQLConf
    confOf(request).foreach { case (key, value) => sqlConf.setConfString(key, value) }
    val shape = new Shape(request.get("grouped").asBoolean)
    val encoder = request.path("encoder").asText match {
      case "range" => RangeKeyScanStateEncoderSpec(shape.keySchema, Seq(0))
      case _ => shape.encoder
    }
    val provider = new CecStateStoreProvider
    val hadoopConf = new Configuration(false)
    hadoopConf.set(StreamExecution.RUN_ID_KEY, request.path("run_id").asText(UUID.randomUUID().toString)) // as Spark does
    provider.init(
      idOf(request), shape.keySchema, shape.valueSchema, encoder, request.path("families").asBoolean, new StateStoreConf(sqlConf),
      hadoopConf, request.path("multiple").asBoolean, None)
    provider
  }

  private def openStore(request: JsonNode): ReadStateStore = {
    val provider = providers.get(request.get("provider").asText)
    val (version, id) = (request.get("version").asLong, Json.text(request.get("id")))
    if (request.path("read").asBoolean) provider.getReadStore(version, id) else provider.getStore(version, id)
  }

  /** A state, and the others of its `group`: as the stores of one query on several executors. */
  private def newState(request: JsonNode): StateTarget = {
    val group = groups.computeIfAbsent(request.path("group").asText, _ => new CopyOnWriteArrayList)
    lazy val target: StateTarget = new StateTarget(openState(request, version => {
      val isGiven = group.asScala.exists(other => (other ne target) && other.handOver(version))
      isGiven && !request.path("hears_late").asBoolean
    }))
    if (request.has("group")) group.add(target)
    target
  }

  private def openState(request: JsonNode, requestHandOver: Long => Boolean): StoreState = {
    val shape = new Shape(request.get("grouped").asBoolean)
    val id = idOf(request)
    val log = new AgentStoreClient(
      id, request.get("home").asText, logId = None, request.get("generation").asLong, shape.grouped, request.get("retained").asInt, run = None,
      confOf(request))
    new StoreState(
      id, log, shape.keySchema.length, shape.valueSchema.length, shape.prefix, order = None, new RowDigest(shape.valueSchema), ExactAverages.of(if (request.path("averages").asBoolean) Shape.ofAverages else shape.valueSchema),
      deferred = request.get("deferred").asBoolean,
      Recovery(
        request.get("replay_to").asLong, request.path("base").asLong(request.get("replay_to").asLong), request.path("counted").asBoolean, request.path("accept").asBoolean),
      requestHandOver, key => key.getInt(0).toString, PageMemory.limitedTo(StoreConfs.memoryBytes(confOf(request))), silent = request.path("silent").asBoolean,
      together = request.path("together").asBoolean)
  }

  /** Writes rows of one string each to a spool file as the sink does; answers the file. */
  private def writeOutput(request: JsonNode): JsonNode = {
    val spool = new RowSpool(Agent.spoolFile(0, confOf(request)), StructType(Seq(StructField("text", StringType))))
    request.get("lengths").elements.asScala.foreach { length =>
      val text = UTF8String.fromString("x" * length.asInt)
      spool.write(if (request.get("unsafe").asBoolean) Rows.text(text) else InternalRow(text))
    }
    spool.finish()
    val kept = spool.file.resolveSibling(spool.file.getFileName.toString + ".kept")
    java.nio.file.Files.move(spool.file, kept)
    spool.close()
    Json.obj().put("file", kept.toString).get("file")
  }

  private def beginApplication(): Unit =
    SparkEnv.set(new SparkEnv("test", null, null, null, null, null, null, null, null, null, null, new SparkConf))

  private def beginTask(request: JsonNode): JsonNode = {
    if (SparkEnv.get == null) beginApplication()
    val properties = new Properties
    request.path("properties").properties.asScala.foreach(entry => properties.setProperty(entry.getKey, entry.getValue.asText))
    val task = new TaskContextImpl(
      0, 0, 0, request.get("task").asLong, 0, 1, null, properties, null, org.apache.spark.executor.TaskMetrics.empty, resources = Map.empty)
    tasks.put(request.path("thread").asText("main"), task)
    TaskContext.setTaskContext(task)
    null
  }

  private def endTask(): JsonNode = {
    TaskContext.get().asInstanceOf[TaskContextImpl].markTaskCompleted(None)
    TaskContext.unset()
    null
  }
}

private object Answers {
  def ok(value: JsonNode): ObjectNode = {
    val answer = Json.obj()
    answer.set[JsonNode]("ok", value)
    answer
  }

  def failure(thrown: Throwable): ObjectNode = {
    val answer = Json.obj()
    val causes = answer.putArray("error")
    Iterator.iterate(thrown)(_.getCause).takeWhile(_ != null).take(8).foreach { each =>
      val cause = causes.addObject().put("class", each.getClass.getSimpleName).put("message", String.valueOf(each.getMessage))
      each match {
        case ours: org.apache.spark.sql.cec.agent.CecException => cause.put("kind", ours.kind)
        case _ =>
      }
    }
    answer
  }
}
