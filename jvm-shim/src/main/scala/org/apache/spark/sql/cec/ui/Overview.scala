package org.apache.spark.sql.cec.ui

/** Gathers the facts of a page: those that the JVM keeps, and the agent's answers. */
private[ui] final class Overview(queries: TrackedQueries, looks: Looks) {
  /** All queries; those that run come first. */
  def readQueries(nowMs: Long): Seq[QueryView] = view(readSnapshots(nowMs), nowMs).sortBy(view => (view.isOver, view.title))

  /** One query, with the ages of its windows. */
  def readQuery(id: String, nowMs: Long): Option[QueryView] = readSnapshots(nowMs).find(_.identity.id.toString == id).flatMap { found =>
    view(Seq(found), nowMs).headOption.map(_.withAges(looks.lookAtAges(place(found), found.stage.isOver)))
  }

  /** The pipelines that the queries are flows of. */
  def readPipelines(nowMs: Long): Seq[PipelineView] = {
    val homes = homesOf(readSnapshots(nowMs))
    if (homes.isEmpty) Nil
    else {
      val answers = looks.lookAtPipelines(homes.toSeq)
      homes.toSeq.flatMap(home => PipelineView.of(answers(home), nowMs)).sortBy(_.name)
    }
  }

  /** What the JVM knows of all queries. The answers about what it has forgotten are forgotten, too. */
  private def readSnapshots(nowMs: Long): Seq[QuerySnapshot] = {
    val found = queries.snapshots(nowMs)
    looks.keepOnly(found.map(place).toSet, homesOf(found))
    found
  }

  private def homesOf(snapshots: Seq[QuerySnapshot]): Set[String] = snapshots.flatMap(each => PipelineView.homeOf(each.identity.checkpoint)).toSet

  private def place(of: QuerySnapshot): QueryPlace = QueryPlace(of.identity.checkpoint, of.identity.home)

  private def view(snapshots: Seq[QuerySnapshot], nowMs: Long): Seq[QueryView] = {
    val (ended, running) = snapshots.partition(_.stage.isOver)
    val answers = looks.lookAtQueries(running.map(place), ended.map(place))
    snapshots.map(snapshot => QueryView.of(snapshot, answers(place(snapshot)), nowMs))
  }
}
