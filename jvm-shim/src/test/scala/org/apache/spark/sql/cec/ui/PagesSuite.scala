package org.apache.spark.sql.cec.ui

import scala.xml.{NodeSeq, XML}

import org.apache.spark.sql.cec.CecSuite
import org.apache.spark.sql.cec.agent.{FootprintAges, Json, PipelineLookAnswer, Reach, SourceStanding}
import org.apache.spark.sql.cec.exchange.WindowAges

class PagesSuite extends CecSuite {
  import ViewFacts._

  private val now = 10000000L
  private val view = QueryView.of(snapshot(samples = Seq(sample(now - 1000, 6), sample(now, 7))), look(), now)

  test("a page has user-chosen names as text, in cells, attributes and pictures") {
    val flows = Seq(FlowView(hostile, Nil, isSink = false, "running", Level.Good, Some(1), None, Some(0.5), None, 0, Some(hostile)))
    val pieces: NodeSeq = Seq(
      Html.alert(Note(Level.Bad, hostile)), Html.badge(Level.Good, hostile), FlowGraph.draw(flows),
      Html.sortable("t", Seq(Html.Column(hostile, hostile)), Seq(<tr title={hostile}><td>{hostile}</td></tr>)),
      Chart(hostile, Seq(Point(now, 1, hostile)), now, None, _ => hostile).draw)
    for (piece <- pieces) {
      val text = piece.toString
      assert(!text.contains("<script"), text)
      assert((XML.loadString(text) \\ "script").isEmpty)
      assert(XML.loadString(text).text.contains(hostile.take(10)))
    }
  }

  test("the JSON of a query has each number with its unit, and hostile names as they are") {
    val json = Json.parse(PageJson.detail(view).toString)
    assert(json.get("name").asText == hostile && json.get("operators").get(0).get("reason").asText == hostile)
    assert(json.get("q").get("value").asLong == 50 && json.get("q").get("bound").asLong == 100 && json.get("q").get("share").asDouble == 0.5)
    assert(json.get("samples").size == 2 && json.get("samples").get(1).get("batch_ms").asLong == 20)
    assert(json.get("reach").isNull && json.get("replay_progress").isNull && json.get("recovery_estimate_ms").asLong == 1500)
    val aged = view.withAges(Timed(Some(WindowAges(Seq(FootprintAges(10000, None, 3)), Seq(hostile))), 1, None))
    val ages = Json.parse(PageJson.detail(aged).toString)
    assert(ages.get("footprint_ages").toString == """[{"first_batches":10000,"last_batches":null,"windows":3}]""")
    assert(ages.get("footprint_ages_missing").get(0).asText == hostile && json.get("footprint_ages_missing").isEmpty)
    assert(json.get("log_bytes").asLong == 999 && json.get("level").asText == "good")
    val all = Json.parse(PageJson.overview(Seq(view), Nil).toString)
    assert(all.get("queries").size == 1 && !all.get("queries").get(0).has("samples") && all.get("pipelines").isEmpty)
    assert(PageJson.toSpark(PageJson.overview(Seq(view), Nil)) != null)
  }

  test("the reach of a recovery, against what the sources still have") {
    val spare = SourceStanding("K", 60, Some(5000), Some(0.2), gone = false, "K still has 5000")
    val lost = SourceStanding("L", 60, Some(0), Some(0.0), gone = true, hostile)
    val whole = SourceStanding("M", 60, None, None, gone = false, "M has lost nothing")
    def reach(sources: SourceStanding*) = Reach(3, 12, Some(5), "since batch 3", sources, Some(now - 12000))
    assert(ReachText.describe(reach(spare, whole), now) == "since batch 3; K still has 5000; M has lost nothing (asked 12 s ago)")
    assert(ReachText.describe(reach(), now) == "since batch 3" && ReachText.nearest(reach()).isEmpty)
    assert(ReachText.nearest(reach(whole, spare)).contains(spare) && ReachText.nearest(reach(spare, lost)).contains(lost))
    assert(Seq(spare, lost, whole, spare.copy(spare = Some(1))).map(ReachText.summarize) == Seq(
      "the source has 5,000 offsets more", "the source has lost a part", "the source has lost nothing", "the source has 1 offset more"))
    assert(ReachText.level(lost) == Level.Bad && ReachText.level(spare) == Level.Plain)
    val json = Json.parse(PageJson.detail(view.copy(reach = Some(reach(lost, whole)))).toString).get("reach")
    assert(json.get("batches").asLong == 12 && json.get("sources_asked_ms").asLong == now - 12000)
    assert(json.get("sources").get(0).toString ==
      s"""{"source":"L","needed_offsets":60,"gone":true,"text":${Json.node(hostile)},"spare_offsets":0,"spare_share":0.0}""")
    assert(json.get("sources").get(1).get("spare_offsets").isNull && json.get("sources").get(1).get("spare_share").isNull)
  }

  test("a bounded number sorts by its share, or by its value without one") {
    def key(found: Option[Bounded]) = (Html.bounded(found) \@ "sorttable_customkey").toDouble
    assert(key(None) == -1 && key(Some(Bounded(5, Some(10), Some(0.5), Level.Good))) == 0.5)
    assert(key(Some(Bounded(5, None, None, Level.Plain))) == 5)
    assert(Html.bounded(Some(Bounded(5000, Some(10000), Some(0.5), Level.Good))).text == "5,000 of 10,000 50 %")
  }

