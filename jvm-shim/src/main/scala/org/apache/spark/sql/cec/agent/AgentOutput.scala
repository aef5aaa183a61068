package org.apache.spark.sql.cec.agent

import java.io.{InputStream, InputStreamReader, IOException}
import java.nio.charset.StandardCharsets.UTF_8
import java.util.concurrent.{CompletableFuture, TimeUnit}

/**
 * An agent's standard output. It is read for as long as it is open, so that no agent waits for a reader. `await` answers the
 * greeting. All else goes to this JVM's standard error, beside the agent's own: a Python, or a script that wraps it, may print.
 */
private[agent] final class AgentOutput(stream: InputStream) {
  import AgentOutput._

  private val outcome = new CompletableFuture[Outcome]()
  private val before = new StringBuffer()

  locally {
    val thread = new Thread(() => read(), "cec-agent-output")
    thread.setDaemon(true)
    thread.start()
  }

  /** Waits for the greeting; `TimeoutException` if neither that nor an end of the output or of the process comes in time. */
  def await(process: Process, timeoutMs: Long): Outcome = {
    // What a script has left behind may hold the output open. The reader needs a moment for the last words.
    val later = CompletableFuture.delayedExecutor(LastWordsMs, TimeUnit.MILLISECONDS)
    process.onExit().thenRunAsync(() => outcome.complete(Ended), later)
    outcome.get(timeoutMs, TimeUnit.MILLISECONDS)
  }

  /** The last of what was printed before the greeting, on one line, to be put into an error. */
  def said: String = before.toString.takeRight(MostSaid).trim.replaceAll("\\s*[\r\n]+\\s*", " / ")

  private def read(): Unit =
    try {
      val reader = new InputStreamReader(stream, UTF_8)
      val piece = new Array[Char](8192)
      Iterator.continually(reader.read(piece)).takeWhile(_ >= 0).foreach(count => take(new String(piece, 0, count)))
    } catch {
      case _: IOException => // the process was ended here
    } finally outcome.complete(Ended)

  private def take(text: String): Unit =
    if (outcome.isDone) passOn(text)
    else {
      before.append(text)
      val start = before.indexOf(Mark)
      val end = if (start < 0) -1 else before.indexOf("\n", start)
      if (end >= 0) {
        val greeting = before.substring(start, end)
        passOn(before.substring(0, start) + before.substring(end + 1))
        before.setLength(0)
        outcome.complete(Greeted(greeting))
      } else if (before.length > Most) outcome.complete(Flooded)
    }

  private def passOn(text: String): Unit = if (text.nonEmpty) System.err.print(text)
}

private[agent] object AgentOutput {
  /** How a greeting begins; the agent's `__main__.py` knows it, too. Before it on its line may be words that have no end of line. */
  val Mark = "{\"spark_cec_agent\": "

  /** Characters before the greeting, at most. */
  val Most: Int = 1 << 20

  private val MostSaid = 500
  private val LastWordsMs = 1000L

  sealed trait Outcome

  /** The greeting, which is JSON. */
  final case class Greeted(line: String) extends Outcome

  /** The output is closed, or its process has ended. */
  case object Ended extends Outcome

  /** There was more than anybody wants to print at a start. */
  case object Flooded extends Outcome
}
