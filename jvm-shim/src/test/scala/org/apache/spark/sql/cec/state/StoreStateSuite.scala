package org.apache.spark.sql.cec.state

import java.nio.file.{Files, Path}

import org.apache.spark.sql.cec.CecSuite
import org.apache.spark.sql.cec.agent.{DurableCommit, SpoolPath, StoreCommit, StoreId}
import org.apache.spark.sql.execution.streaming.state.StateStoreId
import org.apache.spark.sql.types.{DataType, DoubleType, LongType, StructType}

/** A log without an agent: it numbers commits and writes none. */
private final class CountedLog extends StoreLog {
  private val directory = Files.createTempDirectory("cec")
  private var ids = 0
  private var files = 0

  override def newCheckpointId(): String = {
    ids += 1
    s"commit $ids"
  }

  override def spoolFile(expectedBytes: Long): SpoolPath = {
    files += 1
    SpoolPath(directory.resolve(s"$files.arrow"))
  }

  /** The spool files that are left. */
  def spooled: Int = directory.toFile.list.length

  override def describe(
      proof: Verified, numbers: CommitNumbers, checkpointId: String, isNamed: Boolean, baseId: Option[String], spool: Option[Path],
      wholeLedger: () => Iterable[(Long, Int)]): UnwrittenCommit = {
    val commit = StoreCommit(
      StoreId(0, 0, "default"), numbers.version, 1, 100, None, checkpointId, baseId, spool.map(_.toString), numbers.openWindows, numbers.dirtyFrom,
      numbers.dirtyWindows, numbers.opened, numbers.checked, numbers.closed, numbers.inputs, numbers.sums.digest.toString, numbers.sums.rows, 0, 0,
      numbers.liveIsWhole, Nil, None, 0)
    new UnwrittenCommit(commit, isNamed, wholeLedger, spool)
  }

  override def load(version: Long, checkpointId: Option[String]): CheckpointAnswer = throw new AssertionError(s"version $version is loaded")
  override def remains(version: Long): Remains = Remains()
  override def write(commit: UnwrittenCommit): DurableCommit = throw new AssertionError("a commit is written alone")
  override def loaded(version: Long, ecLoadMs: Double, digestOk: Option[Boolean], held: Long, unsure: Seq[String]): Unit = ()
  override def close(): Unit = ()
}

class StoreStateSuite extends CecSuite {
  import Rows._

  private val id = StateStoreId("/checkpoint/state", 0L, 0)

  private def store(log: StoreLog, values: DataType = LongType, deferred: Boolean = true, silent: Boolean = false): StoreState = new StoreState(
    id, log, 1, 1, None, None, new RowDigest(new StructType().add("v", values)), None, deferred, Recovery(0, 0, counted = false, accept = false),
    _ => false, _.toString, PageMemory.apart(Long.MaxValue), silent, together = true)

  /** Runs the batch that makes the version after `from`, and returns the id of its commit. */
  private def run(state: StoreState, from: Long, rows: (Long, Any)*): Option[String] = {
    state.begin(from, None)
    rows.foreach { case (key, value) => state.live.put(row(key), row(value)) }
    assert(state.commit(BatchFacts(rows.size.toLong, 0L, System.nanoTime())) == from + 1)
    state.checkpointId
  }

  private def valueOf(state: StoreState, key: Long): Long = state.live.get(row(key)).getLong(0)

  for (deferred <- Seq(true, false); silent <- Seq(true, false)) {
    test(s"the second commit of a batch has the first one's id where stores write together: deferred=$deferred silent=$silent") {
      val log = new CountedLog
      val state = store(log, deferred = deferred, silent = silent)
      assert(run(state, 0, 1L -> 10L).contains("commit 1"))
      assert(run(state, 0, 1L -> 10L) == Some("commit 1"), "the same result")
      assert(run(state, 0, 1L -> 11L) == Some("commit 1"), "another result")
      assert(valueOf(state, 1) == 11 && (silent || state.unwritten(1).exists(_.commit.checkpointId == "commit 1")))
      if (!silent) state.noteWritten(state.unwritten(1).get, StoreStateSuite.written)
      assert(run(state, 1, 1L -> 12L) == run(state, 1, 1L -> 13L) && !state.checkpointId.contains("commit 1"))
      state.close()
      assert(log.spooled == 0)
    }
  }

  test("doubles that another order adds up have the first one's id, too") {
    val log = new CountedLog
    val state = store(log, DoubleType)
    assert(run(state, 0, 1L -> (0.1 + 0.2 + 0.3)) == run(state, 0, 1L -> (0.3 + 0.2 + 0.1)))
    state.close()
    assert(log.spooled == 0)
  }

  test("a commit that the log has does not share its id with another one") {
    val state = store(new CountedLog)
    val first = run(state, 0, 1L -> 10L)
    state.noteWritten(state.unwritten(1).get, StoreStateSuite.written)
    assert(run(state, 0, 1L -> 11L) != first)
    state.close()
  }

  test("a version comes back that a task looked behind, when its commit is asked for") {
    val state = store(new CountedLog)
    val first = run(state, 0, 1L -> 10L)
    state.begin(0, None) // a view that reads; the task ends before the one that writes
    assert(state.unwritten(1).map(_.commit.checkpointId) == first && valueOf(state, 1) == 10)
    state.begin(0, None)
    assert(state.writtenCommit(1).isEmpty && state.version == 1)
    state.noteWritten(state.unwritten(1).get, StoreStateSuite.written)
    state.begin(0, None)
    assert(state.writtenCommit(1) == first && state.unwritten(1).isEmpty)
    assert(state.unwritten(0).isEmpty && state.writtenCommit(2).isEmpty && valueOf(state, 1) == 10)
    state.close()
  }
}

private object StoreStateSuite {
  val written: DurableCommit = DurableCommit(Plans.Nothing, extent = 0, replay = 0, recoveryEstimateMs = 0, bytes = 0, agentUs = 0)
}
