package org.apache.spark.sql.cec.ui

import org.apache.spark.sql.cec.agent.{Agent, LookAnswer, LookRequest, PipelineLookAnswer, PipelineLookRequest}
import org.apache.spark.sql.cec.exchange.{StoreLocations, WindowAges}
import org.apache.spark.util.ThreadUtils

/** A place that a page asks about. */
private[ui] final case class QueryPlace(checkpoint: String, home: String)

/** What pages ask the agents. Nothing calls it unless somebody opens a page. */
private[ui] trait Looks {
  /** By place, for the queries that run. An ended query's log is closed: its answer of before stays. */
  def lookAtQueries(running: Seq[QueryPlace], ended: Seq[QueryPlace]): Map[QueryPlace, Timed[LookAnswer]]

  /** The ages of a query's windows, from all JVMs. An ended query's stores are closed: its answer of before stays. */
  def lookAtAges(of: QueryPlace, isOver: Boolean): Timed[WindowAges]

  /** The pipelines with these homes, by home. */
  def lookAtPipelines(homes: Seq[String]): Map[String, Timed[PipelineLookAnswer]]

  /** Forgets the answers about all other queries and pipelines. */
  def keepOnly(places: Set[QueryPlace], homes: Set[String]): Unit
}

private[ui] final class AgentLooks extends Looks {
  private lazy val threads = ThreadUtils.newDaemonCachedThreadPool("cec-ui", AgentLooks.Threads)
  private lazy val queries = new TimedCalls[QueryPlace, LookAnswer](
    threads, AgentLooks.LimitMs, place => Agent.ask(LookRequest(place.checkpoint, place.home)))
  private lazy val ages = new TimedCalls[QueryPlace, WindowAges](
    threads, AgentLooks.LimitMs, place => StoreLocations.ages(place.checkpoint, AgentLooks.StoresLimitMs))
  private lazy val pipelines = new TimedCalls[String, PipelineLookAnswer](
    threads, AgentLooks.LimitMs, home => Agent.ask(PipelineLookRequest(home)))

  override def lookAtQueries(running: Seq[QueryPlace], ended: Seq[QueryPlace]): Map[QueryPlace, Timed[LookAnswer]] =
    queries.ask(running) ++ ended.map(place => place -> queries.recall(place))

  override def lookAtAges(of: QueryPlace, isOver: Boolean): Timed[WindowAges] = if (isOver) ages.recall(of) else ages.ask(Seq(of))(of)

  override def lookAtPipelines(homes: Seq[String]): Map[String, Timed[PipelineLookAnswer]] = pipelines.ask(homes)

  override def keepOnly(places: Set[QueryPlace], homes: Set[String]): Unit = {
    queries.keepOnly(places)
    ages.keepOnly(places)
    pipelines.keepOnly(homes)
  }
}

private[ui] object AgentLooks {
  private val LimitMs = 2000L

  /** Shorter than the limit, so that a silent executor does not hide the answers of the others. */
  private val StoresLimitMs = 1500L
  private val Threads = 2
}
