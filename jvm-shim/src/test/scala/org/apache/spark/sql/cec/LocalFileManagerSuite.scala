package org.apache.spark.sql.cec

import java.nio.charset.StandardCharsets.UTF_8
import java.nio.file.{FileSystemException, Files, Path => LocalPath}
import java.nio.file.attribute.PosixFilePermissions
import java.util.concurrent.{Callable, CyclicBarrier, Executors}

import scala.jdk.CollectionConverters._
import scala.util.{Failure, Success, Try}

import jdk.jfr.Recording
import jdk.jfr.consumer.RecordingFile
import org.apache.hadoop.conf.Configuration
import org.apache.hadoop.fs.{ChecksumException, FileAlreadyExistsException, FileSystem, Path}

import org.apache.spark.sql.execution.streaming.checkpointing.{CheckpointFileManager, FileContextBasedCheckpointFileManager}

class LocalFileManagerSuite extends CecSuite {
  private def newDirectory(): Path = new Path(Files.createTempDirectory("cec-files").toUri.toString)
  private def ours(directory: Path, conf: Configuration = new Configuration()) = new LocalFileManager(directory, conf)
  private def sparks(directory: Path) = new FileContextBasedCheckpointFileManager(directory, new Configuration())

  private def write(files: CheckpointFileManager, file: Path, text: String, overwrites: Boolean = false): Unit = {
    val stream = files.createAtomic(file, overwrites)
    stream.write(text.getBytes(UTF_8))
    stream.close()
  }

  private def read(files: CheckpointFileManager, file: Path): String = {
    val stream = files.open(file)
    try new String(stream.readAllBytes(), UTF_8) finally stream.close()
  }

  /** By Hadoop's own class, which compares checksums. */
  private def readChecked(file: Path): String = {
    val stream = FileSystem.getLocal(new Configuration()).open(file)
    try new String(stream.readAllBytes(), UTF_8) finally stream.close()
  }

  private def namesIn(directory: Path): Set[String] = local(directory).toFile.list().toSet
  private def local(file: Path): LocalPath = LocalPath.of(file.toUri.getPath)

  test("it starts no process, as Spark's own does for each file") {
    def commands(make: Path => CheckpointFileManager): Seq[String] = {
      val (directory, dump) = (newDirectory(), Files.createTempFile("cec", ".jfr"))
      val recording = new Recording
      recording.enable("jdk.ProcessStart")
      recording.start()
      val files = make(directory)
      files.mkdirs(new Path(directory, "a/b"))
      val file = new Path(directory, "a/b/0")
      write(files, file, "one")
      write(files, file, "two", overwrites = true)
      assert(read(files, file) == "two" && files.exists(file) && files.list(directory).length == 1)
      files.delete(file)
      recording.stop()
      recording.dump(dump)
      recording.close()
      RecordingFile.readAllEvents(dump).asScala.map(_.getString("command")).filter(_.contains(directory.getName)).toSeq
    }
    assert(commands(ours(_)).isEmpty)
    assume(!org.apache.hadoop.util.NativeCodeLoader.isNativeCodeLoaded, "Hadoop's native library is there")
    assert(commands(sparks(_)).length > 10)
  }

  test("it and Spark's manager read each other's files, and its checksums are Hadoop's") {
    for ((writes, reads) <- Seq[(Path => CheckpointFileManager, Path => CheckpointFileManager)]((ours(_), sparks(_)), (sparks(_), ours(_)))) {
      val directory = newDirectory()
      val file = new Path(directory, "7")
      write(writes(directory), file, "a" * 2000)
      assert(read(reads(directory), file) == "a" * 2000 && namesIn(directory) == Set("7", ".7.crc"))
      write(reads(directory), file, "b", overwrites = true)
      assert(read(writes(directory), file) == "b" && namesIn(directory) == Set("7", ".7.crc"))
      assert(readChecked(file) == "b")
      Files.write(local(file), "c".getBytes(UTF_8))
      intercept[ChecksumException](readChecked(file))
      Seq(writes, reads).foreach(each => assert(read(each(directory), file) == "c")) // as Spark's own does
      reads(directory).delete(file)
      reads(directory).delete(file)
      assert(namesIn(directory).isEmpty && !writes(directory).exists(file))
    }
  }

  test("after a crash between a file and its checksum, one that was left by an earlier file is no obstacle") {
    val directory = newDirectory()
    val file = new Path(directory, "7")
    write(sparks(directory), file, "of an earlier life")
    Files.delete(local(file))
    val crashes = new LocalFileManager(directory, new Configuration()) {
      override protected def link(written: LocalPath, target: LocalPath): Unit = {
        super.link(written, target)
        throw new IllegalStateException("a crash")
      }
    }
    intercept[IllegalStateException](write(crashes, file, "new"))
    assert(readChecked(file) == "new")
  }

  test("of many that create a file at once one alone succeeds, and its content stays") {
    val (many, directory) = (8, newDirectory())
    val pool = Executors.newFixedThreadPool(many)
    try (0 until 50).foreach { number =>
      val (file, together) = (new Path(directory, number.toString), new CyclicBarrier(many))
      val tasks = (0 until many).map { writer =>
        pool.submit(new Callable[Try[Int]] {
          override def call(): Try[Int] = {
            val stream = ours(directory).createAtomic(file, overwriteIfPossible = false)
            stream.write(s"writer $writer".getBytes(UTF_8))
            together.await()
            Try(stream.close()).map(_ => writer)
          }
        })
      }
      val (won, lost) = tasks.map(_.get()).partition(_.isSuccess)
      assert(won.length == 1, s"file $number: $won")
      lost.foreach {
        case Failure(_: FileAlreadyExistsException) =>
        case Failure(other) => throw other
        case Success(_) =>
      }
      assert(readChecked(file) == s"writer ${won.head.get}")
    } finally pool.shutdownNow()
    assert(!namesIn(directory).exists(_.contains("tmp")))
  }

  test("where there are no links, it renames, and overwrites nothing that is there") {
    val directory = newDirectory()
    val files = new LocalFileManager(directory, new Configuration()) {
      override protected def link(written: LocalPath, target: LocalPath): Unit =
        throw new FileSystemException(target.toString, written.toString, "Operation not permitted")
    }
    val file = new Path(directory, "7")
    write(files, file, "first")
    intercept[FileAlreadyExistsException](write(files, file, "second"))
    assert(read(sparks(directory), file) == "first" && namesIn(directory) == Set("7", ".7.crc"))
  }

  test("a file that is given up leaves nothing") {
    val directory = newDirectory()
    val stream = ours(directory).createAtomic(new Path(directory, "7"), overwriteIfPossible = false)
    stream.write(1)
    stream.cancel()
    stream.close()
    assert(namesIn(directory).isEmpty)
  }

  test("permissions are those of Hadoop's umask") {
    val (directory, conf) = (newDirectory(), new Configuration())
    conf.set("fs.permissions.umask-mode", "027")
    val files = ours(directory, conf)
    val below = new Path(directory, "below")
    files.mkdirs(below)
    write(files, new Path(below, "7"), "one")
    def permissions(file: Path) = PosixFilePermissions.toString(Files.getPosixFilePermissions(local(file)))
    assert(permissions(below) == "rwxr-x---" && permissions(new Path(below, "7")) == "rw-r-----")
  }
}
