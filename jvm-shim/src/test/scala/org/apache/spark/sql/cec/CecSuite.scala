package org.apache.spark.sql.cec

import scala.util.Random
import scala.util.control.NonFatal

import org.scalatest.funsuite.AnyFunSuite

import org.apache.spark.sql.cec.agent.CecException

/** A suite with random tests, which name the seed of a failure. */
abstract class CecSuite extends AnyFunSuite {
  /** Runs a test with several seeds. A system property asks for one seed: `python -m scala_tests --seed`. */
  protected def testSeeds(name: String, seeds: Int = 40)(body: Random => Unit): Unit = test(name) {
    val first = System.nanoTime()
    val chosen = sys.props.get("cec.test.seed").map(text => Seq(text.toLong)).getOrElse((0 until seeds).map(first + _))
    chosen.foreach { seed =>
      try body(new Random(seed)) catch {
        case NonFatal(failure) => throw new AssertionError(s"seed $seed: ${failure.getMessage} (--seed $seed repeats it)", failure)
      }
    }
  }

  /** The message of the error of this kind that the body throws. */
  protected def refused(kind: String)(body: => Any): String = {
    val error = intercept[CecException](body)
    assert(error.kind == kind)
    error.getMessage
  }

  protected def pick[A](random: Random, from: Seq[A]): A = from(random.nextInt(from.size))
}
