package org.apache.spark.sql.cec

import scala.util.control.NonFatal

/**
 * What is acquired one after another, and given back all together, the last first: at the end, or as soon as a step on the way fails. For
 * objects whose constructor opens several things: one that fails is never closed by anybody.
 */
private[cec] final class Acquired extends AutoCloseable {
  private var held: List[() => Unit] = Nil

  /** Has a resource, too. */
  def apply[A <: AutoCloseable](resource: => A): A = step {
    val made = resource
    undo(made.close())
    made
  }

  /** Does something with what is held, all of which is given back if that fails. */
  def step[A](body: => A): A = try body catch {
    case failure: Throwable =>
      try close() catch { case NonFatal(another) => failure.addSuppressed(another) }
      throw failure
  }

  /** What is to be done, too, when all is given back. */
  def undo(action: => Unit): Unit = held ::= (() => action)

  /** Gives all back, whatever of that fails; more than once is harmless. */
  override def close(): Unit = {
    val (all, failures) = (held, List.newBuilder[Throwable])
    held = Nil
    all.foreach(action => try action() catch { case NonFatal(failure) => failures += failure })
    failures.result() match {
      case first :: others =>
        others.foreach(first.addSuppressed)
        throw first
      case Nil =>
    }
  }
}
