package org.apache.spark.sql.cec.ui

import java.util.concurrent.{ConcurrentHashMap, ExecutionException, ExecutorService, Future, TimeoutException, TimeUnit}

import scala.util.control.NonFatal

/**
 * The newest answer of a call.
 *
 * @param value None before the first answer
 * @param atMs when that answer came
 * @param problem why there is no newer one
 */
private[ui] final case class Timed[+V](value: Option[V], atMs: Long, problem: Option[String])

/**
 * Makes slow calls for pages. A page waits for at most `limitMs`, whatever the number of calls, and then shows the
 * answers of before. A call that is under way is not made again.
 *
 * @param call runs in a thread of `threads`
 */
private[ui] final class TimedCalls[K, V](threads: ExecutorService, limitMs: Long, call: K => V) {
  private val newest = new ConcurrentHashMap[K, Timed[V]]()
  private val underWay = new ConcurrentHashMap[K, Future[Timed[V]]]()

  /** Answers for all keys. */
  def ask(keys: Seq[K]): Map[K, Timed[V]] = {
    val deadlineNs = System.nanoTime() + TimeUnit.MILLISECONDS.toNanos(limitMs)
    // All calls begin before the page waits for the first one.
    val running = keys.map(key => key -> underWay.computeIfAbsent(key, _ => threads.submit(() => make(key))))
    running.map { case (key, answer) => key -> await(key, answer, deadlineNs) }.toMap
  }

  /** What is known, without a call. */
  def recall(key: K): Timed[V] = newest.getOrDefault(key, Timed(None, 0L, None))

  /** Forgets all keys but these. */
  def keepOnly(keys: Set[K]): Unit = newest.keySet.removeIf(key => !keys.contains(key))

  private def make(key: K): Timed[V] = {
    try {
      val answer = try Timed(Some(call(key)), System.currentTimeMillis(), None) catch {
        case NonFatal(error) => recall(key).copy(problem = Some(describe(error)))
      }
      newest.put(key, answer)
      answer
    } finally underWay.remove(key)
  }

  private def describe(error: Throwable): String = Option(error.getMessage).getOrElse(error.toString)

  private def await(key: K, answer: Future[Timed[V]], deadlineNs: Long): Timed[V] =
    try answer.get(Math.max(deadlineNs - System.nanoTime(), 0L), TimeUnit.NANOSECONDS) catch {
      case failed: ExecutionException => recall(key).copy(problem = Some(describe(failed.getCause)))
      case _: TimeoutException => recall(key).copy(problem = Some(s"the agent has not answered within ${limitMs / 1000.0} s"))
    }
}
