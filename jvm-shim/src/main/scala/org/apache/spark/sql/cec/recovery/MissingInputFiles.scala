package org.apache.spark.sql.cec.recovery

import java.net.URI

import org.apache.hadoop.fs.Path

import org.apache.spark.sql.SparkSession
import org.apache.spark.sql.connector.read.streaming.SparkDataStream
import org.apache.spark.sql.execution.streaming.runtime.{
  FileStreamSource, FileStreamSourceLog, FileStreamSourceOffset, SerializedOffset, StreamProgress}

/** Files that a batch has read and that are not there any more: Spark's file source passes over them without a word. */
private[recovery] final class MissingInputFiles(session: SparkSession, checkpoint: String) {
  private val conf = session.sessionState.newHadoopConf()

  /** Those that a batch between two offsets has read, and cannot read again. */
  def among(sources: Seq[SparkDataStream], start: StreamProgress, end: StreamProgress): Seq[Path] =
    // Spark numbers the folders of sources, of which a query may read one at several places.
    sources.distinct.zipWithIndex.flatMap {
      case (files: FileStreamSource, position) =>
        def place(offsets: StreamProgress) = offsets.get(files).map(offset => FileStreamSourceOffset(SerializedOffset(offset.json)).logOffset)
        val from = place(start).getOrElse(-1L)
        place(end).filter(_ > from).map { until =>
          val log = new FileStreamSourceLog(FileStreamSourceLog.VERSION, session, s"$checkpoint/sources/$position")
          log.get(Some(from + 1), Some(until)).toSeq.flatMap(_._2).map(entry => new Path(new URI(entry.path)))
            .filterNot(path => path.getFileSystem(conf).exists(path))
        }.getOrElse(Nil)
      case _ => Nil
    }
}
