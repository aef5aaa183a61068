package org.apache.spark.sql.cec.state

import scala.jdk.CollectionConverters._

import com.fasterxml.jackson.databind.JsonNode

/**
 * One threshold of a plan. If all windows before version `before` are checked, a recovery replays or scans `cost`.
 *
 * @param windows the windows written again, each with one record in `cost`
 */
private[state] final case class Step(before: Long, cost: Long, windows: Long)

/** The agent's plan for the next commit. The commit looks up its own counts in the plan's thresholds. */
private[cec] final class CheckpointPlan(node: JsonNode) {
  private val replayBound = node.get("replay_bound").asLong
  private val extentRecords = node.get("extent_records").asLong
  private val extentPerWindow = node.get("extent_per_window").asDouble
  private val replaySteps = readSteps("replay_steps")
  private val extentSteps = readSteps("extent_steps")

  /** A commit checks windows dirty since before this version, even without budget. */
  val forcedBefore: Long = node.get("forced_before").asLong

  /**
   * A commit writes this number of windows again, oldest footprint first, even without budget. Else footprints would
   * grow too old.
   */
  val rewriteWindows: Long = node.path("rewrite_windows").asLong(0L)

  /** CI/CP, and CI in ms. */
  val share: Double = node.get("share").asDouble
  val floorMs: Double = node.get("floor_ms").asDouble

  /**
   * The number of input tuples to which checks should bring the replay, even without budget; None: no number is worth
   * it.
   */
  private val worthBound = Option(node.get("worth_bound")).filter(_.isNumber).map(_.asLong)

  /** A commit checks windows dirty since before this version, even without budget, because that costs little. */
  def worthBefore(inputs: Long): Long =
    worthBound.map(bound => findThreshold(replaySteps, step => step.cost + inputs <= bound)).getOrElse(Long.MinValue)

  /** A commit should check windows dirty since before this version, so that u stays within U. */
  def replayBefore(inputs: Long): Long = findThreshold(replaySteps, step => step.cost + inputs <= replayBound)

  /**
   * A commit should write windows with footprints before this version again, so that q stays within Q.
   *
   * @param rows state keys after the commit; a window of a store with prefix may have several
   * @param rowsBefore returns the rows of the windows with footprints before a version; callers ask for ascending
   * versions
   */
  def extentBefore(records: Long, rows: Long, rowsBefore: Long => Long): Long = {
    val limit = Math.max(Math.max(extentRecords, (extentPerWindow * rows).toLong), rows)
    findThreshold(extentSteps, step => step.cost - step.windows + rowsBefore(step.before) + records <= limit)
  }

  private def findThreshold(steps: Seq[Step], enough: Step => Boolean): Long =
    steps.find(enough).orElse(steps.lastOption).map(_.before).getOrElse(Long.MinValue)

  private def readSteps(name: String): Seq[Step] =
    node.get(name).elements.asScala.map(step => Step(step.get(0).asLong, step.get(1).asLong, step.path(2).asLong)).toVector
}
