package org.apache.spark.sql.cec.agent

import java.nio.file.Path
import java.util.UUID
import java.util.concurrent.ConcurrentHashMap

import scala.jdk.CollectionConverters._
import scala.util.control.NonFatal

import com.fasterxml.jackson.databind.JsonNode
import com.fasterxml.jackson.databind.node.ObjectNode

import org.apache.spark.internal.Logging

/**
 * This JVM's agent. Started when first needed; if it died, the next call starts a successor, which opens the same logs
 * again, and the call is made once more with `retry` set, so that the agent looks in the log for what became of it.
 */
private[cec] object Agent extends Logging {
  /** How long a call may take before the agent is taken for dead. */
  private val DefaultTimeoutMs = 600000
  private val TimeoutKey = "spark.sql.streaming.stateStore.cec.agent.timeout"

  private var process: AgentProcess = _

  /** Calls whose effect lasts, by what they are about: a successor of this agent must make them again. */
  private val lasting = new ConcurrentHashMap[String, (String, ObjectNode)]()

  /** Opens the log at `home`, now and in every successor of this agent. */
  def openLog(home: String, conf: Map[String, String]): Unit = {
    val arguments = Json.obj().put("home", home)
    arguments.set[JsonNode]("conf", Json.map(conf))
    call("open_log", arguments, conf)
    lasting.put(home, ("open_log", arguments))
  }

  /** By checkpoint, the turn of the run that has its lease: the latest one to ask. */
  private val turns = new ConcurrentHashMap[String, java.lang.Long]()
  private var lastTurn = 0L
  private val leases = new Object

  /** Takes the lease of a query's checkpoint, which no other process may have; answers the turn to give it back with. */
  def hold(checkpoint: String, conf: Map[String, String]): Long = leases.synchronized {
    val arguments = holding(checkpoint, conf)
    call("hold", arguments, conf)
    lasting.put(leaseOf(checkpoint), ("hold", arguments))
    lastTurn += 1
    turns.put(checkpoint, lastTurn)
    lastTurn
  }

  /** From now on a successor of the agent wins the lease back only if no later run has begun in the meantime. */
  def holdAs(checkpoint: String, generation: Long, conf: Map[String, String]): Unit = leases.synchronized {
    lasting.put(leaseOf(checkpoint), ("hold", holding(checkpoint, conf).put("generation", generation)))
  }

  /** Fails if the run of that generation has lost its lease: whatever it does from now on would be done under another run. */
  def confirm(checkpoint: String, generation: Long, conf: Map[String, String]): Unit =
    call("hold", holding(checkpoint, conf).put("generation", generation), conf)

  /** The agent must answer before it is taken for dead: it would win the lease later, for a start that has failed. */
  private def holding(checkpoint: String, conf: Map[String, String]): ObjectNode =
    Json.obj().put("checkpoint", checkpoint).put("wait_s", timeoutMs(conf) / 3000.0)

  /** Gives the lease back, unless a later run in this JVM has taken it over. */
  def release(checkpoint: String, turn: Long, conf: Map[String, String]): Unit = leases.synchronized {
    if (turns.remove(checkpoint, turn)) {
      lasting.remove(leaseOf(checkpoint))
      call("release", Json.obj().put("checkpoint", checkpoint), conf)
    }
  }

  private def leaseOf(checkpoint: String) = s"lease of $checkpoint"

  /** Opens the log at `home` unless this JVM has opened it before. */
  def ensureOpen(home: String, conf: Map[String, String]): Unit = if (!lasting.containsKey(home)) openLog(home, conf)

  /** One call; throws [[CecException]] with the agent's own words if it fails. */
  def call(name: String, arguments: ObjectNode, conf: Map[String, String]): JsonNode = {
    val agent = running(conf)
    val answer = try agent.call(name, arguments.toString) catch {
      case refused: CecException => throw refused
      case NonFatal(first) =>
        logWarning(s"the agent did not answer '$name'; starting another", first)
        try successor(agent, conf).call(name, arguments.deepCopy().put("retry", true).toString) catch {
          case refused: CecException => throw refused
          case NonFatal(second) =>
            second.addSuppressed(first)
            throw new CecException("AgentUnavailable",
              s"the agent did not answer '$name', nor did the one started in its place: see the errors of " +
                s"${AgentProcess.pythonOf(conf)} -m spark_cec.agent on standard error", second)
        }
    }
    checked(Json.parse(answer))
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
    if (process eq failed) {
      failed.destroy()
      begin(conf)
    }
    process
  }

  private def begin(conf: Map[String, String]): Unit = {
    val spool = SpoolOptions(conf.get(AgentProcess.SpoolKey), Option(process).map(dead => (dead.directory, dead.overflow)))
    val begun = new AgentProcess(AgentProcess.pythonOf(conf), spool, timeoutMs(conf))
    try lasting.values.asScala.foreach { case (name, arguments) => checked(Json.parse(begun.call(name, arguments.toString))) }
    catch {
      case failure: Throwable =>
        begun.destroy() // an agent without the leases of the one before it must not serve anybody
        throw failure
    }
    process = begun
  }

  private def timeoutMs(conf: Map[String, String]): Int =
    conf.get(TimeoutKey).map(org.apache.spark.network.util.JavaUtils.timeStringAsMs(_).toInt).getOrElse(DefaultTimeoutMs)
}
