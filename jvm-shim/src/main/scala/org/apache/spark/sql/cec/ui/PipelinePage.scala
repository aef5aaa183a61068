package org.apache.spark.sql.cec.ui

import java.net.URLDecoder
import java.nio.charset.StandardCharsets.UTF_8

import scala.util.Try
import scala.xml.{Elem, Node}

import jakarta.servlet.http.HttpServletRequest
import org.json4s.JValue

import org.apache.spark.ui.{UIUtils, WebUIPage}

/** One pipeline: its graph, and a row for each flow. */
private[ui] final class PipelinePage(tab: CecTab, overview: Overview) extends WebUIPage("pipeline") {
  import Html._

  /** The parameter only chooses among the pipelines of this application, so no other file is read. */
  private def read(request: HttpServletRequest, nowMs: Long): Option[PipelineView] = {
    val home = PipelinePage.readHome(request.getQueryString)
    overview.readPipelines(nowMs).find(view => home.forall(_ == view.home))
  }

  override def renderJson(request: HttpServletRequest): JValue =
    PageJson.toSpark(read(request, System.currentTimeMillis()).fold(PageJson.unknown("pipeline"))(PageJson.pipeline))

  override def render(request: HttpServletRequest): Seq[Node] = {
    val now = System.currentTimeMillis()
    val found = read(request, now)
    val content: Seq[Node] = found match {
      case Some(view) => makeContent(request, view, overview.readQueries(now))
      case None => <p>This application knows no such pipeline. <a href={tab.overviewPage(request)}>All queries</a></p>
    }
    UIUtils.headerSparkPage(request, s"Spark CEC: ${found.fold("unknown pipeline")(view => s"pipeline ${view.name}")}", content, tab)
  }

  private def makeContent(request: HttpServletRequest, view: PipelineView, queries: Seq[QueryView]): Seq[Node] = {
    val pages = queries.map(query => query.identity.checkpoint -> tab.queryPage(request, query)).toMap
    view.note.toSeq.map(alert) ++
      facts(Seq(
        "Home" -> <code>{view.home}</code>,
        "Executors" -> <span>{view.capacity.getOrElse("not measured")}</span>,
        "Checkpoints" -> <span>{view.protocol}</span>,
        "Status of" -> <span>{Format.time(view.writtenMs)}</span>,
        "More" -> <a href={tab.overviewPage(request)}>all queries</a>)) ++
      FlowGraph.draw(view.flows) ++ sortable("cec-flow-table", PipelinePage.Columns, view.flows.map(flow => makeRow(flow, pages.get(s"${view.home}/flows/${flow.name}"))))
  }

  private def makeRow(flow: FlowView, page: Option[String]): Elem =
    <tr>
      <td>{page.fold[Node](<span>{flow.name}</span>)(page => <a href={page}>{flow.name}</a>)}</td>
      <td>{badge(flow.level, flow.state)}</td>
      <td>{flow.inputs.mkString(", ")}</td>
      {number(flow.batch, Format.count)}
      {number(flow.behind, Format.count)}
      {number(flow.completeToMs, Format.time)}
      {cell(flow.cores.getOrElse(-1.0), <span>{flow.cores.fold("–")(Format.cores)}</span>)}
      {number(Some(flow.restarts), Format.count)}
      <td>{flow.why.getOrElse("")}</td>
    </tr>
}

private[ui] object PipelinePage {
  /** The home that a link names. Spark's own reading of parameters changes quotes, `&` and letters such as ö. */
  private[ui] def readHome(query: String): Option[String] = Option(query).flatMap { all =>
    all.split('&').map(_.split("=", 2)).collectFirst { case Array("home", value) => value }.flatMap(value => Try(URLDecoder.decode(value, UTF_8)).toOption)
  }

  private val Columns = Seq(
    Html.Column("Flow", "or sink"),
    Html.Column("State", "of the flow"),
    Html.Column("Reads", "the flows whose rows it reads"),
    Html.Column("Batch", "the newest one"),
    Html.Column("Behind", "batches of its inputs that it left for later"),
    Html.Column("Complete to", "its watermark: it takes no older row"),
    Html.Column("Cores", "that it keeps busy, a mean of half a minute"),
    Html.Column("Restarts", "since the driver began"),
    Html.Column("Waits for, or error", "why it is not simply running"))
}
