package org.apache.spark.sql.cec.agent

import org.apache.spark.QueryContext
import org.apache.spark.sql.AnalysisException

/**
 * The error of a query that does not start, or of a log that cannot be read, as an AnalysisException of Spark. Callers
 * in Python then get the matching exception with the message alone.
 */
private[cec] final class QueryRefusedException(cause: CecException)
  extends AnalysisException(cause.getMessage, None, None, Some(cause), None, Map.empty, Array.empty[QueryContext])

private[cec] object QueryRefusedException {
  /** Runs `body`, and turns its CecException into this exception. */
  def orResult[T](body: => T): T = try body catch {
    case refusal: CecException => throw new QueryRefusedException(refusal)
  }
}
