package org.apache.spark.sql.cec.state

import scala.jdk.CollectionConverters._

import com.fasterxml.jackson.databind.JsonNode

/**
 * With the windows before version `before` checked, `cost` stays to be replayed or scanned. Where `windows` are written
 * again, one record for each of them is in it.
 */
private[state] final case class Step(before: Long, cost: Long, windows: Long)

/** The agent's plan for the next commit: thresholds that this commit's own counts are looked up in. */
private[cec] final class CheckpointPlan(node: JsonNode) {
  private val replayBound = node.get("replay_bound").asLong
  private val extentRecords = node.get("extent_records").asLong
  private val extentPerWindow = node.get("extent_per_window").asDouble
  private val replaySteps = steps("replay_steps")
  private val extentSteps = steps("extent_steps")

  /** Dirty windows from before this version are checked whatever the time budget says. */
  val forcedBefore: Long = node.get("forced_before").asLong

  /** So many windows, oldest footprint first, are written again whatever the time budget says: else they grow too old. */
  val rewriteWindows: Long = node.path("rewrite_windows").asLong(0L)

  /** CI/CP, and CI in ms. */
  val share: Double = node.get("share").asDouble
  val floorMs: Double = node.get("floor_ms").asDouble

  /** What it is worth to bring the replay down to whatever the time budget says, in input tuples; None: nothing. */
  private val worthBound = Option(node.get("worth_bound")).filter(_.isNumber).map(_.asLong)

  /** Dirty windows first changed before this version are checked whatever the time budget says, as that is cheap. */
  def worthBefore(inputs: Long): Long =
    worthBound.map(bound => lookUp(replaySteps, step => step.cost + inputs <= bound)).getOrElse(Long.MinValue)

  /** Dirty windows first changed before this version should be checked, so that u stays within U. */
  def replayBefore(inputs: Long): Long = lookUp(replaySteps, step => step.cost + inputs <= replayBound)

  /**
   * Windows with footprints before this version should be written again, so that q stays within Q.
   *
   * @param rows state keys after the commit: more than the open windows in a store with prefix, where a window has several
   * @param rowsBefore rows of the windows with footprints before a version; asked for ascending versions
   */
  def extentBefore(records: Long, rows: Long, rowsBefore: Long => Long): Long = {
    val limit = Math.max(Math.max(extentRecords, (extentPerWindow * rows).toLong), rows)
    lookUp(extentSteps, step => step.cost - step.windows + rowsBefore(step.before) + records <= limit)
  }

  private def lookUp(steps: Seq[Step], enough: Step => Boolean): Long =
    steps.find(enough).orElse(steps.lastOption).map(_.before).getOrElse(Long.MinValue)

  private def steps(name: String): Seq[Step] =
    node.get(name).elements.asScala.map(step => Step(step.get(0).asLong, step.get(1).asLong, step.path(2).asLong)).toVector
}
