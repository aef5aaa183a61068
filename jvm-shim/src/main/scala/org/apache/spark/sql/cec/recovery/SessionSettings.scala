package org.apache.spark.sql.cec.recovery

import scala.util.Try
import scala.util.control.NonFatal

import org.apache.spark.internal.Logging
import org.apache.spark.sql.catalyst.CapturesConfig
import org.apache.spark.sql.catalyst.expressions.{Expression, TimeZoneAwareExpression}
import org.apache.spark.sql.catalyst.plans.logical.{AnalysisHelper, FlatMapGroupsWithState, LogicalPlan}
import org.apache.spark.sql.cec.operators.CountWindow
import org.apache.spark.sql.classic.SparkSession
import org.apache.spark.sql.execution.streaming.runtime.StreamingRelation
import org.apache.spark.sql.internal.SQLConf

/**
 * The session settings that can change the result of a query. Spark keeps these settings with a view. The time zone
 * and ANSI mode are always among them. Streaming settings are in Spark's offset log, or change no value.
 *
 * Of the settings below `spark.sql.execution`, which a view does not have, those of Python functions count: they say how
 * a value is converted. Sizes of Arrow batches do not count. These sizes split a function's rows into chunks, but a
 * deferred function does not depend on chunks. A user who lowered them after an out-of-memory error must keep the new
 * sizes.
 */
private[recovery] object SessionSettings extends CapturesConfig {
  /** With these, values of Python functions are converted. They are recorded with their defaults; earlier releases did not. */
  val OfFunctions: Set[String] = Set(
    "spark.sql.execution.pythonUDF.arrow.enabled", "spark.sql.execution.pandas.convertToArrowArraySafely",
    "spark.sql.execution.pandas.structHandlingMode", "spark.sql.execution.pandas.inferPandasDictAsMap", "spark.sql.execution.pyspark.binaryAsBytes")

  def of(conf: SQLConf): Map[String, String] =
    sqlConfigsToProps(conf, "").filterNot(_._1.startsWith("spark.sql.streaming.")) ++
      OfFunctions.flatMap(key => Try(conf.getConfString(key)).toOption.map(key -> _)) ++
      Map(SQLConf.SESSION_LOCAL_TIMEZONE.key -> conf.sessionLocalTimeZone, SQLConf.ANSI_ENABLED.key -> conf.ansiEnabled.toString)
}

/**
 * Settings now and at the first run.
 *
 * @param now of the session that starts the query
 * @param recorded of the session that ran the batches
 */
private[recovery] final case class RestoredSettings(now: Map[String, String], recorded: Map[String, String]) extends Logging {
  private val changed: Seq[String] = (now.keySet ++ recorded.keySet)
    .filter(key => now.get(key) != recorded.get(key) && (recorded.contains(key) || !SessionSettings.OfFunctions(key))).toSeq.sorted

  def differ: Boolean = changed.nonEmpty

  def words: String = changed.map(key => s"$key=${formatSetting(recorded, key)} (now ${formatSetting(now, key)})").mkString(", ")

  /** Returns a session with the recorded settings; if they are equal, the same session. */
  def restoredIn(session: SparkSession): SparkSession =
    if (!differ) session
    else {
      val restored = session.cloneSession()
      changed.foreach { key =>
        try recorded.get(key) match {
          case Some(value) => restored.sessionState.conf.setConfString(key, value)
          case None => restored.sessionState.conf.unsetConf(key)
        } catch { case NonFatal(failure) => logWarning(s"Spark CEC: a replay cannot have $key=${formatSetting(recorded, key)} as its batches had", failure) }
      }
      restored
    }

  /**
   * Returns the query as the old session would have analysed it: expressions have a time zone, and file sources have a
   * session.
   */
  def restoredIn(query: LogicalPlan, session: SparkSession): LogicalPlan =
    if (!differ) query
    else {
      val zone = SQLConf.SESSION_LOCAL_TIMEZONE.key
      val read = Plans.transform(query) {
        case files: StreamingRelation => files.copy(dataSource = files.dataSource.copy(sparkSession = session))
      }
      if (now.get(zone) == recorded.get(zone)) read
      else {
        val change: PartialFunction[Expression, Expression] = {
          case zoned: TimeZoneAwareExpression if zoned.timeZoneId == now.get(zone) => zoned.withTimeZone(recorded(zone))
        }
        val within = Plans.transform(read) {
          case windows: FlatMapGroupsWithState => CountWindow.mapExpressions(windows.func, change).fold(windows)(own => windows.copy(func = own))
        }
        AnalysisHelper.allowInvokingTransformsInAnalyzer(within.transformAllExpressionsWithSubqueries(change))
      }
    }

  private def formatSetting(settings: Map[String, String], key: String): String = settings.getOrElse(key, "(not set)")
}

private[recovery] object RestoredSettings {
  /** The settings when no record exists. */
  val none: RestoredSettings = RestoredSettings(Map.empty, Map.empty)
}
