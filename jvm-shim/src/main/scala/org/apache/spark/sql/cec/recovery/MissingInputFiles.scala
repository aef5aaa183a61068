package org.apache.spark.sql.cec.recovery

import java.net.URI

import org.apache.hadoop.fs.Path

import org.apache.spark.sql.SparkSession
import org.apache.spark.sql.connector.read.streaming.SparkDataStream
import org.apache.spark.sql.execution.streaming.runtime.{
  FileStreamSource, FileStreamSourceLog, FileStreamSourceOffset, SerializedOffset, StreamProgress}

/** Finds files that a batch read and that no longer exist. Spark's file source skips them silently. */
private[recovery] final class MissingInputFiles(session: SparkSession, checkpoint: String) {
  private val conf = session.sessionState.newHadoopConf()

  /** The missing files of the batch between two offsets. */
  def among(sources: Seq[SparkDataStream], start: StreamProgress, end: StreamProgress): Seq[Path] =
    // Spark numbers the directories of distinct sources, and a query may read one source in several places.
    sources.distinct.zipWithIndex.flatMap {
      case (files: FileStreamSource, position) =>
        def findLogOffset(offsets: StreamProgress) = offsets.get(files).map(offset => FileStreamSourceOffset(SerializedOffset(offset.json)).logOffset)
        val from = findLogOffset(start).getOrElse(-1L)
        findLogOffset(end).filter(_ > from).map { until =>
          val log = new FileStreamSourceLog(FileStreamSourceLog.VERSION, session, s"$checkpoint/sources/$position")
          log.get(Some(from + 1), Some(until)).toSeq.flatMap(_._2).map(entry => new Path(new URI(entry.path)))
            .filterNot(path => path.getFileSystem(conf).exists(path))
        }.getOrElse(Nil)
      case _ => Nil
    }
}
