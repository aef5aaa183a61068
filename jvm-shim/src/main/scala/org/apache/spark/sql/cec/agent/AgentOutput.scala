package org.apache.spark.sql.cec.agent

import java.io.{InputStream, InputStreamReader, IOException}
import java.nio.charset.StandardCharsets.UTF_8
import java.util.concurrent.{CompletableFuture, TimeUnit}

/**
 * Reads the standard output of an agent until it closes, so that the agent never blocks on it. `await` returns the
 * greeting. All other text goes to this JVM's standard error, because Python or a wrapper script may print.
 */
private[agent] final class AgentOutput(stream: InputStream) {
  import AgentOutput._

  private val outcome = new CompletableFuture[Outcome]()
  private val beforeGreeting = new StringBuffer()

  locally {
    val thread = new Thread(() => readAll(), "cec-agent-output")
    thread.setDaemon(true)
    thread.start()
  }

  /** Waits for the greeting. Throws `TimeoutException` if neither the greeting nor an end comes in time. */
  def await(process: Process, timeoutMs: Long): Outcome = {
    // A child of a script may hold the output open after the process ends. The reader gets a moment for the last words.
    val later = CompletableFuture.delayedExecutor(LastWordsMs, TimeUnit.MILLISECONDS)
    process.onExit().thenRunAsync(() => outcome.complete(Ended), later)
    outcome.get(timeoutMs, TimeUnit.MILLISECONDS)
  }

  /** The end of the output before the greeting, on one line, for an error message. */
  def said: String = beforeGreeting.toString.takeRight(MostSaid).trim.replaceAll("\\s*[\r\n]+\\s*", " / ")

  private def readAll(): Unit =
    try {
      val reader = new InputStreamReader(stream, UTF_8)
      val piece = new Array[Char](8192)
      Iterator.continually(reader.read(piece)).takeWhile(_ >= 0).foreach(count => takeText(new String(piece, 0, count)))
    } catch {
      case _: IOException => // this JVM ended the process
    } finally outcome.complete(Ended)

  private def takeText(text: String): Unit =
    if (outcome.isDone) passOn(text)
    else {
      beforeGreeting.append(text)
      val start = beforeGreeting.indexOf(Mark)
      val end = if (start < 0) -1 else beforeGreeting.indexOf("\n", start)
      if (end >= 0) {
        val greeting = beforeGreeting.substring(start, end)
        passOn(beforeGreeting.substring(0, start) + beforeGreeting.substring(end + 1))
        beforeGreeting.setLength(0)
        outcome.complete(Greeted(greeting))
      } else if (beforeGreeting.length > Most) outcome.complete(Flooded)
    }

  private def passOn(text: String): Unit = if (text.nonEmpty) System.err.print(text)
}

private[agent] object AgentOutput {
  /**
   * The beginning of a greeting, which `__main__.py` of the agent has too. Other text may stand before it on the line.
   */
  val Mark = "{\"spark_cec_agent\": "

  /** The most characters before the greeting. */
  val Most: Int = 1 << 20

  private val MostSaid = 500
  private val LastWordsMs = 1000L

  sealed trait Outcome

  /** The greeting, which is JSON. */
  final case class Greeted(line: String) extends Outcome

  /** The output is closed, or the process has ended. */
  case object Ended extends Outcome

  /** The output had too many characters before the greeting. */
  case object Flooded extends Outcome
}
