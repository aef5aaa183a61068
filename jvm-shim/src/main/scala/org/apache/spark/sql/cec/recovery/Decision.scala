package org.apache.spark.sql.cec.recovery

/** Whether the commits of one stateful operator may be deferred, with the reason. */
private[cec] final case class OperatorDecision(id: Long, kind: String, deferred: Boolean, reason: String)

/** The decision for a query. `reason` says in a sentence why operators are deferred or eager. */
private[cec] final case class Decision(operators: Seq[OperatorDecision]) {
  def deferred: Set[Long] = operators.filter(_.deferred).map(_.id).toSet

  /**
   * Operators whose input Spark does not aggregate before the shuffle. Only their number of shuffle records is the
   * same however tasks split the input.
   */
  def counted: Set[Long] = operators.filterNot(operator => StatefulOperators.isAggregated(operator.kind)).map(_.id).toSet

  def mode: String =
    if (operators.isEmpty) "stateless" else if (operators.forall(_.deferred)) "deferred"
    else if (deferred.nonEmpty) "mixed" else "eager"

  def reason: String =
    if (operators.isEmpty) "no stateful operator"
    else operators.map(op => s"operator ${op.id} (${op.kind}) ${if (op.deferred) "deferred" else "eager"}: ${op.reason}").mkString("; ")
}
