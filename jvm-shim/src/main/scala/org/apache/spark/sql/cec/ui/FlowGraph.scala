package org.apache.spark.sql.cec.ui

import scala.collection.mutable
import scala.xml.Elem

/** The place of a flow in the picture: its column, and its row there. */
private[ui] final case class Spot(column: Int, row: Int)

/** The picture of a pipeline: each flow is right of those that feed it. */
private[ui] object FlowGraph {
  private val BoxWidth = 190
  private val BoxHeight = 58
  private val GapX = 60
  private val GapY = 18
  private val Margin = 4
  private val MostCharacters = 24

  /** The spots of all flows. A cycle is cut where it closes. */
  def place(flows: Seq[FlowView]): Map[String, Spot] = {
    val inputs = flows.map(flow => flow.name -> flow.inputs).toMap
    val depths = mutable.Map.empty[String, Int]
    val visited = mutable.Set.empty[String]
    def measure(name: String): Unit = if (visited.add(name)) {
      inputs(name).filter(inputs.contains).foreach(measure)
      // An input without a depth is being measured now: there the cycle closes.
      depths(name) = inputs(name).flatMap(depths.get).map(_ + 1).maxOption.getOrElse(0)
    }
    flows.foreach(flow => measure(flow.name))
    flows.map(flow => flow.name -> depths(flow.name)).groupBy(_._2).toSeq.flatMap { case (column, members) =>
      members.zipWithIndex.map { case ((name, _), row) => name -> Spot(column, row) }
    }.toMap
  }

  def draw(flows: Seq[FlowView]): Elem = {
    val spots = place(flows)
    val width = (spots.values.map(_.column).maxOption.getOrElse(0) + 1) * (BoxWidth + GapX) - GapX + 2 * Margin
    val height = (spots.values.map(_.row).maxOption.getOrElse(0) + 1) * (BoxHeight + GapY) - GapY + 2 * Margin
    <div class="table-responsive mb-3">
      <svg id="cec-flows" viewBox={s"0 0 $width $height"} width={width.toString} height={height.toString} role="img" aria-label="the flows">
        {for (flow <- flows; input <- flow.inputs; from <- spots.get(input); to <- spots.get(flow.name)) yield drawEdge(from, to)}
        {flows.map(flow => drawBox(flow, spots(flow.name)))}
      </svg>
    </div>
  }

  private def left(spot: Spot): Int = Margin + spot.column * (BoxWidth + GapX)

  private def top(spot: Spot): Int = Margin + spot.row * (BoxHeight + GapY)

  private def drawEdge(from: Spot, to: Spot): Elem = {
    val (x1, y1, x2, y2) = (left(from) + BoxWidth, top(from) + BoxHeight / 2, left(to), top(to) + BoxHeight / 2)
    val middle = (x1 + x2) / 2
    <g>
      <path d={s"M $x1 $y1 C $middle $y1 $middle $y2 ${x2 - 7} $y2"} fill="none" stroke="currentColor" stroke-opacity="0.5"/>
      <path d={s"M ${x2 - 8} ${y2 - 4} L $x2 $y2 L ${x2 - 8} ${y2 + 4} z"} fill="currentColor" fill-opacity="0.5"/>
    </g>
  }

  private def drawBox(flow: FlowView, spot: Spot): Elem = {
    val (x, y) = (left(spot), top(spot))
    val name = if (flow.name.length <= MostCharacters) flow.name else flow.name.take(MostCharacters - 1) + "…"
    val behind = flow.behind.fold("")(batches => s", ${Format.count(batches)} behind")
    val cores = flow.cores.fold("")(busy => s", ${Format.cores(busy)} cores")
    <g>
      <title>{s"${flow.name}: ${flow.state}${flow.why.fold("")(why => s": $why")}"}</title>
      <g class={s"text-${flow.level.colour}"}>
        <rect x={x.toString} y={y.toString} width={BoxWidth.toString} height={BoxHeight.toString} rx={if (flow.isSink) "20" else "4"} fill="currentColor" fill-opacity="0.15" stroke="currentColor" stroke-width="2"/>
      </g>
      <text x={(x + BoxWidth / 2).toString} y={(y + 24).toString} font-size="13" font-weight="bold" fill="currentColor" text-anchor="middle">{name}</text>
      <text x={(x + BoxWidth / 2).toString} y={(y + 43).toString} font-size="11" fill="currentColor" text-anchor="middle">{s"${flow.state}$behind$cores"}</text>
    </g>
  }
}
