package org.apache.spark.sql.cec.agent

import java.io.{File, IOException}
import java.net.InetAddress
import java.nio.charset.StandardCharsets.UTF_8
import java.nio.file.{Path, Paths}
import java.security.SecureRandom
import java.util.Base64
import java.util.concurrent.{CompletableFuture, TimeoutException, TimeUnit}
import javax.net.SocketFactory

import scala.jdk.CollectionConverters._

import com.fasterxml.jackson.databind.JsonNode
import py4j.{CallbackClient, Gateway, Protocol}

import org.apache.spark.{SparkContext, SparkEnv}
import org.apache.spark.sql.cec.BuildInfo

/**
 * One running agent: a Python process of this JVM. The process ends with the JVM, because its standard input closes
 * then. The agent listens on loopback only, and refuses callers without the token. Only `AgentProcess.start` makes
 * one.
 */
private[agent] final class AgentProcess private (process: Process, greeting: JsonNode, token: String, timeoutMs: Int) {
  /**
   * A pool of as many connections as there were calls at the same time.
   *
   * Py4J's `ClientServer` keeps one connection per thread, even after the thread ended, and a JVM makes new threads
   * all the time. Idle connections have no timeout, because Py4J's thread for that would keep the JVM from ending.
   */
  private val connections = new CallbackClient(
    greeting.get("port").asInt, InetAddress.getLoopbackAddress, token, 0L, TimeUnit.SECONDS, SocketFactory.getDefault, false, timeoutMs)

  /**
   * The proxy needs our class loader, but Py4J would take the calling thread's. If an executor got our jar with
   * `--jars`, only task threads know our classes. Threads that flush, hand over and close stores do not.
   */
  private val entryPoint: AgentCalls = {
    val calls = classOf[AgentCalls]
    val gateway = new Gateway(null, connections)
    calls.cast(gateway.createProxy(calls.getClassLoader, Array[Class[_]](calls), Protocol.ENTRY_POINT_OBJECT_ID))
  }

  /** The directory for spool files, private to this user. The agent removes it at a clean end. */
  val directory: Path = Paths.get(greeting.get("spool").asText)

  /** The directory for files that `directory` has no room for. */
  val overflow: Path = Paths.get(greeting.get("overflow").asText)

  def pid: Long = process.pid()

  def isAlive: Boolean = process.isAlive

  def call(name: String, arguments: String): String = entryPoint.call(name, arguments)

  /** Sends the settings of object stores again. The agent takes these in place of those that it has. */
  def send(storage: Map[String, String]): Unit = AgentProcess.write(process, Json.map(storage).toString)

  def destroy(): Unit = {
    try connections.shutdown() catch { case _: Exception => }
    AgentProcess.killProcess(process)
  }
}

/**
 * Where an agent keeps its spool.
 *
 * @param path the directory in which to make it, if the user set one
 * @param inherited the directories of a dead predecessor, because calls under way name files in them
 */
private[agent] final case class SpoolOptions(path: Option[String], inherited: Option[(Path, Path)]) {
  def arguments: Seq[String] =
    path.toSeq.flatMap(Seq("--spool-path", _)) ++
      inherited.toSeq.flatMap { case (directory, overflow) => Seq("--inherit", directory.toString, overflow.toString) }
}

