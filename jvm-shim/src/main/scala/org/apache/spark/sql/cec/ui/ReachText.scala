package org.apache.spark.sql.cec.ui

import org.apache.spark.sql.cec.agent.{Reach, SourceStanding}

/** How far a recovery would reach, against what the sources still had when they were asked last. */
private[ui] object ReachText {
  /** The source that is nearest to a loss of what a recovery needs; None if no source told what it has. */
  def nearest(reach: Reach): Option[SourceStanding] = reach.sources.minByOption(source => source.share.getOrElse(Double.PositiveInfinity))

  /** A few words about that source, for a cell. */
  def summarize(source: SourceStanding): String = source.spare match {
    case _ if source.gone => "the source has lost a part"
    case Some(spare) => s"the source has ${Format.counted(spare, "offset", "offsets")} more"
    case None => "the source has lost nothing"
  }

  def level(source: SourceStanding): Level = if (source.gone) Level.Bad else Level.Plain

  /** All that is known, in one line. */
  def describe(reach: Reach, nowMs: Long): String = {
    val asked = reach.askedMs.map(ms => s" (asked ${Format.rough(Math.max(nowMs - ms, 0L))} ago)").filter(_ => reach.sources.nonEmpty)
    (reach.text +: reach.sources.map(_.text)).mkString("; ") + asked.getOrElse("")
  }
}
