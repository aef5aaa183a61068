package org.apache.spark.sql.cec

import java.nio.file.Files

import org.apache.hadoop.conf.Configuration
import org.apache.hadoop.fs.Path

import org.apache.spark.sql.execution.streaming.checkpointing.CheckpointFileManager

class CecCheckpointFileManagerSuite extends CecSuite {
  private val root = new Path(Files.createTempDirectory("cec-files").toUri)

  private def manager(directory: Path): CheckpointFileManager = {
    val conf = new Configuration()
    conf.set(CecCheckpointFileManager.Key, classOf[CecCheckpointFileManager].getName)
    CheckpointFileManager.create(directory, conf)
  }

  test("it serves the logs of a checkpoint on an object store, and nothing else") {
    def found(path: String) = CecCheckpointFileManager.findCheckpoint(new Path(path))
    Seq("s3a://bucket/a query", "gs://bucket/q", "abfss://c@account.dfs.core.windows.net/q").foreach { checkpoint =>
      assert(found(s"$checkpoint/offsets").contains(checkpoint) && found(s"$checkpoint/commits").contains(checkpoint))
      Seq("", "/state/0/3", "/sources/0", "/metadata", "/offsets/7").foreach(other => assert(found(checkpoint + other).isEmpty))
    }
    Seq("file:/q/offsets", "/q/offsets", "hdfs://name/q/offsets", "ftp://host/offsets").foreach(other => assert(found(other).isEmpty))
  }

  test("on a local disk it is the local manager, below any scheme that means it") {
    Seq(root, new Path(root.toUri.getPath)).foreach { directory =>
      assert(LocalFileManager.serves(directory, new Configuration()))
      val files = manager(new Path(directory, "offsets"))
      assert(files.isInstanceOf[CecCheckpointFileManager] && files.isLocal)
    }
    val otherDefault = new Configuration()
    otherDefault.set("fs.defaultFS", "hdfs://name/")
    assert(!LocalFileManager.serves(new Path("/q/offsets"), otherDefault))
    val otherClass = new Configuration()
    otherClass.set("fs.AbstractFileSystem.file.impl", classOf[org.apache.hadoop.fs.local.RawLocalFs].getName)
    assert(!LocalFileManager.serves(root, otherClass))
    Seq("hdfs://name/q", "s3a://bucket/q").foreach(other => assert(!LocalFileManager.serves(new Path(other), new Configuration())))
  }
}
