package org.apache.spark.sql.cec.exchange

import org.apache.spark.sql.cec.agent.FootprintAges
import org.apache.spark.sql.cec.state.StoreOfOperator

/**
 * The open windows of a store by the age of their newest record, as a JVM that holds the store knows them.
 *
 * @param generation of the run that the JVM holds it for; -1 if no rule announced a run
 * @param version of the store that the numbers are of
 */
private[cec] final case class StoreWindows(store: StoreOfOperator, generation: Long, version: Long, ages: Seq[FootprintAges])

/**
 * The open windows of a query by the age of their newest record.
 *
 * @param classes youngest first
 * @param missing a line for each JVM whose stores do not count
 */
private[cec] final case class WindowAges(classes: Seq[FootprintAges], missing: Seq[String])

private[cec] object WindowAges {
  /** Adds up the stores. A store that has moved may be known to several JVMs: the newest version of the newest run counts. */
  def sum(known: Seq[StoreWindows]): Seq[FootprintAges] = {
    val newest = known.groupBy(_.store).values.map(_.maxBy(each => (each.generation, each.version)))
    newest.toSeq.flatMap(_.ages).groupBy(age => (age.first, age.last)).toSeq.sortBy(_._1._1)
      .map { case ((first, last), ages) => FootprintAges(first, last, ages.map(_.windows).sum) }
  }
}