private[agent] object AgentProcess {
  val PythonKey = "spark.sql.streaming.stateStore.cec.python"
  val DriverPythonKey = "spark.sql.streaming.stateStore.cec.driver.python"
  val SpoolKey = "spark.sql.streaming.stateStore.cec.spool.path"
  val TimeoutKey = "spark.sql.streaming.stateStore.cec.agent.timeout"

  val RetryKey = "spark.sql.streaming.stateStore.cec.storage.retry"

  private val EndWithinS = 10L

  /** Starts an agent and runs `prepare` with it. If a step fails, this method ends the process: nobody else could. */
  def start(python: String, pythonKey: String, spool: SpoolOptions, storage: Map[String, String], timeoutMs: Int)(
      prepare: AgentProcess => Unit): AgentProcess = {
    val process = startProcess(python, pythonKey, spool)
    undoOnFailure(killProcess(process)) {
      val token = newToken()
      val agent = new AgentProcess(process, new Handshake(python, pythonKey, process, timeoutMs).greeting(token, storage), token, timeoutMs)
      undoOnFailure(agent.destroy())(prepare(agent))
      agent
    }
  }

  /** Runs `step`. If it fails, runs `undo` before the error goes on. */
  private def undoOnFailure[T](undo: => Unit)(step: => T): T =
    try step catch {
      case failure: Throwable =>
        try undo catch { case another: Throwable => failure.addSuppressed(another) }
        throw failure
    }

  /**
   * Uses `-P`, and removes empty entries of PYTHONPATH. Else Python would import from the user's working directory,
   * where a `secrets.py` would replace Python's own.
   */
  private def startProcess(python: String, pythonKey: String, spool: SpoolOptions): Process = {
    val builder = new ProcessBuilder((Seq(python, "-P", "-m", "spark_cec.agent") ++ spool.arguments): _*)
    builder.redirectError(ProcessBuilder.Redirect.INHERIT)
    builder.environment().computeIfPresent("PYTHONPATH", (_, entries) =>
      entries.split(File.pathSeparator).filter(_.nonEmpty).mkString(File.pathSeparator))
    try builder.start() catch {
      case e: IOException =>
        throw new CecException("AgentUnavailable",
          s"cannot run $python (${e.getMessage}): set $pythonKey to a Python that has spark-cec installed", e)
    }
  }

  /**
   * Kills a process and all that it started, because a script may run the agent. A hanging agent has the lease that
   * its successor needs. A child that starts at this moment ends by itself, because its standard input is closed.
   * Waits for the end, unless this thread is interrupted.
   */
  private def killProcess(process: Process): Unit = {
    val children = process.descendants().iterator().asScala.toSeq
    process.destroyForcibly()
    children.foreach(_.destroyForcibly())
    val ends = process.onExit() +: children.map(_.onExit())
    try CompletableFuture.allOf(ends: _*).get(EndWithinS, TimeUnit.SECONDS) catch {
      case _: TimeoutException =>
      case _: InterruptedException => Thread.currentThread().interrupt()
    }
  }

  /** Writes a line to the standard input of a process. It may hold secrets: no other process sees it. */
  def write(process: Process, line: String): Unit = try {
    val stdin = process.getOutputStream
    stdin.write(s"$line\n".getBytes(UTF_8))
    stdin.flush()
  } catch { case _: IOException => } // the process has ended, and its output says why

  /** The settings that matter only when an agent starts. */
  val Keys: Seq[String] = Seq(PythonKey, DriverPythonKey, SpoolKey, TimeoutKey, RetryKey)

  private def newToken(): String = {
    val bytes = new Array[Byte](32)
    new SecureRandom().nextBytes(bytes)
    Base64.getUrlEncoder.withoutPadding().encodeToString(bytes)
  }

  /**
   * The Python that runs the agent: our setting, else the one that runs Spark's Python code in this JVM. Driver and
   * executors have settings of their own, because an environment that executors unpack does not exist on the driver.
   */
  def pythonOf(conf: Map[String, String]): String = {
    val env = Option(SparkEnv.get)
    def ofSpark(key: String) = env.flatMap(_.conf.getOption(key))
    def ofDriver = conf.get(DriverPythonKey)
      .orElse(conf.get(PythonKey))
      .orElse(ofSpark("spark.pyspark.driver.python").filter(isPython))
      .orElse(sys.env.get("PYSPARK_DRIVER_PYTHON").filter(isPython))
    def ofExecutor = conf.get(PythonKey)
    (if (isDriver) ofDriver else ofExecutor)
      .orElse(ofSpark("spark.pyspark.python"))
      .orElse(sys.env.get("PYSPARK_PYTHON"))
      .getOrElse("python3")
  }

  /** The setting that decides the Python of this JVM. */
  def keyOf(conf: Map[String, String]): String = if (conf.contains(DriverPythonKey) && isDriver) DriverPythonKey else PythonKey

  private def isDriver: Boolean = Option(SparkEnv.get).forall(_.executorId == SparkContext.DRIVER_IDENTIFIER)

  /** PYSPARK_DRIVER_PYTHON and its setting may name a notebook or another shell. */
  private def isPython(command: String): Boolean = Paths.get(command).getFileName.toString.startsWith("python")
}

/** The handshake with a new process: it gets the token and answers with the greeting. Each error names the remedy. */
private final class Handshake(python: String, pythonKey: String, process: Process, timeoutMs: Int) {
  import AgentOutput._

  private val output = new AgentOutput(process.getInputStream)

  def greeting(token: String, storage: Map[String, String]): JsonNode = {
    AgentProcess.write(process, s"$token ${Json.map(storage)}")
    val outcome = try output.await(process, timeoutMs) catch { case _: TimeoutException => throw lateError }
    val answer = outcome match {
      case Greeted(line) => Json.parse(line)
      case Ended => throw endedError
      case Flooded => throw floodedError
    }
    if (answer.has("error")) throw makeError(answer.get("error").asText)
    val version = answer.get("spark_cec_agent").asText
    if (version != BuildInfo.version)
      throw makeError(s"$python has spark-cec $version but the jar is ${BuildInfo.version}: install the same release on every machine")
    answer
  }

  private def lateError: CecException =
    makeError(s"$python -m spark_cec.agent was not ready within ${timeoutMs / 1000.0} s$printedText: see its standard error, or raise " +
      AgentProcess.TimeoutKey)

  private def floodedError: CecException =
    makeError(s"$python -m spark_cec.agent printed more than $Most characters before it was ready, the last of them '${output.said}': let it " +
      s"print less at its start, or set $pythonKey to a Python that does")

  private def endedError: CecException = {
    process.waitFor(10, TimeUnit.SECONDS)
    val code = if (process.isAlive) "none yet" else process.exitValue().toString
    val why =
      if (code == "137") "it was killed. Where nobody did that it was the kernel, because memory is short: leave it some, spark.executor.memoryOverhead on executors"
      else s"install spark-cec ${BuildInfo.version} for this Python, which must be 3.11 or newer, or set $pythonKey to one that has it"
    makeError(s"$python -m spark_cec.agent ended before it was ready$printedText (exit code $code; its standard error says why): $why")
  }

  private def printedText: String = if (output.said.isEmpty) "" else s", having printed '${output.said}'"

  private def makeError(message: String): CecException = new CecException("AgentUnavailable", message)
}
