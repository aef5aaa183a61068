package org.apache.spark.sql.cec.ui

import scala.xml.{Elem, Node, Text}

/** Pieces of pages, with the classes of Bootstrap and of Spark's own pages. All text is escaped. */
private[ui] object Html {
  /** A column's head, and what it means. */
  final case class Column(name: String, meaning: String)

  /** A table that a click on a head sorts. */
  def sortable(id: String, columns: Seq[Column], rows: Seq[Elem]): Elem =
    <div class="table-responsive">
      <table id={id} class="table table-bordered table-sm table-striped sortable">
        <thead><tr>{columns.map(column => <th title={column.meaning}>{column.name}</th>)}</tr></thead>
        <tbody>{rows}</tbody>
      </table>
    </div>

  /** A cell that sorts by a number. */
  def cell(key: Double, content: Node*): Elem = <td sorttable_customkey={key.toString} class="text-nowrap">{content}</td>

  def number(value: Option[Long], show: Long => String): Elem = cell(value.fold(-1.0)(_.toDouble), Text(value.fold("–")(show)))

  def badge(level: Level, text: String): Elem = <span class={s"badge text-bg-${level.colour}"}>{text}</span>

  def alert(note: Note): Elem = <div class={s"alert alert-${note.level.colour} py-1 mb-2"} role="alert">{note.text}</div>

  /** A number against its bound: `480 of 1,000 (nearest partition 48 %)`. */
  def bounded(found: Option[Bounded]): Elem = found match {
    case None => <td sorttable_customkey="-1">–</td>
    case Some(each) =>
      val of = each.bound.fold("")(bound => s" of ${Format.count(bound)}")
      val near = each.share.map(share => badge(each.level, Format.share(share))).toSeq
      cell(each.share.getOrElse(each.value.toDouble), Text(s"${Format.count(each.value)}$of ") +: near: _*)
  }

  /** How far a replay is. */
  def progress(ran: Long, all: Long): Elem = {
    val percent = if (all <= 0) 100 else Math.min(100, ran * 100 / all)
    <div class="small" title="batches of the replay that ran">
      <div class="progress" role="progressbar" aria-valuenow={percent.toString} aria-valuemin="0" aria-valuemax="100">
        <div class="progress-bar bg-warning" style={s"width: $percent%"}></div>
      </div>
      {s"$ran of $all batches"}
    </div>
  }

  /** Lines of names and values. */
  def facts(rows: Seq[(String, Seq[Node])]): Elem =
    <table class="table table-sm table-borderless w-auto">
      <tbody>{rows.map { case (name, value) => <tr><th class="text-nowrap pe-3">{name}</th><td>{value}</td></tr> }}</tbody>
    </table>
}
