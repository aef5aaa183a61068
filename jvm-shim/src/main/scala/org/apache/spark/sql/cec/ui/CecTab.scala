package org.apache.spark.sql.cec.ui

import java.net.URLEncoder
import java.nio.charset.StandardCharsets.UTF_8

import scala.util.control.NonFatal

import jakarta.servlet.http.HttpServletRequest

import org.apache.spark.SparkContext
import org.apache.spark.internal.Logging
import org.apache.spark.ui.{SparkUI, SparkUITab, UIUtils}

/** The tab of Spark's user interface. Spark's own filters and access lists apply to its pages. */
private[ui] final class CecTab(parent: SparkUI, val queries: TrackedQueries, looks: Looks) extends SparkUITab(parent, "cec") {
  override val name: String = "CEC"

  private val overview = new Overview(queries, looks)
  attachPage(new OverviewPage(this, overview))
  attachPage(new QueryPage(this, overview))
  attachPage(new PipelinePage(this, overview))

  /** Spark's own page of a run, if this application has such pages. */
  def sparksPage(request: HttpServletRequest, view: QueryView): Option[String] =
    Option.when(parent.getTabs.exists(_.prefix == CecTab.SparksTab))(
      UIUtils.prependBaseUri(request, basePath, s"/${CecTab.SparksTab}/statistics/?id=${view.identity.runId}"))

  def queryPage(request: HttpServletRequest, view: QueryView): String =
    UIUtils.prependBaseUri(request, basePath, s"/$prefix/query/?id=${view.identity.id}")

  def pipelinePage(request: HttpServletRequest, view: PipelineView): String =
    UIUtils.prependBaseUri(request, basePath, s"/$prefix/pipeline/?home=${URLEncoder.encode(view.home, UTF_8)}")

  def overviewPage(request: HttpServletRequest): String = UIUtils.prependBaseUri(request, basePath, s"/$prefix/")
}

private[cec] object CecTab extends Logging {
  private val SparksTab = "StreamingQuery"

  /** The queries of the application's tab; the first call makes the tab. None without a user interface. */
  def attach(context: SparkContext): Option[TrackedQueries] =
    guard(context.ui.map(ui => find(ui).getOrElse(attachOnce(ui)).queries))

  /** The queries of the application's tab, if it has one. */
  def queries(context: SparkContext): Option[TrackedQueries] = guard(context.ui.flatMap(find).map(_.queries))

  /** No query may fail because it cannot be shown. Spark's list of tabs is not safe for several threads. */
  private def guard(found: => Option[TrackedQueries]): Option[TrackedQueries] = try found catch {
    case NonFatal(failure) =>
      logWarning("Spark CEC: its tab in Spark's user interface cannot be shown", failure)
      None
  }

  private def find(ui: SparkUI): Option[CecTab] = ui.getTabs.collectFirst { case tab: CecTab => tab }

  private def attachOnce(ui: SparkUI): CecTab = synchronized {
    find(ui).getOrElse {
      val tab = new CecTab(ui, new TrackedQueries, new AgentLooks)
      ui.attachTab(tab)
      tab
    }
  }
}
