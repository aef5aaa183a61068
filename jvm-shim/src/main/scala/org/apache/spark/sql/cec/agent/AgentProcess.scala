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
 * One running agent: a Python process that this JVM started and that ends when this JVM does, because its standard
 * input closes then. It listens on loopback only and serves nobody without the token. Only `AgentProcess.start` makes one.
 */
private[agent] final class AgentProcess private (process: Process, greeting: JsonNode, token: String, timeoutMs: Int) {
  /**
   * A pool: as many connections as there were ever calls at once. Py4J's `ClientServer` has one for each thread that ever
   * called, and keeps it when the thread has ended; a JVM's tasks and queries have new threads for ever. Without a time after which
   * idle ones end: that would be a thread of Py4J's which keeps a JVM from ending.
   */
  private val connections = new CallbackClient(
    greeting.get("port").asInt, InetAddress.getLoopbackAddress, token, 0L, TimeUnit.SECONDS, SocketFactory.getDefault, false, timeoutMs)

  /**
   * In our own class loader: Py4J would take that of the calling thread. On an executor that got our jar with `--jars` only threads of
   * tasks know our classes, but not those that flush, hand over and close stores.
   */
  private val entryPoint: AgentCalls = {
    val calls = classOf[AgentCalls]
    val gateway = new Gateway(null, connections)
    calls.cast(gateway.createProxy(calls.getClassLoader, Array[Class[_]](calls), Protocol.ENTRY_POINT_OBJECT_ID))
  }

  /** Directory for spool files, private to this user; removed by the agent when it ends in good order. */
  val directory: Path = Paths.get(greeting.get("spool").asText)

  /** Where files go that `directory` has no room for. */
  val overflow: Path = Paths.get(greeting.get("overflow").asText)

  def pid: Long = process.pid()

  def isAlive: Boolean = process.isAlive

  def call(name: String, arguments: String): String = entryPoint.call(name, arguments)

  def destroy(): Unit = {
    try connections.shutdown() catch { case _: Exception => }
    AgentProcess.end(process)
  }
}

/**
 * Where an agent keeps its spool.
 *
 * @param path where to make it, if the user says so
 * @param inherited the directories of a predecessor that died: calls under way name files in them
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

  private val EndWithinS = 10L

  /**
   * Starts an agent, which `prepare` must find usable. Whatever fails on the way there, no process is left behind: there is no other
   * way to have one.
   */
  def start(python: String, pythonKey: String, spool: SpoolOptions, timeoutMs: Int)(prepare: AgentProcess => Unit): AgentProcess = {
    val process = run(python, pythonKey, spool)
    undoneBy(end(process)) {
      val token = newToken()
      val agent = new AgentProcess(process, new Handshake(python, pythonKey, process, timeoutMs).greeting(token), token, timeoutMs)
      undoneBy(agent.destroy())(prepare(agent))
      agent
    }
  }

  /** What `step` answers; if it fails, however it does, `undo` comes first. */
  private def undoneBy[T](undo: => Unit)(step: => T): T =
    try step catch {
      case failure: Throwable =>
        try undo catch { case another: Throwable => failure.addSuppressed(another) }
        throw failure
    }

  /**
   * `-P`, and no empty entry in PYTHONPATH, which means the same: the working directory is a user's, who may have a `secrets.py` there
   * that would be run in place of Python's own.
   */
  private def run(python: String, pythonKey: String, spool: SpoolOptions): Process = {
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
   * Kills a process with all that it has started, if it is a script that runs the agent: an agent that hangs has the lease, which its
   * successor needs. One that the script starts at this very moment ends by itself, because its standard input is closed. Waits for
   * their end, unless this thread is interrupted.
   */
  private def end(process: Process): Unit = {
    val children = process.descendants().iterator().asScala.toSeq
    process.destroyForcibly()
    children.foreach(_.destroyForcibly())
    val ends = process.onExit() +: children.map(_.onExit())
    try CompletableFuture.allOf(ends: _*).get(EndWithinS, TimeUnit.SECONDS) catch {
      case _: TimeoutException =>
      case _: InterruptedException => Thread.currentThread().interrupt()
    }
  }

  /** What an agent is begun with. */
  val Keys: Seq[String] = Seq(PythonKey, DriverPythonKey, SpoolKey, TimeoutKey)

  private def newToken(): String = {
    val bytes = new Array[Byte](32)
    new SecureRandom().nextBytes(bytes)
    Base64.getUrlEncoder.withoutPadding().encodeToString(bytes)
  }

  /**
   * The Python that runs the agent: ours if set, else the one that runs Spark's Python code in this JVM. Driver and executors
   * are asked apart, because an environment that executors unpack is not there on the driver.
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

  /** The setting that decides which Python that is, here. */
  def keyOf(conf: Map[String, String]): String = if (conf.contains(DriverPythonKey) && isDriver) DriverPythonKey else PythonKey

  private def isDriver: Boolean = Option(SparkEnv.get).forall(_.executorId == SparkContext.DRIVER_IDENTIFIER)

  /** A driver's Python may be named as a notebook or another shell. */
  private def isPython(command: String): Boolean = Paths.get(command).getFileName.toString.startsWith("python")
}

/** The first words with a process that should become an agent: the token in, the greeting out. Each error says what to do. */
private final class Handshake(python: String, pythonKey: String, process: Process, timeoutMs: Int) {
  import AgentOutput._

  private val output = new AgentOutput(process.getInputStream)

  def greeting(token: String): JsonNode = {
    tell(token)
    val outcome = try output.await(process, timeoutMs) catch { case _: TimeoutException => throw late }
    val answer = outcome match {
      case Greeted(line) => Json.parse(line)
      case Ended => throw ended
      case Flooded => throw flooded
    }
    if (answer.has("error")) throw failure(answer.get("error").asText)
    val version = answer.get("spark_cec_agent").asText
    if (version != BuildInfo.version)
      throw failure(s"$python has spark-cec $version but the jar is ${BuildInfo.version}: install the same release on every machine")
    answer
  }

  private def tell(token: String): Unit = {
    val stdin = process.getOutputStream
    try {
      stdin.write((token + "\n").getBytes(UTF_8))
      stdin.flush()
    } catch { case _: IOException => } // the process has ended: its output says why
  }

  private def late: CecException =
    failure(s"$python -m spark_cec.agent was not ready within ${timeoutMs / 1000.0} s$printed: see its standard error, or raise " +
      AgentProcess.TimeoutKey)

  private def flooded: CecException =
    failure(s"$python -m spark_cec.agent printed more than $Most characters before it was ready, the last of them '${output.said}': let it " +
      s"print less at its start, or set $pythonKey to a Python that does")

  private def ended: CecException = {
    process.waitFor(10, TimeUnit.SECONDS)
    val code = if (process.isAlive) "none yet" else process.exitValue().toString
    val why =
      if (code == "137") "it was killed. Where nobody did that it was the kernel, because memory is short: leave it some, spark.executor.memoryOverhead on executors"
      else s"install spark-cec ${BuildInfo.version} for this Python, which must be 3.11 or newer, or set $pythonKey to one that has it"
    failure(s"$python -m spark_cec.agent ended before it was ready$printed (exit code $code; its standard error says why): $why")
  }

  private def printed: String = if (output.said.isEmpty) "" else s", having printed '${output.said}'"

  private def failure(message: String): CecException = new CecException("AgentUnavailable", message)
}
