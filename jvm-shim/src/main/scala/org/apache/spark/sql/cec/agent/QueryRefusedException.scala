package org.apache.spark.sql.cec.agent

import org.apache.spark.QueryContext
import org.apache.spark.sql.AnalysisException

/**
 * Why a query does not start, or a log cannot be read, told as Spark tells what is wrong with a query: callers in Python
 * too get an exception of their own kind then, with the message alone.
 */
private[cec] final class QueryRefusedException(cause: CecException)
  extends AnalysisException(cause.getMessage, None, None, Some(cause), None, Map.empty, Array.empty[QueryContext])

private[cec] object QueryRefusedException {
  /** The result of `body`; what fails for reasons of ours in it is refused. */
  def orResult[T](body: => T): T = try body catch {
    case refusal: CecException => throw new QueryRefusedException(refusal)
  }
}
