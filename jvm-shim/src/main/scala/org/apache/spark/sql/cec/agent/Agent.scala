package org.apache.spark.sql.cec.agent

import java.util.UUID
import java.util.concurrent.ConcurrentHashMap
import java.util.concurrent.atomic.AtomicLong

import scala.jdk.CollectionConverters._
import scala.util.control.NonFatal

import com.fasterxml.jackson.databind.JsonNode

import org.apache.spark.SparkEnv
import org.apache.spark.internal.Logging
import org.apache.spark.sql.cec.metrics.AgentSource

/** The lease of a run: the turn that `release` needs, and the number of the run from now on. */
private[cec] final case class HeldLease(turn: Long, generation: Long)

/**
 * The agent of this JVM. The first call starts it.
 *
 * If the agent dies, the next call starts a successor and repeats the call with `retry` set. The agent then looks in
 * the log whether the first call succeeded. If an agent does not have the log of a call open, it opens the log first.
 * If a log cannot be opened, only the calls for this log fail.
 */
private[cec] object Agent extends Logging {
  /** The time after which a call without an answer means a dead agent. */
  private val DefaultTimeoutMs = 600000

  private var process: AgentProcess = _
  private var starts = 0L

  /** The application that the running agent was started for. In a notebook's JVM one may follow another. */
  private var application: Option[SparkEnv] = None

  /** The settings that the running agent started with. */
  private var startSettings = Map.empty[String, String]

  /** By checkpoint, the request by which a successor wins the lease back. */
  private val heldLeases = new ConcurrentHashMap[String, HoldRequest]()

  /** By home, how often this JVM opened the log and did not close it, and the log's id if it is known. */
  private val openCounts = new ConcurrentHashMap[String, (Int, Option[String])]()

  /**
   * Opens the log at `home`. With `logId`, the log must have that id; without it, the agent begins a log if there is
   * none. Call [[closeLog]] once for each call.
   */
  def openLog(home: String, logId: Option[String], conf: Map[String, String]): Unit = {
    call(OpenLogRequest(home, conf, logId), conf)
    openCounts.merge(home, (1, logId), (before, more) => (before._1 + more._1, more._2.orElse(before._2)))
  }

  /** Undoes one [[openLog]]. After the last one the agent closes the log. Never fails, and never starts an agent. */
  def closeLog(home: String): Unit = if (openCounts.containsKey(home)) {
    val left = openCounts.computeIfPresent(home, (_, known) => if (known._1 > 1) (known._1 - 1, known._2) else null)
    if (left == null) synchronized(Option(process).filter(_.isAlive)).foreach { agent =>
      val request = CloseLogRequest(home)
      try agent.call(request.call, request.toJson.toString) catch {
        case NonFatal(e) => logWarning(s"the agent did not close the log at $home", e)
      }
    }
  }

  /** The homes of open logs, for tests and tools that watch them. */
  def openLogs: Set[String] = openCounts.keySet.asScala.toSet

  /** By checkpoint, the turn of the latest run that asked for the lease. */
  private val turns = new ConcurrentHashMap[String, java.lang.Long]()
  private val lastTurn = new AtomicLong()

  /** By checkpoint, the lock of its lease. A query that waits for its lease must not hold up another one's. */
  private val leases = new ConcurrentHashMap[String, Object]()

  private def leaseOf(checkpoint: String): Object = leases.computeIfAbsent(checkpoint, _ => new Object)

  /**
   * Takes the lease of a run, which no other process may have then.
   *
   * It fails if another run has committed since this run began. A successor of the agent wins the lease back, unless a
   * later run took it meanwhile. If it fails, it refuses only the calls for the log at `home`.
   */
  def hold(checkpoint: String, home: String, generation: Long, conf: Map[String, String]): HeldLease = leaseOf(checkpoint).synchronized {
    val request = HoldRequest(checkpoint, home, generation, leaseWaitS(conf))
    val now = call(request, conf).generation
    heldLeases.put(checkpoint, request.copy(generation = now, hadLease = true))
    val turn = lastTurn.incrementAndGet()
    turns.put(checkpoint, turn)
    HeldLease(turn, now)
  }

  /** Fails if the run of this generation lost its lease, because another run may write now. */
  def confirm(checkpoint: String, home: String, generation: Long, conf: Map[String, String]): Unit =
    call(HoldRequest(checkpoint, home, generation, leaseWaitS(conf)), conf)

  /** Warns a query that starts of its settings that the running agent cannot follow. */
  def warnAboutIgnoredSettings(conf: Map[String, String]): Unit = {
    runningAgent(conf)
    findIgnoredSettings(conf).foreach { case (key, used) =>
      logWarning(s"$key=${conf.getOrElse(key, "(not set)")} is not heeded: the agents of this application run already, with ${used.getOrElse("its default")}, " +
        "as its first query had it; it holds in another application")
    }
  }

  /** The settings of the running agent that differ from this query's, and their values. */
  private def findIgnoredSettings(conf: Map[String, String]): Seq[(String, Option[String])] = synchronized {
    AgentProcess.Keys.filter(key => conf.get(key) != startSettings.get(key)).map(key => key -> startSettings.get(key))
  }

  /**
   * How long the agent may wait for a lease, in seconds. The agent must give up before this JVM's timeout. Else it
   * could win the lease later, for a start that failed.
   */
  def leaseWaitS(conf: Map[String, String]): Double = timeoutMs(conf) / 3000.0

  /**
   * Gives the lease back, unless a later run in this JVM has it now. Never fails: if the agent is gone, its leases are
   * gone too.
   */
  def release(checkpoint: String, turn: Long, conf: Map[String, String]): Unit = leaseOf(checkpoint).synchronized {
    if (turns.remove(checkpoint, turn)) Option(heldLeases.remove(checkpoint)).foreach { held =>
      try call(ReleaseRequest(checkpoint, held.generation), conf) catch {
        case NonFatal(e) => logWarning(s"the agent did not give back the lease of $checkpoint", e)
      }
    }
  }

  /** Makes one call. Throws [[CecException]] with the agent's message if it fails. */
  def call(request: AgentRequest, conf: Map[String, String]): request.Answer = {
    val agent = runningAgent(conf)
    val answer = try callOnce(agent, request, isRetry = false, conf) catch {
      case refused: CecException => throw refused
      case NonFatal(first) =>
        logWarning(s"the agent did not answer '${request.call}'; starting another", first)
        try callOnce(startSuccessor(agent, conf), request, isRetry = true, conf) catch {
          case refused: CecException => throw refused
          case NonFatal(second) =>
            second.addSuppressed(first)
            throw new CecException("AgentUnavailable",
              s"the agent did not answer '${request.call}', nor did the one started in its place: see the errors of " +
                s"${AgentProcess.pythonOf(conf)} -m spark_cec.agent on standard error", second)
        }
    }
    request.parse(checkAnswer(answer))
  }

  /**
   * Makes one call to the agent that runs, for somebody who only looks. It starts no agent and opens no log, and takes
   * no silence for a death. The caller bounds the time.
   */
  def ask(request: AgentRequest): request.Answer = {
    val agent = synchronized(Option(process).filter(_.isAlive)).getOrElse(throw new CecException("AgentUnavailable", "no agent runs"))
    request.parse(checkAnswer(Json.parse(agent.call(request.call, request.toJson.put("retry", false).toString))))
  }

  /** Makes one call to this agent. If the agent does not have the log open, opens it and calls again. */
  private def callOnce(agent: AgentProcess, request: AgentRequest, isRetry: Boolean, conf: Map[String, String]): JsonNode = {
    val arguments = request.toJson.put("retry", isRetry)
    val answer = Json.parse(agent.call(request.call, arguments.toString))
    if (answer.path("error").path("kind").asText != "UnknownLog" || !arguments.hasNonNull("home")) answer
    else {
      val home = arguments.get("home").asText
      val known = Option(openCounts.get(home))
      val logId = known.flatMap(_._2).orElse(Json.text(arguments.get("log_id")))
      // If this JVM never opened the log, its absence is no loss: it may be on another machine.
      val again = OpenLogRequest(home, conf, logId, again = known.isDefined || logId.isEmpty, keep = known.isDefined)
      checkAnswer(Json.parse(agent.call(again.call, again.toJson.toString)))
      Json.parse(agent.call(request.call, arguments.toString))
    }
  }

  /** Names a new spool file for one call. If the spool has no room, the file goes to `overflow`. */
  def spoolFile(expectedBytes: Long, conf: Map[String, String]): SpoolPath = {
    val agent = runningAgent(conf)
    val name = UUID.randomUUID().toString + ".arrow"
    val isRoomy = agent.directory.toFile.getUsableSpace > 2 * expectedBytes
    if (isRoomy) SpoolPath(agent.directory.resolve(name), Some(agent.overflow.resolve(name))) else SpoolPath(agent.overflow.resolve(name))
  }

  /** The process id of the running agent, for tests and tools that watch it. */
  def pid: Option[Long] = synchronized(Option(process).filter(_.isAlive).map(_.pid))

  private def checkAnswer(answer: JsonNode): JsonNode = {
    val error = answer.get("error")
    if (error != null) throw new CecException(
      error.get("kind").asText, error.get("message").asText, parents = error.get("parents").elements.asScala.map(_.asText).toSet)
    answer
  }

  private def runningAgent(conf: Map[String, String]): AgentProcess = synchronized {
    if (process == null || !process.isAlive || isOfAnotherApplication) startAgent(conf)
    process
  }

  /** Whether the agent has the settings of an application that has ended: the next one may have other keys of its storage. */
  private def isOfAnotherApplication: Boolean = application.exists(known => Option(SparkEnv.get).exists(_ ne known))

  private def startSuccessor(failed: AgentProcess, conf: Map[String, String]): AgentProcess = synchronized {
    if (process eq failed) startAgent(conf)
    process
  }

  private def startAgent(conf: Map[String, String]): Unit = {
    // The calls of an application that has ended need no spool file any more.
    val inherited = Option(process).filterNot(_ => isOfAnotherApplication).map(dead => (dead.directory, dead.overflow))
    val spool = SpoolOptions(conf.get(AgentProcess.SpoolKey), inherited)
    // A dead agent still has connections, and a silent agent may still live.
    Option(process).foreach(_.destroy())
    val readStorage = StorageSettings.reader(conf)
    val storage = readStorage()
    process = AgentProcess.start(AgentProcess.pythonOf(conf), AgentProcess.keyOf(conf), spool, storage, timeoutMs(conf)) { agent =>
      heldLeases.asScala.foreach { case (checkpoint, request) =>
        val answer = Json.parse(agent.call(request.call, request.toJson.toString))
        // The agent then refuses the calls of that query alone.
        if (answer.has("error")) logWarning(s"the lease of $checkpoint was not won back: ${answer.get("error").get("message").asText}")
      }
    }
    val started = process
    new StorageSettingsWatch(storage, readStorage, started.send).start(() => !started.isAlive)
    starts += 1
    if (starts == 1 || isOfAnotherApplication) new AgentSource(() => pid, () => synchronized(starts)).register()
    application = Option(SparkEnv.get)
    startSettings = conf.filter { case (key, _) => AgentProcess.Keys.contains(key) }
  }

  /** The timeout of a call. */
  def timeoutMs(conf: Map[String, String]): Int =
    conf.get(AgentProcess.TimeoutKey).map(org.apache.spark.network.util.JavaUtils.timeStringAsMs(_).toInt).getOrElse(DefaultTimeoutMs)
}
