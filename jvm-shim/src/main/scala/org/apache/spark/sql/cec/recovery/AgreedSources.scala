package org.apache.spark.sql.cec.recovery

import org.apache.spark.sql.SparkSession
import org.apache.spark.sql.catalyst.plans.logical.LogicalPlan
import org.apache.spark.sql.catalyst.streaming.StreamingRelationV2
import org.apache.spark.sql.cec.agent.{Agent, AgreeRequest}
import org.apache.spark.sql.connector.catalog.{SupportsRead, Table}
import org.apache.spark.sql.connector.read.{Scan, ScanBuilder}
import org.apache.spark.sql.connector.read.streaming._
import org.apache.spark.sql.util.CaseInsensitiveStringMap

/**
 * Makes the batches of a flow that reads a source those of the other replica, too. The replica that comes first to a
 * batch decides where it ends. It decides once in a while; a replica that is behind runs one batch after the other, and
 * so catches up.
 *
 * @param place the URL of the flow's agreements
 * @param replica the name of this replica
 * @param everyMs the time between two batches
 * @param lastPlanned the last batch that an earlier run of the query has planned, -1 for none
 */
private[recovery] final class AgreedSources(session: SparkSession, conf: Map[String, String], place: String, replica: String, everyMs: Double, lastPlanned: => Long) {
  def wrap(plan: LogicalPlan): LogicalPlan = Plans.transform(plan) {
    // Without the V1 relation, which Spark might take instead: no agreement is possible there.
    case v2: StreamingRelationV2 => v2.copy(table = wrapTable(v2.table), v1Relation = None)
  }

  private def wrapTable(table: Table): Table = table match {
    case readable: SupportsRead => new TableDelegate(table) with SupportsRead {
      override def newScanBuilder(options: CaseInsensitiveStringMap): ScanBuilder = {
        val builder = readable.newScanBuilder(options)
        () => wrapScan(builder.build())
      }
    }
    case other => other
  }

  private def wrapScan(scan: Scan): Scan = new ScanDelegate(scan) {
    override def toMicroBatchStream(checkpointLocation: String): MicroBatchStream = {
      SourceEvents.forgetBatch(session)
      scan.toMicroBatchStream(checkpointLocation) match {
        case stream: SupportsAdmissionControl => new AgreedStream(stream)
        case other => throw new IllegalStateException(s"$other has no limits for a batch, so replicas cannot agree on one")
      }
    }
  }

  private final class AgreedStream(inner: MicroBatchStream with SupportsAdmissionControl) extends MicroBatchDelegate(inner) with SupportsAdmissionControl {
    private var begunNs = System.nanoTime - (everyMs * 1e6).toLong

    /** Found once, because Spark asks ten times a second while there is no input. */
    private lazy val planned = lastPlanned

    /** Whether the other replica may be ahead. */
    private var follows = true

    override def initialOffset: Offset = agree(-1L, "", inner.initialOffset, decides = true).get

    override def getDefaultReadLimit: ReadLimit = inner.getDefaultReadLimit

    override def reportLatestOffset: Offset = inner.reportLatestOffset

    override def latestOffset(start: Offset, limit: ReadLimit): Offset = {
      val found = inner.latestOffset(start, limit)
      val batch = SourceEvents.lastBatch(session).getOrElse(planned) + 1
      val decides = System.nanoTime - begunNs >= everyMs * 1e6
      // Spark runs the first batch of a query whether it has rows or not.
      if (found == null || (found.json == start.json && batch > 0)) found
      else if (!decides && !follows) start
      else {
        val agreed = agree(batch, start.json, found, decides)
        if (agreed.isDefined) begunNs = System.nanoTime
        agreed.getOrElse(start)
      }
    }

    private def agree(batch: Long, start: String, end: Offset, decides: Boolean): Option[Offset] = {
      val answer = Agent.call(AgreeRequest(place, replica, batch, start, end.json, decides), conf)
      follows = answer.follows
      answer.end.map(agreed => if (agreed == end.json) end else inner.deserializeOffset(agreed))
    }
  }
}

private[recovery] object AgreedSources {
  private val Prefix = "spark.sql.streaming.stateStore.cec.replica"

  /** The agreements of a query's replicas; None for a query without any. */
  def of(session: SparkSession, conf: Map[String, String], lastPlanned: => Long): Option[AgreedSources] =
    for (place <- conf.get(s"$Prefix.agreements"); replica <- conf.get(Prefix)) yield
      new AgreedSources(session, conf, place, replica, conf.get(s"$Prefix.every").map(_.stripSuffix("ms").toDouble).getOrElse(0.0), lastPlanned)
}
