package org.apache.spark.sql.cec.ui

import org.apache.spark.sql.cec.CecSuite
import org.apache.spark.sql.cec.agent.Recovery

class QueryViewSuite extends CecSuite {
  import ViewFacts._

  private val now = 10000000L

  private def levels(samples: Seq[Sample], bound: Option[Long] = Some(100)): (Level, Level) = {
    val last = samples.last
    val view = QueryView.of(snapshot(samples = samples), look(Seq(store(last.extent, last.replay, bound))), now)
    (view.extent.get.level, view.replay.get.level)
  }

  test("within its bounds, above them, and above them for minutes") {
    assert(levels(Seq(sample(now, 1))) == (Level.Good, Level.Good))
    assert(levels(Seq(sample(now, 1, extent = 101, replay = 100))) == (Level.Warning, Level.Good))
    def above(minutes: Int) = (0 to minutes).map(n => sample(now - n * 60000L, 100 - n, extent = 101, replay = 300)).reverse
    assert(levels(above(4)) == (Level.Warning, Level.Warning))
    assert(levels(above(6)) == (Level.Bad, Level.Bad))
    assert(levels(above(6).updated(4, sample(now - 120000, 98, extent = 99, replay = 300))) == (Level.Warning, Level.Bad))
    assert(levels(above(6), bound = None) == (Level.Plain, Level.Plain))
  }

  test("one partition above its bound is a warning, though the sum is below") {
    val view = QueryView.of(snapshot(samples = Seq(sample(now, 1))), look(Seq(store().copy(extentShare = Some(1.2)))), now)
    assert(view.extent.contains(Bounded(50, Some(100), Some(1.2), Level.Warning)))
    assert(view.notes == Seq(Note(Level.Warning, "q is above Q: the next commits bring it down, as far as CI/CP allows")))
    assert(view.level == Level.Warning && view.stateLevel == Level.Good)
  }

  test("without an agent the progress is there, and after a restart the log is") {
    val silent = QueryView.of(snapshot(samples = Seq(sample(now, 1))), unknown.copy(problem = Some("no agent runs")), now)
    assert(silent.extent.contains(Bounded(50, None, None, Level.Plain)) && silent.batch.contains(1) && silent.recoveryMs.contains(1500))
    assert(silent.notes.map(_.text) == Seq("some numbers are old or missing: no agent runs"))
    val restarted = QueryView.of(snapshot(Stage.Replaying(3, 7, 4)), look(), now)
    assert(restarted.extent.map(_.value).contains(50) && restarted.batch.contains(7) && restarted.recoveryMs.contains(1500))
    assert(restarted.progress.contains((2, 5)) && restarted.state == "replaying")
  }

  test("what needs a look: an error, a thin margin, a recovery that was not proved, damage") {
    val failed = QueryView.of(
      snapshot(Stage.Failed, error = Some("Boom: why\n\tat a.b.C\n=== Streaming Query ===\nIdentifier"), warning = Some("topic t")),
      look(recoveries = Seq(Recovery(1, 2, Some(3.6), 4, Some(true)), Recovery(5, 6, None, 7, Some(false))), damages = Seq("segment 3")), now)
    assert(failed.error.contains("Boom: why\n\tat a.b.C"))
    assert(failed.notes == Seq(
      Note(Level.Bad, "the query has failed: Boom: why"),
      Note(Level.Warning, "a source is about to lose what a recovery needs: topic t"),
      Note(Level.Bad, "the last recovery was not proved right: read its report in cec/recoveries/"),
      Note(Level.Bad, "damage in the log: segment 3")))
    assert(failed.recoveries.map(each => (each.foretoldMs, each.level)) == Seq((Some(4L), Level.Good), (None, Level.Bad)))
  }

  test("of an error of Python the note has Python's own line") {
    val error = "org.apache.PythonException: [PYTHON_EXCEPTION] thrown (most recent call last):\n  File\nValueError: no price\n SQLSTATE: 38000\n\tat x"
    val view = QueryView.of(snapshot(Stage.Failed, error = Some(error)), unknown, now)
    assert(view.notes.map(_.text) == Seq("the query has failed: ValueError: no price"))
  }

  test("an ended query says nothing of an agent that did not answer") {
    assert(QueryView.of(snapshot(Stage.Stopped), unknown.copy(problem = Some("late")), now).notes.isEmpty)
  }
}
