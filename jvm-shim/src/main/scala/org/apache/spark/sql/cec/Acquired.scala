package org.apache.spark.sql.cec

import scala.util.control.NonFatal

/**
 * Resources that are acquired in turn and released together, the last one first: at the end, or when a later step
 * fails. An object whose constructor opens several resources needs this, because nobody can close it if the
 * constructor throws.
 */
private[cec] final class Acquired extends AutoCloseable {
  private var releases: List[() => Unit] = Nil

  /** Acquires a resource. */
  def apply[A <: AutoCloseable](resource: => A): A = step {
    val made = resource
    undo(made.close())
    made
  }

  /** Runs a step. If it fails, releases all resources. */
  def step[A](body: => A): A = try body catch {
    case failure: Throwable =>
      try close() catch { case NonFatal(another) => failure.addSuppressed(another) }
      throw failure
  }

  /** Adds an action for the release. */
  def undo(action: => Unit): Unit = releases ::= (() => action)

  /** Releases all resources, even if some releases fail. A second call does nothing. */
  override def close(): Unit = {
    val (all, failures) = (releases, List.newBuilder[Throwable])
    releases = Nil
    all.foreach(action => try action() catch { case NonFatal(failure) => failures += failure })
    failures.result() match {
      case first :: others =>
        others.foreach(first.addSuppressed)
        throw first
      case Nil =>
    }
  }
}
