package org.apache.spark.sql.cec.ui

import org.apache.spark.sql.cec.agent.{LookAnswer, OperatorStanding, Reach}
import org.apache.spark.sql.cec.exchange.WindowAges

/** A message for the user, and how bad its reason is. */
private[ui] final case class Note(level: Level, text: String)

/**
 * An operator of a query.
 *
 * @param mode `deferred` or `eager`
 * @param reason of the mode
 * @param stores its stores, by kind; none before the first answer of the agent
 */
private[ui] final case class OperatorView(id: Long, kind: String, mode: String, reason: String, stores: Seq[OperatorStanding])

/** A recovery: when it began, how long it took, and the estimate of before. */
private[ui] final case class RecoveryView(startedMs: Long, tookMs: Long, foretoldMs: Option[Long], batches: Long, proved: Option[Boolean]) {
  def level: Level = proved match {
    case Some(true) => Level.Good
    case Some(false) => Level.Bad
    case None => Level.Plain
  }
}

/**
 * What the pages show of one query, as text and as JSON.
 *
 * @param title its name, or its id
 * @param state the word of its stage
 * @param level the worst of its state and its notes
 * @param progress of a replay: batches that ran, and all batches
 * @param activity what Spark says that it does
 * @param extent q against Q
 * @param replay u against U
 * @param reach how far back a recovery would reach
 * @param recoveryMs the estimate of a recovery
 * @param ages of its windows; empty unless it was asked for
 * @param answeredMs when the agent answered; None before the first answer
 */
private[ui] final case class QueryView(
    identity: RunIdentity, title: String, state: String, isOver: Boolean, stateLevel: Level, level: Level, progress: Option[(Long, Long)],
    activity: Option[String], startedMs: Long, mode: String, operators: Seq[OperatorView], newest: Option[Sample], batch: Option[Long],
    extent: Option[Bounded], replay: Option[Bounded], reach: Option[Reach], recoveryMs: Option[Long], settings: String,
    storedBytes: Option[Long], ages: WindowAges, recoveries: Seq[RecoveryView], samples: Seq[Sample], error: Option[String],
    notes: Seq[Note], answeredMs: Option[Long]) {
  def withAges(found: Timed[WindowAges]): QueryView = {
    val known = found.value.getOrElse(WindowAges(Nil, Nil))
    copy(ages = known.copy(missing = known.missing ++ found.problem.filterNot(_ => isOver)))
  }
}

private[ui] object QueryView {
  /** A bound that was exceeded for so long is not only a batch that was too large. */
  private val SustainedMs = 300000L

  /** The view: facts in, words and numbers out. */
  def of(facts: QuerySnapshot, look: Timed[LookAnswer], nowMs: Long): QueryView = {
    val (answer, newest, hasState) = (look.value, facts.samples.lastOption, facts.decision.operators.nonEmpty)
    val stores = answer.toSeq.flatMap(_.operators)
    def bound(
        value: Sample => Long, known: OperatorStanding => Long, limit: OperatorStanding => Option[Long],
        share: OperatorStanding => Option[Double]): Option[Bounded] =
      // After a restart the log knows more than the progress.
      newest.filter(_ => hasState).map(value).orElse(Option.when(stores.nonEmpty)(stores.map(known).sum)).map { now =>
        val limits = stores.map(limit)
        val sum = if (limits.isEmpty || limits.exists(_.isEmpty)) None else Some(limits.flatten.sum)
        val shares = stores.flatMap(share(_)) ++ sum.filter(_ > 0).map(now.toDouble / _)
        Bounded(now, sum, shares.maxOption, judge(facts.samples, value, sum, shares, nowMs))
      }
    val extent = bound(_.extent, _.extent, _.extentBound, _.extentShare)
    val replay = bound(_.replay, _.replay, _.replayBound, _.replayShare)
    val recoveries = answer.toSeq.flatMap(_.recoveries).map(each =>
      RecoveryView(each.startedMs, each.durationMs, each.predictedMs.map(_.round), each.replayedBatches, each.digestOk))
    val notes = collectNotes(facts, look, extent, replay, recoveries)
    QueryView(
      facts.identity,
      facts.identity.name.getOrElse(facts.identity.id.toString),
      facts.stage.word,
      facts.stage.isOver,
      judge(facts.stage),
      Level.worst(judge(facts.stage) +: notes.map(_.level)),
      Some(facts.stage).collect { case replaying: Stage.Replaying => (replaying.ran, replaying.total) },
      facts.activity,
      facts.startedMs,
      facts.decision.mode,
      facts.decision.operators.map(operator => OperatorView(
        operator.id, operator.kind, if (operator.deferred) "deferred" else "eager", operator.reason, stores.filter(_.operator == operator.id))),
      newest,
      newest.map(_.batch).orElse(answer.map(_.batch).filter(_ >= 0)),
      extent,
      replay,
      answer.flatMap(_.reach),
      newest.map(_.recoveryMs).filter(_ > 0).orElse(answer.map(_.recoveryMs.round).filter(_ > 0)),
      answer.map(_.settings).getOrElse(""),
      answer.map(_.storedBytes),
      WindowAges(Nil, Nil),
      recoveries,
      facts.samples,
      facts.error.map(ErrorText.shorten),
      notes,
      answer.map(_ => look.atMs))
  }

  /** Above the bound is a warning; above it in each batch for minutes is bad. */
  private def judge(samples: Seq[Sample], value: Sample => Long, sum: Option[Long], shares: Seq[Double], nowMs: Long): Level = {
    val recent = samples.filter(nowMs - _.atMs <= SustainedMs)
    val isOld = samples.headOption.exists(nowMs - _.atMs >= SustainedMs)
    val isSustained = isOld && recent.size > 1 && sum.exists(bound => recent.forall(value(_) > bound))
    if (isSustained) Level.Bad else if (shares.exists(_ > 1.0)) Level.Warning else if (shares.isEmpty) Level.Plain else Level.Good
  }

  private def judge(stage: Stage): Level = stage match {
    case Stage.Failed => Level.Bad
    case _: Stage.Replaying | Stage.Starting => Level.Warning
    case Stage.Running => Level.Good
    case Stage.Stopped => Level.Plain
  }

  private def collectNotes(
      facts: QuerySnapshot, look: Timed[LookAnswer], extent: Option[Bounded], replay: Option[Bounded], recoveries: Seq[RecoveryView]): Seq[Note] = {
    def above(name: String, limit: String, found: Option[Bounded]) = found.map(_.level).collect {
      case Level.Warning => Note(Level.Warning, s"$name is above $limit: the next commits bring it down, as far as CI/CP allows")
      case Level.Bad => Note(Level.Bad, s"$name has been above $limit for ${SustainedMs / 60000} minutes: raise $limit, or CI/CP")
    }
    Seq(
      facts.error.map(why => Note(Level.Bad, s"the query has failed: ${ErrorText.summarize(why)}")),
      above("q", "Q", extent),
      above("u", "U", replay),
      facts.warning.map(why => Note(Level.Warning, s"a source is about to lose what a recovery needs: $why")),
      recoveries.lastOption.filter(_.proved.contains(false)).map(_ =>
        Note(Level.Bad, "the last recovery was not proved right: read its report in cec/recoveries/")),
      look.problem.filterNot(_ => facts.stage.isOver).map(why => Note(Level.Warning, s"some numbers are old or missing: $why"))
    ).flatten ++ look.value.toSeq.flatMap(_.damages).map(damage => Note(Level.Bad, s"damage in the log: $damage"))
  }
}
