package org.apache.spark.sql.cec.agent

import java.io.{BufferedReader, InputStreamReader}
import java.net.InetAddress
import java.nio.charset.StandardCharsets.UTF_8
import java.nio.file.{Path, Paths}
import java.security.SecureRandom
import java.util.Base64
import java.util.concurrent.{CompletableFuture, TimeUnit, TimeoutException}
import javax.net.SocketFactory

import com.fasterxml.jackson.databind.JsonNode
import py4j.{CallbackClient, Gateway}

import org.apache.spark.{SparkContext, SparkEnv}
import org.apache.spark.sql.cec.BuildInfo

/**
 * One running agent: a Python process that this JVM started and that ends when this JVM does, because its standard
 * input closes then. It listens on loopback only and serves nobody without the token.
 */
private[agent] final class AgentProcess(python: String, pythonKey: String, spool: SpoolOptions, timeoutMs: Int) {
  private val token = AgentProcess.newToken()
  private val process: Process = start()
  private val hello: JsonNode = handshake()

  /**
   * A pool: as many connections as there were ever calls at once. Py4J's `ClientServer` has one for each thread that ever
   * called, and keeps it when the thread has ended; a JVM's tasks and queries have new threads for ever. Without a time after which
   * idle ones end: that would be a thread of Py4J's which keeps a JVM from ending.
   */
  private val connections = new CallbackClient(
    hello.get("port").asInt, InetAddress.getLoopbackAddress, token, 0L, TimeUnit.SECONDS, SocketFactory.getDefault, false, timeoutMs)
  private val entryPoint: AgentCalls =
    connections.getPythonServerEntryPoint(new Gateway(null, connections), Array[Class[_]](classOf[AgentCalls])).asInstanceOf[AgentCalls]

  /** Directory for spool files, private to this user; removed by the agent when it ends in good order. */
  val directory: Path = Paths.get(hello.get("spool").asText)

  /** Where files go that `directory` has no room for. */
  val overflow: Path = Paths.get(hello.get("overflow").asText)

  def pid: Long = process.pid()

  def isAlive: Boolean = process.isAlive

  def call(name: String, arguments: String): String = entryPoint.call(name, arguments)

  def destroy(): Unit = {
    try connections.shutdown() catch { case _: Exception => }
    process.destroyForcibly()
    process.waitFor(10, TimeUnit.SECONDS)
  }

  private def start(): Process = {
    val builder = new ProcessBuilder((Seq(python, "-m", "spark_cec.agent") ++ spool.arguments): _*)
    builder.redirectError(ProcessBuilder.Redirect.INHERIT)
    try builder.start() catch {
      case e: java.io.IOException =>
        throw new CecException("AgentUnavailable",
          s"cannot run $python (${e.getMessage}): set $pythonKey to a Python that has spark-cec installed", e)
    }
  }

  private def handshake(): JsonNode = {
    val stdin = process.getOutputStream
    try {
      stdin.write((token + "\n").getBytes(UTF_8))
      stdin.flush()
    } catch { case _: java.io.IOException => } // the process has ended: its output says why
    val answered = CompletableFuture.supplyAsync[String](() =>
      new BufferedReader(new InputStreamReader(process.getInputStream, UTF_8)).readLine())
    val line = try answered.get(timeoutMs, TimeUnit.MILLISECONDS) catch {
      case _: TimeoutException =>
        process.destroyForcibly()
        throw new CecException("AgentUnavailable",
          s"$python -m spark_cec.agent was not ready within ${timeoutMs / 1000.0} s: see its standard error, or raise " +
            AgentProcess.TimeoutKey)
    }
    if (line == null) {
      process.waitFor(10, TimeUnit.SECONDS)
      val code = if (process.isAlive) "none yet" else process.exitValue().toString
      val why =
        if (code == "137") "it was killed. Where nobody did that it was the kernel, because memory is short: leave it some, spark.executor.memoryOverhead on executors"
        else s"install spark-cec ${BuildInfo.version} for this Python, or set $pythonKey to one that has it"
      throw new CecException("AgentUnavailable",
        s"$python -m spark_cec.agent ended before it was ready (exit code $code; its standard error says why): $why")
    }
    val answer = Json.parse(line)
    if (answer.has("error")) throw new CecException("AgentUnavailable", answer.get("error").asText)
    val version = answer.get("version").asText
    if (version != BuildInfo.version) {
      process.destroyForcibly()
      throw new CecException("AgentUnavailable",
        s"$python has spark-cec $version but the jar is ${BuildInfo.version}: install the same release on every machine")
    }
    answer
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
