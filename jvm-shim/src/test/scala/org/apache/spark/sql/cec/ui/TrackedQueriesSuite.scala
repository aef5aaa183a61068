package org.apache.spark.sql.cec.ui

import java.util.UUID

import org.apache.spark.sql.cec.CecSuite
import org.apache.spark.util.SizeEstimator

class TrackedQueriesSuite extends CecSuite {
  import ViewFacts._

  private def begin(queries: TrackedQueries, run: RunIdentity): RunIdentity = {
    queries.begin(run, decision, () => Some("Waiting"))
    run
  }

  test("100,000 batches take no more memory than an hour of them") {
    val ring = new SampleRing
    // Each slot of the ring is filled once, with a batch a second.
    (0 until 3600).foreach(second => ring.add(sample(second * 1000L, second)))
    val full = SizeEstimator.estimate(ring)
    (3600 until 100000).foreach(second => ring.add(sample(second * 1000L, second)))
    assert(SizeEstimator.estimate(ring) == full)
    assert(full < 100000)
    val kept = ring.read(99999000L)
    assert(kept.size == SampleRing.Slots && kept.last.batch == 99999 && kept.head.batch == 96409)
  }

  test("batches of one slot become one sample, with sums and the largest times") {
    val ring = new SampleRing
    ring.add(sample(10000, 1).copy(batchMs = 90))
    ring.add(sample(19999, 2, extent = 60))
    ring.add(sample(20000, 3))
    val Seq(two, one) = ring.read(20001)
    assert(two == Sample(19999, 2, 2, 200, 90, 5, 2000, 60, 10, 3, 40, 1500))
    assert(one.batch == 3 && one.batches == 1)
    assert(ring.read(19999 + SampleRing.KeptMs) == Seq(one))
  }

  test("a query that went back to an older batch begins its slot anew") {
    val ring = new SampleRing
    ring.add(sample(10000, 9))
    ring.add(sample(11000, 4))
    assert(ring.read(11000).map(found => (found.batch, found.batches)) == Seq((4, 1)))
  }

  test("a sample has the sums over operators, and Spark's time of the batch") {
    val found = Sample.of(progress(5, Map("cecExtent" -> 7L, "cecReplay" -> 8L, "cecRecoveryEstimateMs" -> 9L)), 77)
    assert(found == Sample(77, 5, 1, 0, 30, 0, 0, 7, 8, 0, 0, 9))
  }

  test("a run begins, replays, runs, ends, and says why it failed, whichever of both comes first") {
    val queries = new TrackedQueries
    val run = begin(queries, identity())
    def stage = queries.snapshots(System.currentTimeMillis()).head.stage
    assert(stage == Stage.Starting)
    queries.replay(run.checkpoint, 3, 5, 2)
    assert(stage == Stage.Replaying(3, 5, 2))
    queries.replay(run.checkpoint, 3, 5, 5)
    assert(stage == Stage.Running)
    queries.note(run.checkpoint, progress(6, Map.empty))
    queries.end(run.runId, None)
    assert(stage == Stage.Stopped)
    queries.end(run.runId, Some("why"))
    assert(stage == Stage.Failed && queries.snapshots(0).head.error.contains("why"))
    queries.end(run.runId, None)
    assert(stage == Stage.Failed)
    queries.note(run.checkpoint, progress(7, Map.empty)) // events may come late
    assert(stage == Stage.Failed)
  }

  test("a restart goes on with the samples, and the end of the run before does not end it") {
    val queries = new TrackedQueries
    val before = begin(queries, identity())
    queries.note(before.checkpoint, progress(6, Map.empty))
    queries.end(before.runId, Some("why"))
    val after = begin(queries, identity())
    queries.end(before.runId, None)
    val Seq(found) = queries.snapshots(System.currentTimeMillis())
    assert(found.stage == Stage.Starting && found.error.isEmpty && found.samples.map(_.batch) == Seq(6))
    assert(found.identity.runId == after.runId)
  }

  test("the oldest ended queries go, and none that runs") {
    val queries = new TrackedQueries
    val running = begin(queries, identity("running", "file:/running"))
    (0 until TrackedQueries.MostEnded + 50).foreach(n => queries.end(begin(queries, identity(s"$n", s"file:/$n")).runId, None))
    val names = queries.snapshots(0).flatMap(_.identity.name)
    assert(names.size <= TrackedQueries.MostEnded + 2 && names.contains(running.name.get))
    assert(!names.contains("0") && names.contains(s"${TrackedQueries.MostEnded + 49}"))
  }

  test("what Spark says of a query is not asked after its end, and its failure is no failure of a page") {
    val queries = new TrackedQueries
    val run = identity()
    queries.begin(run, decision, () => throw new IllegalStateException("stopped"))
    assert(queries.snapshots(0).head.activity.isEmpty)
    queries.end(UUID.randomUUID(), Some("another run"))
    assert(queries.snapshots(0).head.error.isEmpty)
  }
}
