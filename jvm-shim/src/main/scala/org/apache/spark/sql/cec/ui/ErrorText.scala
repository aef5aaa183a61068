package org.apache.spark.sql.cec.ui

/** Spark's errors as a page shows them. */
private[ui] object ErrorText {
  private val MostCharacters = 4000
  private val MostSummaryCharacters = 300

  /** Spark appends its plan to an error, which is no use here. */
  private val Plan = "\n=== Streaming Query ==="

  /** The names that Spark gives a query and its run. */
  private val Names = """\[STREAM_FAILED\] Query \[[^\]]*\] terminated with exception: """.r

  /** The error without Spark's plan. */
  def shorten(error: String): String = {
    val own = error.indexOf(Plan) match {
      case -1 => error
      case end => error.take(end)
    }
    if (own.length <= MostCharacters) own else own.take(MostCharacters) + " …"
  }

  /** The line of an error that says most: Python's own, or the first. */
  def summarize(error: String): String = {
    val lines = Names.replaceAllIn(shorten(error), "").linesIterator.map(_.trim).filter(_.nonEmpty).toSeq
    val python = lines.sliding(2).collectFirst { case Seq(line, next) if next.startsWith("SQLSTATE") && !line.startsWith("[") => line }
    python.orElse(lines.headOption).getOrElse(error).take(MostSummaryCharacters)
  }
}
