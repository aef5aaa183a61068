package org.apache.spark.sql.cec.state

import org.apache.spark.sql.cec.agent.CecException
import org.apache.spark.sql.execution.streaming.state.StateStoreId

/** Checks that a replay of one store brings the same batches and ends with the same windows. Not thread-safe. */
private[state] final class ReplayCheck(id: StateStoreId, recovery: Recovery, rowDigest: RowDigest) {
  private var countMismatches, differences = Vector.empty[String]

  /** Forgets the findings, for a new replay. */
  def reset(): Unit = {
    countMismatches = Vector.empty
    differences = Vector.empty
  }

  /** Ends a replay. Returns the proof of its version, or the differences that the user's settings accept. */
  def end(version: Long): Either[String, Verified] =
    if (differences.isEmpty) Right(Verified.replayed(version)) else Left(differences.mkString("; "))

  /** Proves that the windows match a checkpoint without dirty windows. */
  def loaded(windows: LiveWindows, checkpoint: CheckpointAnswer): Verified = {
    val (digest, wanted) = (computeDigest(windows, checkpoint.footer), checkpoint.footer.digest)
    if (digest != wanted) {
      throw new CecException("DamagedLog",
        f"store $id: the eventual checkpoint of version ${checkpoint.version} has digest $digest%016x where $wanted%016x was committed; run " +
          "`cec verify` on the checkpoint")
    }
    Verified.loaded(checkpoint.version)
  }

  /** Compares the number of rows of a batch, where that number is certain: a digest may miss rows that are gone. */
  def inputs(batch: Long, brought: Long, expected: Option[Long]): Unit = expected.filter(count => brought > 0 && brought != count).foreach { count =>
    countMismatches :+= s"batch $batch brought store $id $brought rows where it had brought $count"
    if (recovery.counted && !recovery.accept) throw makeDivergence(countMismatches.last)
  }

  /** Refuses windows that a batch would close: the hold rule allows none. */
  def closes(batch: Long, windows: Int): Unit =
    if (windows > 0 && !recovery.accept) {
      throw makeDivergence(s"the replay of batch $batch would close $windows windows of store $id that are open at version ${recovery.base}")
    }

  /**
   * Compares the windows with a footer.
   *
   * @param dirty the number of dirty windows now, and the number at the commit
   */
  def compare(windows: LiveWindows, open: Long, wanted: Footer, dirty: Option[(Long, Long)]): Unit = {
    val digest = computeDigest(windows, wanted)
    if (digest != wanted.digest || open != wanted.openWindows || !dirty.forall { case (now, before) => now == before }) {
      differences :+= f"store $id differs from what was committed at version ${windows.version}: digest $digest%016x for ${wanted.digest}%016x, " +
        f"$open windows for ${wanted.openWindows}" +
        dirty.map { case (now, before) => s", $now dirty windows for $before" }.mkString
      if (!recovery.accept) throw makeDivergence((differences ++ countMismatches).mkString("; "))
    }
  }

  /** Computes the digest of the windows in the way of the given commit. */
  private def computeDigest(windows: LiveWindows, commit: Footer): Long =
    if (commit.digestKind == rowDigest.kind) windows.sums.digest
    else {
      var sum = 0L
      windows.windows.foreach(window => windows.foreachRow(window, (key, value) => sum += rowDigest.hash(value, rowDigest.seed(key), commit.digestKind)))
      sum
    }

  private def makeDivergence(what: String): CecException = new CecException(ReplayCheck.Divergence,
    s"$what. In the replay of committed batches the query, its input or its functions are not what they were: give them back as they were and " +
      "restart (the sink and Spark's logs were not touched). If the input is gone, or to change a query, " +
      "spark.sql.streaming.stateStore.cec.onDivergence=accept takes the state as the replay left it, and reports which windows may differ")
}

private[cec] object ReplayCheck {
  /** The kind of the error. */
  val Divergence = "Divergence"
}
