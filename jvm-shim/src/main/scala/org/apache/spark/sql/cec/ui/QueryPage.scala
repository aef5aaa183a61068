package org.apache.spark.sql.cec.ui

import jakarta.servlet.http.HttpServletRequest
import org.json4s.JValue

import scala.xml.{Elem, Node, Text}

import org.apache.spark.sql.cec.agent.FootprintAges
import org.apache.spark.ui.{UIUtils, WebUIPage}

/** One query: its facts, the last hour, the ages of its windows, and its recoveries. */
private[ui] final class QueryPage(tab: CecTab, overview: Overview) extends WebUIPage("query") {
  import Html._

  private def read(request: HttpServletRequest, nowMs: Long): Option[QueryView] =
    Option(request.getParameter("id")).flatMap(overview.readQuery(_, nowMs))

  override def renderJson(request: HttpServletRequest): JValue =
    PageJson.toSpark(read(request, System.currentTimeMillis()).fold(PageJson.unknown("query"))(PageJson.detail))

  override def render(request: HttpServletRequest): Seq[Node] = {
    val now = System.currentTimeMillis()
    val found = read(request, now)
    val content: Seq[Node] = found match {
      case Some(view) => makeContent(request, view, now)
      case None => <p>This application knows no such query. <a href={tab.overviewPage(request)}>All queries</a></p>
    }
    UIUtils.headerSparkPage(request, s"Spark CEC: ${found.fold("unknown query")(_.title)}", content, tab)
  }

  private def makeContent(request: HttpServletRequest, view: QueryView, nowMs: Long): Seq[Node] =
    view.notes.map(alert) ++ makeFacts(request, view, nowMs) ++ makeError(view) ++
      <h4>The last hour</h4> ++ makeCharts(view, nowMs) ++ (if (view.operators.isEmpty) Nil else makeState(view))

  /** What only a query with state has. */
  private def makeState(view: QueryView): Seq[Node] =
    <h4>Operators</h4> ++ sortable("cec-operators", QueryPage.Operators, view.operators.flatMap(makeOperator)) ++
      <h4>Windows by the age of their newest record</h4> ++ makeAges(view) ++
      <h4>Recoveries</h4> ++ makeRecoveries(view)

  private def makeFacts(request: HttpServletRequest, view: QueryView, nowMs: Long): Elem = {
    val sparks = tab.sparksPage(request, view).toSeq.flatMap(page => Seq(<a href={page}>Spark's page of this run</a>, Text(" · ")))
    val state = badge(view.stateLevel, view.state) ++ view.progress.toSeq.map { case (ran, all) => progress(ran, all) } ++
      Text(view.activity.fold("")(text => s" $text"))
    facts(Seq(
      "State" -> state,
      "Started" -> Text(Format.time(view.startedMs)),
      "Mode" -> Text(view.mode),
      "Checkpoint" -> <code>{view.identity.checkpoint}</code>,
      "Log" -> Seq(<code>{view.identity.home}</code>, Text(view.storedBytes.fold("")(bytes => s" ${Format.bytes(bytes)}"))),
      "Settings" -> Text(view.settings),
      "A recovery" -> Text((view.reach.map(ReachText.describe(_, nowMs)) ++ view.recoveryMs.map(ms => s"it would take about ${Format.duration(ms)}")).mkString("; ")),
      "More" -> (sparks :+ <a href={tab.overviewPage(request)}>all queries</a>)
    ).filter(_._2.exists(_.text.trim.nonEmpty)))
  }

  private def makeError(view: QueryView): Seq[Node] =
    view.error.toSeq.map(error => <details class="mb-3"><summary>The whole error</summary><pre class="border rounded p-2">{error}</pre></details>)

  private def makeOperator(operator: OperatorView): Seq[Elem] = {
    val first = Seq(
      cell(operator.id.toDouble, Text(operator.id.toString)), <td>{operator.kind}</td>, <td>{operator.mode}</td>, <td>{operator.reason}</td>)
    if (operator.stores.isEmpty) Seq(<tr>{first}{Seq.fill(6)(<td>–</td>)}</tr>)
    else operator.stores.map { store =>
      <tr>{first}<td>{store.store}</td>{number(Some(store.partitions), Format.count)}{number(Some(store.openWindows), Format.count)}
        {number(Some(store.dirtyWindows), Format.count)}{makeShare(store.extent, store.extentBound, store.extentShare)}
        {makeShare(store.replay, store.replayBound, store.replayShare)}</tr>
    }
  }

  private def makeShare(value: Long, bound: Option[Long], share: Option[Double]): Elem =
    bounded(Some(Bounded(value, bound, share, share.fold[Level](Level.Plain)(each => if (each > 1) Level.Warning else Level.Good))))

  private def makeCharts(view: QueryView, nowMs: Long): Elem = {
    def chart(title: String, value: Sample => Long, bound: Option[Long], show: Long => String) = {
      val points = view.samples.map { sample =>
        val batches = if (sample.batches == 1) s"batch ${sample.batch}" else s"${sample.batches} batches up to ${sample.batch}"
        Point(sample.atMs, value(sample).toDouble, s"${Format.time(sample.atMs)}, $batches: ${show(value(sample))}")
      }
      <div class="col-sm-6 col-xl-4">{Chart(title, points, nowMs, bound.map(_.toDouble), number => show(number.round)).draw}</div>
    }
    if (view.samples.isEmpty) <p>No batch in the last hour.</p>
    else {
      val ofEach = Seq(chart("batch time", _.batchMs, None, Format.duration), chart("input rows, each ten seconds", _.rows, None, Format.count))
      def ofState = Seq(
        chart("q, log records", _.extent, view.extent.flatMap(_.bound), Format.count),
        chart("u, input rows of a replay", _.replay, view.replay.flatMap(_.bound), Format.count),
        chart("estimated recovery", _.recoveryMs, None, Format.duration),
        chart("dirty windows", _.dirty, None, Format.count),
        chart("open windows", _.windows, None, Format.count),
        chart("commit time, summed over stores", _.commitMs, None, Format.duration),
        chart("bytes to the log, each ten seconds", _.bytes, None, Format.bytes))
      <div class="row" id="cec-charts">{if (view.operators.isEmpty) ofEach else ofState ++ ofEach}</div>
    }
  }

  private def makeAges(view: QueryView): Seq[Node] =
    makeAgeTable(view.ages.classes, isWhole = view.ages.missing.isEmpty) ++
      view.ages.missing.map(why => alert(Note(Level.Warning, s"stores are missing here: $why")))

  private def makeAgeTable(ages: Seq[FootprintAges], isWhole: Boolean): Seq[Node] = {
    val most = ages.map(_.windows).maxOption.getOrElse(1L)
    if (ages.isEmpty) Option.when(isWhole)(<p>No window is open, or none was written since the start.</p>).toSeq
    else sortable("cec-ages", QueryPage.Ages, ages.map { age =>
      val last = age.last.fold(" or more")(end => if (end == age.first) "" else s" to ${Format.count(end)}")
      <tr>{cell(age.first.toDouble, Text(s"${Format.count(age.first)}$last"))}{number(Some(age.windows), Format.count)}
        <td class="w-75" sorttable_customkey={age.windows.toString}><div class="progress"><div class="progress-bar" style={s"width: ${age.windows * 100 / most}%"}></div></div></td></tr>
    })
  }

  private def makeRecoveries(view: QueryView): Elem =
    if (view.recoveries.isEmpty) <p>None so far.</p>
    else sortable("cec-recoveries", QueryPage.Recoveries, view.recoveries.reverse.map { recovery =>
      val proof = recovery.proved.fold("not compared")(if (_) "yes" else "NO")
      <tr>{cell(recovery.startedMs.toDouble, Text(Format.time(recovery.startedMs)))}{number(Some(recovery.tookMs), Format.duration)}
        {number(recovery.foretoldMs, Format.duration)}{number(Some(recovery.batches), Format.count)}<td>{badge(recovery.level, proof)}</td></tr>
    })
}

private[ui] object QueryPage {
  private val Operators = Seq(
    Html.Column("Operator", "its number in Spark's plan"),
    Html.Column("Kind", "of operator"),
    Html.Column("Mode", "deferred: a commit may leave windows dirty; eager: it writes all that the batch touched"),
    Html.Column("Reason", "of the mode"),
    Html.Column("Store", "its name; a join has four"),
    Html.Column("Partitions", "as many as shuffle partitions"),
    Html.Column("Open windows", "N"),
    Html.Column("Dirty", "windows that changed since their newest record"),
    Html.Column("q of Q", "log records that a recovery would scan; the share is that of the partition nearest to its bound"),
    Html.Column("u of U", "input rows that a recovery would replay; the share is that of the partition nearest to its bound"))

  private val Ages = Seq(
    Html.Column("Batches old", "the age of the newest record of a window"),
    Html.Column("Windows", "of that age"),
    Html.Column("", "the same, as a bar"))

  private val Recoveries = Seq(
    Html.Column("Began", "when start() was called"),
    Html.Column("Took", "until all stores were back"),
    Html.Column("Foretold", "the estimate in the log before"),
    Html.Column("Batches replayed", "for the state alone"),
    Html.Column("Proved right", "whether the digests of the state were those of before"))
}
