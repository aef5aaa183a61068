package org.apache.spark.sql.cec

import scala.collection.mutable

class AcquiredSuite extends CecSuite {
  private final class Resource(name: String, log: mutable.Buffer[String], failure: Throwable = null) extends AutoCloseable {
    log += s"open $name"

    override def close(): Unit = {
      log += s"close $name"
      if (failure != null) throw failure
    }
  }

  test("resources are released once, the last one first") {
    val (log, acquired) = (mutable.Buffer.empty[String], new Acquired)
    acquired(new Resource("a", log))
    acquired.undo(log += "undo b")
    acquired(new Resource("c", log))
    acquired.close()
    acquired.close()
    assert(log == Seq("open a", "open c", "close c", "undo b", "close a"))
  }

  test("a resource that cannot be made releases the others, and keeps its error") {
    val (log, acquired) = (mutable.Buffer.empty[String], new Acquired)
    acquired(new Resource("a", log))
    val failure = intercept[IllegalStateException](acquired[Resource](throw new IllegalStateException("no b")))
    assert(failure.getMessage == "no b" && failure.getSuppressed.isEmpty)
    assert(log == Seq("open a", "close a"))
    acquired.close()
    assert(log.size == 2)
  }

  test("a step's fatal error releases the resources, too") {
    val (log, acquired) = (mutable.Buffer.empty[String], new Acquired)
    acquired(new Resource("a", log))
    assertThrows[LinkageError](acquired.step(throw new LinkageError("x")))
    assert(log.last == "close a")
  }

  test("an error at the release is beside the step's error") {
    val (log, acquired) = (mutable.Buffer.empty[String], new Acquired)
    val closing = new IllegalArgumentException("close")
    acquired(new Resource("a", log, closing))
    val failure = intercept[IllegalStateException](acquired.step(throw new IllegalStateException("step")))
    assert(failure.getMessage == "step")
    assert(failure.getSuppressed.toSeq == Seq(closing))
  }

  test("the resources behind one that fails at the release are released") {
    val (log, acquired) = (mutable.Buffer.empty[String], new Acquired)
    val (first, second) = (new IllegalArgumentException("c"), new IllegalStateException("b"))
    acquired(new Resource("a", log))
    acquired(new Resource("b", log, second))
    acquired(new Resource("c", log, first))
    assert(intercept[IllegalArgumentException](acquired.close()) eq first)
    assert(first.getSuppressed.toSeq == Seq(second))
    assert(log.drop(3) == Seq("close c", "close b", "close a"))
  }

  test("a step that works returns its result and releases nothing") {
    val (log, acquired) = (mutable.Buffer.empty[String], new Acquired)
    acquired(new Resource("a", log))
    assert(acquired.step(7) == 7)
    assert(log == Seq("open a"))
  }
}
