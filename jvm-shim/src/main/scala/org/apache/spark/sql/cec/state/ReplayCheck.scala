package org.apache.spark.sql.cec.state

import org.apache.spark.sql.cec.agent.CecException
import org.apache.spark.sql.execution.streaming.state.StateStoreId

/** What a replay of one store finds out: whether its batches, and what came of them, are what they were. Not safe for several threads. */
private[state] final class ReplayCheck(id: StateStoreId, recovery: Recovery, rowDigest: RowDigest) {
  private var miscounted, differences = Vector.empty[String]

  /** Begins anew. */
  def reset(): Unit = {
    miscounted = Vector.empty
    differences = Vector.empty
  }

  /** What a replay has found at its end: the proof of its version, or what differs, which only a run that accepts it lives to see. */
  def end(version: Long): Either[String, Verified] =
    if (differences.isEmpty) Right(Verified.replayed(version)) else Left(differences.mkString("; "))

  /** The proof that windows are those of a checkpoint in which nothing is dirty. */
  def loaded(windows: LiveWindows, checkpoint: CheckpointAnswer): Verified = {
    val (digest, wanted) = (digestAs(windows, checkpoint.footer), checkpoint.footer.digest)
    if (digest != wanted) {
      throw new CecException("DamagedLog",
        f"store $id: the eventual checkpoint of version ${checkpoint.version} has digest $digest%016x where $wanted%016x was committed; run " +
          "`cec verify` on the checkpoint")
    }
    Verified.loaded(checkpoint.version)
  }

  /** Rows that are gone may leave no trace that a digest would see: where their number is sure, it must be what it was. */
  def inputs(batch: Long, brought: Long, expected: Option[Long]): Unit = expected.filter(count => brought > 0 && brought != count).foreach { count =>
    miscounted :+= s"batch $batch brought store $id $brought rows where it had brought $count"
    if (recovery.counted && !recovery.accept) throw divergence(miscounted.last)
  }

  /** Under the hold rule a batch may close no window. */
  def closes(batch: Long, windows: Int): Unit =
    if (windows > 0 && !recovery.accept) {
      throw divergence(s"the replay of batch $batch would close $windows windows of store $id that are open at version ${recovery.base}")
    }

  /**
   * Compares windows with what a footer says of them.
   *
   * @param dirty how many windows are dirty, and how many should be
   */
  def compare(windows: LiveWindows, open: Long, wanted: Footer, dirty: Option[(Long, Long)]): Unit = {
    val digest = digestAs(windows, wanted)
    if (digest != wanted.digest || open != wanted.openWindows || !dirty.forall { case (now, before) => now == before }) {
      differences :+= f"store $id differs from what was committed at version ${windows.version}: digest $digest%016x for ${wanted.digest}%016x, " +
        f"$open windows for ${wanted.openWindows}" +
        dirty.map { case (now, before) => s", $now dirty windows for $before" }.mkString
      if (!recovery.accept) throw divergence((differences ++ miscounted).mkString("; "))
    }
  }

  /** The digest of windows as the commit that they came from was digested. */
  private def digestAs(windows: LiveWindows, commit: Footer): Long =
    if (commit.digestKind == rowDigest.kind) windows.sums.digest
    else {
      var sum = 0L
      windows.windows.foreach(_.foreachRow((key, value) => sum += rowDigest.hash(value, rowDigest.seed(Window.row(key, 0)), commit.digestKind)))
      sum
    }

  private def divergence(what: String): CecException = new CecException(ReplayCheck.Divergence,
    s"$what. In the replay of committed batches the query, its input or its functions are not what they were: give them back as they were and " +
      "restart (the sink and Spark's logs were not touched). If the input is gone, or to change a query, " +
      "spark.sql.streaming.stateStore.cec.onDivergence=accept takes the state as the replay left it, and reports which windows may differ")
}

private[cec] object ReplayCheck {
  /** The kind of the error. */
  val Divergence = "Divergence"
}
