package org.apache.spark.sql.cec.source

import java.nio.file.{Files, Path => LocalPath}

import org.apache.hadoop.conf.Configuration
import org.apache.hadoop.fs.Path

import org.apache.spark.sql.cec.CecSuite

class StreamBeginSuite extends CecSuite {
  private class Query {
    val checkpoint: LocalPath = Files.createTempDirectory("cec-begin")
    val noted: LocalPath = checkpoint.resolve("sources/1/begin")

    /** As another stream object asks, after a start. */
    def ask(find: => Long): Long = new StreamBegin(new Path(s"file:$checkpoint/sources/1"), new Configuration()).orElse(find)

    def plan(): Unit = Files.writeString(Files.createDirectories(checkpoint.resolve("offsets")).resolve("0"), "v1")
  }

  test("the begin stays as it was when the first batch was planned") {
    val query = new Query
    assert(query.ask(99) == 99)
    query.plan()
    assert(query.ask(139) == 99 && query.ask(fail("nobody may look again")) == 99)
  }

  test("a stream without a planned batch begins with the oldest output that is kept by now") {
    val query = new Query
    assert(query.ask(-1) == -1 && query.ask(139) == 139)
    query.plan()
    assert(query.ask(500) == 139)
  }

  test("a batch that an earlier release planned begins where it says, and nothing is noted") {
    val query = new Query
    query.plan()
    assert(query.ask(7) == 7 && !Files.exists(query.noted))
  }

  test("a note that is not whole is no begin") {
    for (damaged <- Seq("", "\u0000\u0000\u0000\u0000", "v1", "v1\n", "v1\n9x", "v2\n9")) {
      val query = new Query
      query.ask(9)
      query.plan()
      Files.writeString(query.noted, damaged)
      Files.deleteIfExists(query.noted.resolveSibling(".begin.crc"))
      assert(intercept[IllegalStateException](query.ask(10)).getMessage.contains(s"${query.noted} does not say where the stream begins"))
    }
  }
}
