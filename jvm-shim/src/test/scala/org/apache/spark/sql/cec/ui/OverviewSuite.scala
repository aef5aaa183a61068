package org.apache.spark.sql.cec.ui

import org.apache.spark.sql.cec.CecSuite
import org.apache.spark.sql.cec.agent.{FootprintAges, LookAnswer, PipelineLookAnswer}
import org.apache.spark.sql.cec.exchange.WindowAges

class OverviewSuite extends CecSuite {
  import ViewFacts._

  /** Answers nothing, and keeps what it was asked last. */
  private final class SilentLooks extends Looks {
    var kept = (Set.empty[QueryPlace], Set.empty[String])
    var asked, homes = Seq.empty[String]
    var aged = Seq.empty[(String, Boolean)]

    override def lookAtQueries(running: Seq[QueryPlace], ended: Seq[QueryPlace]): Map[QueryPlace, Timed[LookAnswer]] = {
      asked = running.map(_.checkpoint)
      (running ++ ended).map(_ -> unknown).toMap
    }

    override def lookAtAges(of: QueryPlace, isOver: Boolean): Timed[WindowAges] = {
      aged :+= (of.checkpoint, isOver)
      Timed(Some(WindowAges(Seq(FootprintAges(0, Some(0), 3)), Seq("executor 1: no"))), 1, Some("late"))
    }

    override def lookAtPipelines(of: Seq[String]): Map[String, Timed[PipelineLookAnswer]] = {
      homes = of
      of.map(_ -> Timed(None, 0L, None)).toMap
    }

    override def keepOnly(places: Set[QueryPlace], of: Set[String]): Unit = kept = (places, of)
  }

  private val checkpoints = Seq("file:/h/flows/a", "file:/h/flows/a/epochs/7", "file:/c")

  private def tracked(): TrackedQueries = {
    val queries = new TrackedQueries
    checkpoints.foreach(each => queries.begin(identity("q", each), decision, () => None))
    queries
  }

  test("the page of one query asks about that one, and forgets no answer about the others") {
    val looks = new SilentLooks
    val one = new Overview(tracked(), looks).readQuery(identity("q", "file:/c").id.toString, 1000)
    assert(one.map(_.identity.checkpoint).contains("file:/c") && looks.asked == Seq("file:/c"))
    assert(looks.kept._1.map(_.checkpoint) == checkpoints.toSet)
  }

  test("only the page of a query asks for the ages of its windows, and says whose are missing") {
    val (looks, queries) = (new SilentLooks, tracked())
    assert(new Overview(queries, looks).readQueries(1000).forall(_.ages == WindowAges(Nil, Nil)) && looks.aged.isEmpty)
    def read() = new Overview(queries, looks).readQuery(identity("q", "file:/c").id.toString, 1000).get.ages
    assert(read() == WindowAges(Seq(FootprintAges(0, Some(0), 3)), Seq("executor 1: no", "late")))
    val run = queries.snapshots(1000).find(_.identity.checkpoint == "file:/c").get.identity.runId
    queries.end(run, None)
    assert(read().missing == Seq("executor 1: no"), "an ended query is not asked about, so nothing is late")
    assert(looks.aged == Seq(("file:/c", false), ("file:/c", true)))
  }

  test("a pipeline is asked about once, and what the JVM has forgotten is forgotten") {
    val looks = new SilentLooks
    val queries = tracked()
    new Overview(queries, looks).readPipelines(1000)
    assert(looks.homes == Seq("file:/h") && looks.kept._2 == Set("file:/h"))
    new Overview(new TrackedQueries, looks).readPipelines(1000)
    assert(looks.kept == (Set.empty[QueryPlace], Set.empty[String]))
  }
}
