package org.apache.spark.sql.cec.source

import java.util

import org.apache.spark.sql.cec.RunNumber
import org.apache.spark.sql.cec.agent.QueryRefusedException
import org.apache.spark.sql.connector.catalog.{SupportsRead, SupportsWrite, Table, TableCapability}
import org.apache.spark.sql.connector.read.ScanBuilder
import org.apache.spark.sql.connector.write.{LogicalWriteInfo, WriteBuilder}
import org.apache.spark.sql.types.StructType
import org.apache.spark.sql.util.CaseInsensitiveStringMap

/**
 * The log that a query's sink writes to.
 *
 * @param home of the query's log, which has the id `logId`
 * @param number of this run
 * @param sources the names of the query's sources, in the order of Spark's offset log
 */
private[cec] final case class SinkTarget(
    checkpoint: String, home: String, logId: String, number: RunNumber, sources: Seq[String], together: Boolean)

/**
 * A log as a table.
 *
 * @param target the query's log; only the analyzer rule knows the checkpoint and sets it
 */
private[cec] final class CecTable(tableSchema: StructType, options: CaseInsensitiveStringMap, target: Option[SinkTarget])
    extends Table with SupportsRead with SupportsWrite {
  /** The `path` option. For the sink, it is the home of the whole log. */
  def path: Option[String] = Option(options.get("path"))

  /** Whether a stream reads it by buckets, and so says below which time no row will come. */
  def isReadByBuckets: Boolean = options.containsKey("union")

  /** The column with the time of its buckets. */
  def bucketTime: Option[String] = View.parseBuckets(options).map(_.time)

  /** Whether a stream reads tentative rows. A replay may find that they are gone. */
  def isTentative: Boolean = Option(options.get("tentative")).exists(_.trim.equalsIgnoreCase("true"))

  def writingTo(to: SinkTarget): CecTable = new CecTable(tableSchema, options, Some(to))

  override def name: String = s"cec${path.map(" " + _).getOrElse("")}"

  override def schema: StructType = tableSchema

  override def capabilities: util.Set[TableCapability] = util.EnumSet.of(
    TableCapability.BATCH_READ, TableCapability.MICRO_BATCH_READ, TableCapability.STREAMING_WRITE, TableCapability.ACCEPT_ANY_SCHEMA)

  override def newScanBuilder(scanOptions: CaseInsensitiveStringMap): ScanBuilder =
    new CecScanBuilder(QueryRefusedException.orResult { val view = View.of(scanOptions); view.check(tableSchema); view }, tableSchema)

  override def newWriteBuilder(info: LogicalWriteInfo): WriteBuilder = {
    val writing = target.getOrElse(throw new IllegalStateException(
      "the cec sink found no word from the Spark CEC extension: put the spark-cec jar on the class path before the session is made " +
        "(spark.jars, --jars or $SPARK_HOME/jars)"))
    new CecWriteBuilder(writing, info.schema, truncate = false)
  }
}