  test("a curve stays in its picture, and a far bound does not make it flat") {
    def ys(chart: Chart) = (chart.draw \\ "polyline" \@ "points").split(" ").map(_.split(",")(1).toDouble)
    val points = (0 to 3).map(n => Point(now - 60000 * (3 - n), n * 10.0, ""))
    assert(ys(Chart("t", points, now, Some(40), _.toString)).forall(y => y >= 0 && y <= 110))
    assert(ys(Chart("t", points, now, Some(1e9), _.toString)).min < 15)
    assert((Chart("t", points, now, Some(1e9), _.toString).draw \\ "line").size == 1, "the axis alone")
    assert((Chart("t", points.map(_.copy(value = 0)), now, None, _.toString).draw \\ "circle").size == 4)
  }

  test("numbers as people read them") {
    assert(Seq(0L, 999L, 1500L, 125000L, 8000000L).map(Format.duration) == Seq("0 ms", "999 ms", "1.5 s", "2 min", "2.2 h"))
    assert(Seq(0L, 999L, 1000L, 2500000L).map(Format.bytes) == Seq("0 bytes", "999 bytes", "1.0 KB", "2.5 MB"))
    assert(Seq(0L, 118800L, 125000L, 8000000L).map(Format.rough) == Seq("0 s", "118 s", "2 min", "2 h"))
    assert(Format.counted(1, "batch", "batches") == "1 batch" && Format.counted(2000, "batch", "batches") == "2,000 batches")
  }

  private def flow(name: String, state: String, more: String = ""): String =
    s"""{"name":"$name","state":"$state","batch":3,"restarts":1,"error":"why","cores":null,"behind":2,"starves_for":[],"waits_for":[]$more}"""

  private def pipeline(flows: String, wallMs: Long): PipelineView = PipelineView.of(Timed(Some(PipelineLookAnswer(
    Some("file:/home"), Some(Json.parse("""{"flows":{"a":{"inputs":[]},"b":{"inputs":["a"]},"c":{"inputs":["b","a"],"sink":true}}}""")),
    Some(Json.parse(s"""{"name":"shop","pid":9,"wall_ms":$wallMs,"protocol":"cec","capacity":{"executors":1,"cores":2,"wanted":1.5},"flows":[$flows]}""")))),
    now, None), now).get

  test("a pipeline's flows, what they wait for, and their errors") {
    val found = pipeline(Seq(flow("a", "failed"), flow("b", "starving", ""","starves_for":["a"]"""), flow("c", "running")).mkString(","), now)
    assert(found.flows.map(_.level) == Seq(Level.Bad, Level.Warning, Level.Good) && found.level == Level.Bad && found.note.isEmpty)
    assert(found.flows.map(_.why) == Seq(Some("why"), Some("a failed, so no new input comes"), None))
    val held = pipeline(flow("a", "waiting", ""","held_for":[{"flow":"b","bytes":2500000},{"flow":"c","bytes":7}]"""), now)
    assert(held.flows.map(_.why) == Seq(Some("held: 2.5 MB wait for b; 7 bytes wait for c")) && held.level == Level.Warning)
    assert(found.capacity.contains("1 executor, 2 cores, 1.5 wanted") && found.flows.last.isSink && found.flows.last.inputs == Seq("b", "a"))
  }

  test("a driver that writes no status is gone, unless all its flows are over") {
    assert(pipeline(flow("a", "running"), now - 76000).note.map(_.level).contains(Level.Bad))
    assert(pipeline(flow("a", "starting"), now - 76000).note.isEmpty, "Spark may wait for a cluster")
    assert(pipeline(flow("a", "starting"), now - 601000).note.map(_.level).contains(Level.Bad))
    assert(pipeline(flow("a", "stopped"), now - 76000).note.isEmpty)
  }

  test("a home is that of a flow's checkpoint, and other queries have none") {
    assert(PipelineView.homeOf("file:/h/flows/a").contains("file:/h") && PipelineView.homeOf("file:/h/a").isEmpty)
    assert(PipelineView.of(Timed(Some(PipelineLookAnswer(None, None, None)), now, None), now).isEmpty)
  }

  test("a link names its home, whatever letters it has") {
    for (home <- Seq("file:/data/R&D/größe", "file:/it's <a> \"b\"=c", hostile)) {
      assert(PipelinePage.readHome(s"a=b&home=${java.net.URLEncoder.encode(home, java.nio.charset.StandardCharsets.UTF_8)}").contains(home))
    }
    assert(Seq(null, "", "home", "away=1", "home=%zz").forall(PipelinePage.readHome(_).isEmpty))
  }

  test("a flow is right of those that feed it, also in a cycle") {
    def view(name: String, inputs: String*) = FlowView(name, inputs, isSink = false, "running", Level.Good, None, None, None, None, 0, None)
    val spots = FlowGraph.place(Seq(view("c", "b", "a"), view("a"), view("b", "a")))
    assert(spots == Map("a" -> Spot(0, 0), "b" -> Spot(1, 0), "c" -> Spot(2, 0)))
    val round = FlowGraph.place(Seq(view("a", "b"), view("b", "a"), view("alone")))
    assert(round.size == 3 && round.values.toSet.size == 3)
    val deep = (0 until 200).map(n => view(s"f$n", Seq(s"f${n - 1}", s"f${n - 2}").filter(_ => n > 1): _*))
    assert(FlowGraph.place(deep)("f199").column == 199 - 1)
  }
}
