package org.apache.spark.sql.cec.recovery

import org.apache.spark.sql.SparkSession
import org.apache.spark.sql.catalyst.plans.logical.LogicalPlan
import org.apache.spark.sql.execution.streaming.runtime.MicroBatchExecution

/** What the sources of a run report to it, in the stream's thread. */
private[recovery] trait SourceEvents {
  /** The input of a source whose quiet matters. */
  def quietInput(source: LogicalPlan): Option[QuietInput]

  /** Comes before the first source exists. */
  def beforeSources(): Unit

  /** Comes before Spark plans the next batch. */
  def betweenBatches(): Unit

  /** Comes before a source is asked for new input, and again after. */
  def checkpointIfDue(): Unit

  /** Holds back an acknowledgement of the last batch that ran while a recovery may need its input. */
  def hold(acknowledge: () => Unit): Unit

  /** Comes when the query has ended, before its sources stop. */
  def beforeStop(): Unit
}

private[recovery] object SourceEvents {
  /** Forgets the batch of another query whose thread this one has inherited properties from. */
  def forgetBatch(session: SparkSession): Unit = session.sparkContext.setLocalProperty(MicroBatchExecution.BATCH_ID_KEY, null)

  /** The last batch that ran in this thread, by the property that Spark sets for its tasks. */
  def lastBatch(session: SparkSession): Option[Long] =
    Option(session.sparkContext.getLocalProperty(MicroBatchExecution.BATCH_ID_KEY)).map(_.toLong)
}

/** The events of a run without state: no recovery needs its input again, and only the quiet of its sources matters. */
private[recovery] final class StatelessRun(session: SparkSession, quiet: QuietInputs) extends SourceEvents {
  override def quietInput(source: LogicalPlan): Option[QuietInput] = quiet.of(source)
  override def beforeSources(): Unit = SourceEvents.forgetBatch(session)
  override def betweenBatches(): Unit = ()
  override def checkpointIfDue(): Unit = ()
  override def hold(acknowledge: () => Unit): Unit = acknowledge()
  override def beforeStop(): Unit = ()
}
