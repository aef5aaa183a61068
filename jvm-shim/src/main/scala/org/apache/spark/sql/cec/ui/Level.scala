package org.apache.spark.sql.cec.ui

/** How well something is, with the word in JSON and Bootstrap's word for its colour. */
private[ui] sealed abstract class Level(val word: String, val colour: String, val rank: Int)

private[ui] object Level {
  case object Plain extends Level("plain", "secondary", 0)
  case object Good extends Level("good", "success", 1)
  case object Warning extends Level("warning", "warning", 2)
  case object Bad extends Level("bad", "danger", 3)

  def worst(levels: Iterable[Level]): Level = levels.maxByOption(_.rank).getOrElse(Plain)
}

/**
 * A number against its bound, over all partitions.
 *
 * @param bound None if the settings fix none, or if it is not known yet
 * @param share of the partition that is nearest to its bound
 */
private[ui] final case class Bounded(value: Long, bound: Option[Long], share: Option[Double], level: Level)
