package org.apache.spark.sql.cec.recovery

import scala.util.control.NonFatal

import org.apache.spark.internal.Logging
import org.apache.spark.sql.catalyst.CapturesConfig
import org.apache.spark.sql.catalyst.expressions.TimeZoneAwareExpression
import org.apache.spark.sql.catalyst.plans.logical.{AnalysisHelper, LogicalPlan}
import org.apache.spark.sql.classic.SparkSession
import org.apache.spark.sql.execution.streaming.runtime.StreamingRelation
import org.apache.spark.sql.internal.SQLConf

/**
 * The settings of a session that can change what a query computes: those that Spark keeps with a view, and the time zone and ANSI mode
 * even where nobody has set them. Settings of streaming are in Spark's offset log, or decide no value.
 *
 * Sizes of Arrow batches are not among them. They decide how a function's rows are split into chunks, but a function whose commits are
 * deferred does not depend on that; and who has lowered them after running out of memory must not get the old ones back.
 */
private[recovery] object SessionSettings extends CapturesConfig {
  def of(conf: SQLConf): Map[String, String] =
    sqlConfigsToProps(conf, "").filterNot(_._1.startsWith("spark.sql.streaming.")) ++
      Map(SQLConf.SESSION_LOCAL_TIMEZONE.key -> conf.sessionLocalTimeZone, SQLConf.ANSI_ENABLED.key -> conf.ansiEnabled.toString)
}

/**
 * Settings of now and then.
 *
 * @param now of the session that starts the query
 * @param recorded of the session that ran its batches
 */
private[recovery] final case class RestoredSettings(now: Map[String, String], recorded: Map[String, String]) extends Logging {
  private val changed: Seq[String] = (now.keySet ++ recorded.keySet).filter(key => now.get(key) != recorded.get(key)).toSeq.sorted

  def differ: Boolean = changed.nonEmpty

  def words: String = changed.map(key => s"$key=${told(recorded, key)} (now ${told(now, key)})").mkString(", ")

  /** A session with the settings of then; the same one, if they are those of now. */
  def restoredIn(session: SparkSession): SparkSession =
    if (!differ) session
    else {
      val own = session.cloneSession()
      changed.foreach { key =>
        try recorded.get(key) match {
          case Some(value) => own.sessionState.conf.setConfString(key, value)
          case None => own.sessionState.conf.unsetConf(key)
        } catch { case NonFatal(failure) => logWarning(s"Spark CEC: a replay cannot have $key=${told(recorded, key)} as its batches had", failure) }
      }
      own
    }

  /** The query as the session of then would have analysed it: a time zone stands in expressions, and files are read by a session. */
  def restoredIn(query: LogicalPlan, session: SparkSession): LogicalPlan =
    if (!differ) query
    else {
      val zone = SQLConf.SESSION_LOCAL_TIMEZONE.key
      val read = Plans.transform(query) {
        case files: StreamingRelation => files.copy(dataSource = files.dataSource.copy(sparkSession = session))
      }
      if (now.get(zone) == recorded.get(zone)) read
      else AnalysisHelper.allowInvokingTransformsInAnalyzer(read.transformAllExpressionsWithSubqueries {
        case zoned: TimeZoneAwareExpression if zoned.timeZoneId == now.get(zone) => zoned.withTimeZone(recorded(zone))
      })
    }

  private def told(settings: Map[String, String], key: String): String = settings.getOrElse(key, "(not set)")
}

private[recovery] object RestoredSettings {
  /** Where nothing is known of the settings of then. */
  val none: RestoredSettings = RestoredSettings(Map.empty, Map.empty)
}
