package org.apache.spark.sql.cec.ui

import scala.xml.Elem

/** A point of a curve: wall clock, value, and what a reader sees when the mouse is there. */
private[ui] final case class Point(atMs: Long, value: Double, words: String)

/**
 * A curve over the last hour, as an SVG without scripts. Its colours are those of the page, so it follows the dark mode.
 *
 * @param bound a line that the curve should not cross
 */
private[ui] final case class Chart(title: String, points: Seq[Point], nowMs: Long, bound: Option[Double], show: Double => String) {
  import Chart._

  private val fromMs = Math.max(points.headOption.fold(nowMs - 60000)(_.atMs), nowMs - SampleRing.KeptMs)
  private val highest = points.map(_.value).maxOption.getOrElse(0.0)
  // A bound that is far above the curve would make the curve flat.
  private val shown = bound.filter(limit => limit > 0 && limit <= 4 * highest)
  private val top = Math.max(Math.max(highest, shown.getOrElse(0.0)) * 1.05, 1e-9)

  private def x(atMs: Long): Double = round(Left + (atMs - fromMs).toDouble / Math.max(nowMs - fromMs, 1L) * (Width - Left - Right))

  private def y(value: Double): Double = round(Bottom - value / top * (Bottom - Top))

  def draw: Elem = {
    val line = points.map(point => s"${x(point.atMs)},${y(point.value)}").mkString(" ")
    val newest = points.lastOption.fold("–")(point => show(point.value))
    <figure class="figure w-100">
      <figcaption class="figure-caption">{title}: <strong>{newest}</strong>{s", at most ${show(highest)}"}{bound.fold("")(limit => s", bound ${show(limit)}")}</figcaption>
      <svg viewBox={s"0 0 $Width $Height"} width="100%" role="img" aria-label={title}>
        <line x1={Left.toString} y1={Bottom.toString} x2={(Width - Right).toString} y2={Bottom.toString} stroke="currentColor" stroke-opacity="0.4"/>
        <text x={Left.toString} y={(Height - 2).toString} font-size="10" fill="currentColor">{Format.rough(nowMs - fromMs)} ago</text>
        <text x={(Width - Right).toString} y={(Height - 2).toString} font-size="10" fill="currentColor" text-anchor="end">now</text>
        {shown.toSeq.map(limit => <g class="text-danger"><line x1={Left.toString} y1={y(limit).toString} x2={(Width - Right).toString} y2={y(limit).toString} stroke="currentColor" stroke-dasharray="6 4"><title>{s"bound ${show(limit)}"}</title></line></g>)}
        <g class="text-primary">
          <polyline points={line} fill="none" stroke="currentColor" stroke-width="1.5"/>
          {(if (points.size <= MostDots) points else points.takeRight(1)).map(point => <circle cx={x(point.atMs).toString} cy={y(point.value).toString} r="2.5" fill="currentColor"><title>{point.words}</title></circle>)}
        </g>
      </svg>
    </figure>
  }
}

private[ui] object Chart {
  private val Width = 420
  private val Height = 110
  private val Left = 4
  private val Right = 4
  private val Top = 6
  private val Bottom = 94

  /** More dots would be a band. */
  private val MostDots = 120

  private def round(value: Double): Double = Math.round(value * 10) / 10.0
}
