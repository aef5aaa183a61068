package org.apache.spark.sql.cec.agent

import java.nio.file.Path
import java.util.UUID
import java.util.concurrent.ConcurrentHashMap

import scala.jdk.CollectionConverters._
import scala.util.control.NonFatal

import com.fasterxml.jackson.databind.JsonNode
import com.fasterxml.jackson.databind.node.ObjectNode

import org.apache.spark.internal.Logging
import org.apache.spark.sql.cec.metrics.AgentSource

/**
 * This JVM's agent. Started when first needed; if it died, the next call starts a successor, and the call is made once
 * more with `retry` set, so that the agent looks in the log for what became of it. An agent that does not know the log of a
 * call, or has closed it, is told to open it then: a log that cannot be opened fails the calls for it, and no others.
 */
private[cec] object Agent extends Logging {
  /** How long a call may take before the agent is taken for dead. */
  private val DefaultTimeoutMs = 600000

  private var process: AgentProcess = _
  private var starts = 0L

  /** What the running agent was begun with. */
  private var begunWith = Map.empty[String, String]

  /** By checkpoint, the lease that a successor of this agent must win back: arguments of the call `hold`. */
  private val lasting = new ConcurrentHashMap[String, ObjectNode]()

  /** How often the log at a home was opened here and not closed yet, and the id that it must have, where that is known. */
  private val opened = new ConcurrentHashMap[String, (Int, Option[String])]()

  /**
   * Opens the log at `home`, which must be the one with that id; without one, begins it where there is none. To be followed by
   * one [[closeLog]] when it is not needed any more.
   */
  def openLog(home: String, logId: Option[String], conf: Map[String, String]): Unit = {
    call("open_log", opening(home, logId, conf), conf)
    opened.merge(home, (1, logId), (before, more) => (before._1 + more._1, more._2.orElse(before._2)))
  }

  /** The opposite of one [[openLog]]: with the last one the agent closes the log. Never fails, and never starts an agent. */
  def closeLog(home: String): Unit = if (opened.containsKey(home)) {
    val left = opened.computeIfPresent(home, (_, known) => if (known._1 > 1) (known._1 - 1, known._2) else null)
    if (left == null) synchronized(Option(process).filter(_.isAlive)).foreach { agent =>
      try agent.call("close_log", Json.obj().put("home", home).toString) catch {
        case NonFatal(e) => logWarning(s"the agent did not close the log at $home", e)
      }
    }
  }

  /** Logs that are open here, for those who must watch it. */
  def openLogs: Set[String] = opened.keySet.asScala.toSet

  private def opening(home: String, logId: Option[String], conf: Map[String, String]): ObjectNode = {
    val arguments = Json.obj().put("home", home).put("log_id", logId.orNull)
    arguments.set[JsonNode]("conf", Json.map(conf))
    arguments
  }

  /** By checkpoint, the turn of the run that has its lease: the latest one to ask. */
  private val turns = new ConcurrentHashMap[String, java.lang.Long]()
  private var lastTurn = 0L
  private val leases = new Object

  /**
   * Takes the lease of a query, which no other process may have; answers the turn to give it back with. With a `generation`, that of a
   * run that begins now, it fails if a later run has begun. From then on a successor of the agent wins the lease back on the same
   * condition; if it does not, it refuses the calls for the log at `home`, and no others.
   */
  def hold(checkpoint: String, home: String, conf: Map[String, String], generation: Option[Long] = None): Long = leases.synchronized {
    val arguments = holding(checkpoint, home, generation, conf)
    call("hold", arguments, conf)
    if (generation.isEmpty) ignored(conf).foreach { case (key, used) =>
      logWarning(s"$key=${conf.getOrElse(key, "(not set)")} is not heeded: the agents of this application run already, with ${used.getOrElse("its default")}, " +
        "as its first query had it; it holds in another application")
    }
    lasting.put(checkpoint, arguments.deepCopy().put("runs", generation.isDefined))
    lastTurn += 1
    turns.put(checkpoint, lastTurn)
    lastTurn
  }

  /** Fails if the run of that generation has lost its lease: whatever it does from now on would be done under another run. */
  def confirm(checkpoint: String, home: String, generation: Long, conf: Map[String, String]): Unit =
    call("hold", holding(checkpoint, home, Some(generation), conf), conf)

  /** Settings of the running agent that a later query has otherwise, and what they are. */
  private def ignored(conf: Map[String, String]): Seq[(String, Option[String])] = synchronized {
    AgentProcess.Keys.filter(key => conf.get(key) != begunWith.get(key)).map(key => key -> begunWith.get(key))
  }

  /** The agent must answer before it is taken for dead: it would win the lease later, for a start that has failed. */
  private def holding(checkpoint: String, home: String, generation: Option[Long], conf: Map[String, String]): ObjectNode = {
    val arguments = Json.obj().put("checkpoint", checkpoint).put("home", home).put("wait_s", timeoutMs(conf) / 3000.0)
    generation.foreach(arguments.put("generation", _))
    arguments
  }

  /** Gives the lease back, unless a later run in this JVM has taken it over. Never fails: an agent that cannot be asked is gone, and its leases with it. */
  def release(checkpoint: String, turn: Long, conf: Map[String, String]): Unit = leases.synchronized {
    if (turns.remove(checkpoint, turn)) {
      lasting.remove(checkpoint)
      try call("release", Json.obj().put("checkpoint", checkpoint), conf) catch {
        case NonFatal(e) => logWarning(s"the agent did not give back the lease of $checkpoint", e)
      }
    }
  }

  /** One call; throws [[CecException]] with the agent's own words if it fails. */
  def call(name: String, arguments: ObjectNode, conf: Map[String, String]): JsonNode = {
    val agent = running(conf)
    val answer = try ask(agent, name, arguments, conf) catch {
      case refused: CecException => throw refused
      case NonFatal(first) =>
        logWarning(s"the agent did not answer '$name'; starting another", first)
        try ask(successor(agent, conf), name, arguments.deepCopy().put("retry", true), conf) catch {
          case refused: CecException => throw refused
          case NonFatal(second) =>
            second.addSuppressed(first)
            throw new CecException("AgentUnavailable",
              s"the agent did not answer '$name', nor did the one started in its place: see the errors of " +
                s"${AgentProcess.pythonOf(conf)} -m spark_cec.agent on standard error", second)
        }
    }
    checked(answer)
  }

  /** The agent's answer; where it does not know the log of the call, the log is opened and the call made again. */
  private def ask(agent: AgentProcess, name: String, arguments: ObjectNode, conf: Map[String, String]): JsonNode = {
    val answer = Json.parse(agent.call(name, arguments.toString))
    if (answer.path("error").path("kind").asText != "UnknownLog" || !arguments.hasNonNull("home")) answer
    else {
      val home = arguments.get("home").asText
      val known = Option(opened.get(home))
      val logId = known.flatMap(_._2).orElse(Json.text(arguments.get("log_id")))
      // A log that this JVM has never opened is not one that has gone: it may be on another machine.
      val again = opening(home, logId, conf).put("again", known.isDefined || logId.isEmpty).put("keep", known.isDefined)
      checked(Json.parse(agent.call("open_log", again.toString)))
      Json.parse(agent.call(name, arguments.toString))
    }
  }

  /** A new file in the spool, for one call. */
  def spoolFile(expectedBytes: Long, conf: Map[String, String]): Path = {
    val agent = running(conf)
    val roomy = agent.directory.toFile.getUsableSpace > 2 * expectedBytes
    (if (roomy) agent.directory else agent.overflow).resolve(UUID.randomUUID().toString + ".arrow")
  }

  /** Process id of the running agent, for those who must watch it. */
  def pid: Option[Long] = synchronized(Option(process).filter(_.isAlive).map(_.pid))

  private def checked(answer: JsonNode): JsonNode = {
    val error = answer.get("error")
    if (error != null) throw new CecException(error.get("kind").asText, error.get("message").asText)
    answer
  }

  private def running(conf: Map[String, String]): AgentProcess = synchronized {
    if (process == null || !process.isAlive) begin(conf)
    process
  }

  private def successor(failed: AgentProcess, conf: Map[String, String]): AgentProcess = synchronized {
    if (process eq failed) begin(conf)
    process
  }

  private def begin(conf: Map[String, String]): Unit = {
    val spool = SpoolOptions(conf.get(AgentProcess.SpoolKey), Option(process).map(dead => (dead.directory, dead.overflow)))
    // One that has died has connections still; one that does not answer may live.
    Option(process).foreach(_.destroy())
    process = AgentProcess.start(AgentProcess.pythonOf(conf), AgentProcess.keyOf(conf), spool, timeoutMs(conf)) { agent =>
      lasting.asScala.foreach { case (checkpoint, arguments) =>
        val answer = Json.parse(agent.call("hold", arguments.toString))
        // The agent refuses what that query asks of it from now on; the others are not concerned.
        if (answer.has("error")) logWarning(s"the lease of $checkpoint was not won back: ${answer.get("error").get("message").asText}")
      }
    }
    starts += 1
    if (starts == 1) new AgentSource(() => pid, () => synchronized(starts)).register()
    begunWith = conf.filter { case (key, _) => AgentProcess.Keys.contains(key) }
  }

  /** How long a call may take. */
  def timeoutMs(conf: Map[String, String]): Int =
    conf.get(AgentProcess.TimeoutKey).map(org.apache.spark.network.util.JavaUtils.timeStringAsMs(_).toInt).getOrElse(DefaultTimeoutMs)
}
