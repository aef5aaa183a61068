package org.apache.spark.sql.cec

import java.nio.file.Files

import org.apache.hadoop.conf.Configuration
import org.apache.hadoop.fs.{FileAlreadyExistsException, Path}

import org.apache.spark.sql.execution.streaming.checkpointing.CheckpointFileManager

class CecCheckpointFileManagerSuite extends CecSuite {
  private val root = new Path(Files.createTempDirectory("cec-files").toUri)

  private def manager(directory: Path): CheckpointFileManager = {
    val conf = new Configuration()
    conf.set(CecCheckpointFileManager.Key, classOf[CecCheckpointFileManager].getName)
    CheckpointFileManager.create(directory, conf)
  }

  private def write(files: CheckpointFileManager, file: Path, text: String): Unit = {
    val stream = files.createAtomic(file, overwriteIfPossible = false)
    stream.write(text.getBytes)
    stream.close()
  }

  test("it serves the logs of a checkpoint on an object store, and nothing else") {
    def found(path: String) = CecCheckpointFileManager.findCheckpoint(new Path(path))
    Seq("s3a://bucket/a query", "gs://bucket/q", "abfss://c@account.dfs.core.windows.net/q").foreach { checkpoint =>
      assert(found(s"$checkpoint/offsets").contains(checkpoint) && found(s"$checkpoint/commits").contains(checkpoint))
      Seq("", "/state/0/3", "/sources/0", "/metadata", "/offsets/7").foreach(other => assert(found(checkpoint + other).isEmpty))
    }
    Seq("file:/q/offsets", "/q/offsets", "hdfs://name/q/offsets", "ftp://host/offsets").foreach(other => assert(found(other).isEmpty))
  }

  test("on a local disk it is Spark's own manager") {
    val directory = new Path(root, "offsets")
    val files = manager(directory)
    assert(files.isInstanceOf[CecCheckpointFileManager] && files.isLocal)
    files.mkdirs(directory)
    val (first, second) = (new Path(directory, "0"), new Path(directory, "1"))
    write(files, first, "v1")
    intercept[FileAlreadyExistsException](write(files, first, "another"))
    val given = files.createAtomic(second, overwriteIfPossible = false)
    given.cancel()
    assert(files.exists(first) && !files.exists(second))
    // Spark's manager leaves the temporary file of an entry that another one has created.
    assert(files.list(directory, path => !path.getName.startsWith(".")).map(_.getPath.getName).toSeq == Seq("0"))
    val stream = files.open(first)
    try assert(new String(stream.readAllBytes()) == "v1") finally stream.close()
    files.delete(first)
    files.delete(first)
    assert(!files.exists(first))
  }
}
