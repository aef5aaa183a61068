package org.apache.spark.sql.cec.recovery

import java.nio.file.Files

import org.apache.hadoop.conf.Configuration
import org.apache.hadoop.fs.Path

import org.apache.spark.sql.cec.CecSuite
import org.apache.spark.sql.execution.streaming.checkpointing.CheckpointFileManager

class SparkLogsSuite extends CecSuite {
  private def isUnfinished(name: String): Boolean = SparkLogs.Unfinished.matches(name)
  private val id = "0f8fad5b-d9cb-469f-a165-70867728950e"

  test("unfinished files of batches, and their checksums") {
    for (name <- Seq(s".0.$id.tmp", s"..0.$id.tmp.crc", s".1234567890123.$id.tmp")) assert(isUnfinished(name), name)
  }

  test("all other files stay") {
    for (name <- Seq(
        "0", ".0.crc", "..0.crc", "metadata", s"0.$id.tmp", s"...0.$id.tmp", s".metadata.$id.tmp", s".-1.$id.tmp", s".0.$id.tmp.bak",
        s".0.$id.tmpcrc", s".0.${id.toUpperCase}.tmp", s".0.${id.tail}.tmp", s".0.$id", s".0.compact.$id.tmp", s".0.$id.tmp\n", "")) {
      assert(!isUnfinished(name), name)
    }
  }

  test("Spark's own unfinished file has such a name, and its finished one does not") {
    val directory = Files.createTempDirectory("cec")
    val files = CheckpointFileManager.create(new Path(directory.toUri), new Configuration())
    def names = directory.toFile.list().toSeq
    val stream = files.createAtomic(new Path(directory.resolve("7").toUri), overwriteIfPossible = false)
    stream.write(1)
    assert(names.nonEmpty && names.forall(isUnfinished), names)
    stream.close()
    assert(names.contains("7") && !names.exists(isUnfinished), names)
  }
}
