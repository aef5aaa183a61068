package org.apache.spark.sql.cec.source

import java.nio.charset.StandardCharsets.UTF_8

import scala.util.Using

import org.apache.hadoop.conf.Configuration
import org.apache.hadoop.fs.Path

import org.apache.spark.sql.execution.streaming.checkpointing.CheckpointFileManager

/**
 * The batch after which a stream begins, in `begin` of Spark's directory for the source.
 *
 * Spark asks where a stream begins when it plans the first batch, when it runs that batch, and when it runs it again after a crash. The oldest
 * output that is kept may be younger each time. So the first answer counts once the batch is planned: else the batch would pass over rows.
 *
 * @param place Spark's metadata path for the source
 */
private[source] final class StreamBegin(place: Path, conf: Configuration) {
  private val file = new Path(place, "begin")
  private val planned = new Path(place.getParent.getParent, "offsets/0")
  private val files = CheckpointFileManager.create(place, conf)

  /** The batch that was noted; of a batch that is not planned yet, the one that `find` answers, which is noted. */
  def orElse(find: => Long): Long =
    if (!files.exists(planned)) {
      val begin = find
      note(begin)
      begin
    } else if (files.exists(file)) read()
    else find // an earlier release planned the batch

  private def note(begin: Long): Unit = {
    if (!files.exists(place)) files.mkdirs(place)
    files.delete(file) // some file systems keep the old file, and do not say so
    val stream = files.createAtomic(file, overwriteIfPossible = false)
    try {
      stream.write(s"${StreamBegin.Version}\n$begin".getBytes(UTF_8))
      stream.close()
    } catch {
      case failure: Throwable =>
        stream.cancel()
        throw failure
    }
  }

  private def read(): Long = {
    val text = Using.resource(files.open(file))(stream => new String(stream.readAllBytes(), UTF_8))
    text.split("\n", -1) match {
      case Array(StreamBegin.Version, begin) if begin.matches("-1|[0-9]{1,18}") => begin.toLong
      case _ => throw new IllegalStateException(
        s"$file does not say where the stream begins: restore that file, or begin the query anew with another checkpoint")
    }
  }
}

private[source] object StreamBegin {
  private val Version = "v1"
}
