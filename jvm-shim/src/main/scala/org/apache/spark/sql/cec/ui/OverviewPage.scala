package org.apache.spark.sql.cec.ui

import jakarta.servlet.http.HttpServletRequest
import org.json4s.JValue

import scala.xml.{Elem, Node, Text}

import org.apache.spark.sql.cec.agent.Reach
import org.apache.spark.ui.{UIUtils, WebUIPage}

/** All queries and pipelines of the application. */
private[ui] final class OverviewPage(tab: CecTab, overview: Overview) extends WebUIPage("") {
  import Html._

  override def renderJson(request: HttpServletRequest): JValue = {
    val now = System.currentTimeMillis()
    PageJson.toSpark(PageJson.overview(overview.readQueries(now), overview.readPipelines(now)))
  }

  override def render(request: HttpServletRequest): Seq[Node] = {
    val now = System.currentTimeMillis()
    val (queries, pipelines) = (overview.readQueries(now), overview.readPipelines(now))
    UIUtils.headerSparkPage(request, "Spark CEC", makeContent(request, queries, pipelines), tab)
  }

  private def makeContent(request: HttpServletRequest, queries: Seq[QueryView], pipelines: Seq[PipelineView]): Seq[Node] = {
    val urgent = for (view <- queries; note <- view.notes if note.level == Level.Bad) yield Note(note.level, s"${view.title}: ${note.text}")
    urgent.take(OverviewPage.MostAlerts).map(alert) ++ makePipelines(request, pipelines) ++
      <h4>{Format.counted(queries.size, "query", "queries")}</h4> ++
      sortable("cec-queries", OverviewPage.Columns, queries.map(makeRow(request, _)))
  }

  private def makePipelines(request: HttpServletRequest, pipelines: Seq[PipelineView]): Seq[Node] = pipelines.map { view =>
    <p>Pipeline <a href={tab.pipelinePage(request, view)}>{view.name}</a>: {badge(view.level, Format.counted(view.flows.size, "flow", "flows"))}
      {view.capacity.getOrElse("")}</p>
  }

  private def makeRow(request: HttpServletRequest, view: QueryView): Elem =
    <tr>
      <td><a href={tab.queryPage(request, view)}>{view.title}</a></td>
      <td sorttable_customkey={view.state}>{badge(view.stateLevel, view.state)}{view.progress.toSeq.map { case (ran, all) => progress(ran, all) }}
        {view.activity.toSeq.map(text => <div class="small text-body-secondary">{text}</div>)}</td>
      <td>{view.operators.map(makeOperator)}{if (view.operators.isEmpty) Text(view.mode) else Nil}</td>
      {number(view.batch, Format.count)}
      {number(view.newest.map(_.batchMs), Format.duration)}
      {bounded(view.extent)}
      {bounded(view.replay)}
      {view.reach.fold(cell(-1.0, Text("–")))(makeReach)}
      {number(view.recoveryMs, Format.duration)}
      <td>{view.notes.map(note => <div class={s"small text-${note.level.colour}-emphasis"}>{note.text}</div>)}</td>
    </tr>

  private def makeReach(reach: Reach): Elem = {
    val source = ReachText.nearest(reach).map { found =>
      <div class={s"small text-${ReachText.level(found).colour}-emphasis"}>{ReachText.summarize(found)}</div>
    }
    val all = ReachText.describe(reach, System.currentTimeMillis())
    cell(reach.batches.toDouble, <span title={all}>{Format.counted(reach.batches, "batch", "batches")}</span> ++ source: _*)
  }

  private def makeOperator(operator: OperatorView): Elem =
    <div title={operator.reason}>{s"${operator.id} ${operator.kind}: "}<strong>{operator.mode}</strong>
      <span class="small text-body-secondary">{operator.reason}</span></div>
}

private[ui] object OverviewPage {
  private val MostAlerts = 5

  private val Columns = Seq(
    Html.Column("Query", "its name, or its id"),
    Html.Column("State", "of the run, and what Spark says that it does"),
    Html.Column("Operators", "whether commits may leave windows dirty (deferred) or not (eager), and why"),
    Html.Column("Batch", "the newest one"),
    Html.Column("Batch time", "of the newest batch"),
    Html.Column("q of Q", "log records that a recovery would scan, over all partitions; the share is that of the partition nearest to its bound"),
    Html.Column("u of U", "input rows that a recovery would replay, over all partitions; the share is that of the partition nearest to its bound"),
    Html.Column("Reaches back", "how many batches a recovery would replay, and what the source has beyond that, if it tells"),
    Html.Column("Recovery", "the estimated time of a recovery from here"),
    Html.Column("Notes", "what needs a look"))
}
