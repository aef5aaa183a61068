package org.apache.spark.sql.cec.recovery

import java.util.UUID

import org.apache.logging.log4j.CloseableThreadContext

import org.apache.spark.sql.DataFrame
import org.apache.spark.sql.catalyst.streaming.WriteToStream
import org.apache.spark.sql.cec.agent.CecException
import org.apache.spark.sql.classic.SparkSession
import org.apache.spark.sql.execution.{SparkPlan, SQLExecutionRDD}
import org.apache.spark.sql.execution.streaming.Sink
import org.apache.spark.sql.execution.streaming.checkpointing.OffsetSeqMetadata
import org.apache.spark.sql.execution.streaming.operators.stateful.StateStoreWriter
import org.apache.spark.sql.execution.streaming.runtime._
import org.apache.spark.sql.internal.SQLConf
import org.apache.spark.sql.streaming.{StreamingQueryProgress, Trigger}
import org.apache.spark.util.{Clock, SystemClock}

/**
 * Runs committed batches again, one after another, so that the state stores reach the version that they had. Each
 * batch has the offsets, watermark, timestamp and confs of Spark's offset log.
 *
 * This is Spark's own engine with some hooks overridden. A replay writes nothing to Spark's logs, acknowledges nothing
 * to a source, gives nothing to the user's sink and tells no listener. The replay runs in the query's thread under the
 * query's run id, so the query goes on with the same state stores.
 *
 * @param write the query, with a sink that drops its rows
 * @param first the first batch to run; the offset log has the batches from `first` - 1 to `last`
 * @param last the last batch to run
 * @param whole whether missing input files stop the replay; true if perhaps no footer is left that would show the
 * difference
 * @param afterBatch called with the id of each batch that ran
 */
private[recovery] final class ReplayExecution(
    session: SparkSession,
    write: WriteToStream,
    first: Long,
    last: Long,
    whole: Boolean,
    override val runId: UUID,
    override val queryExecutionThread: QueryExecutionThread,
    override val progressReporter: ProgressReporter,
    afterBatch: Long => Unit)
    extends MicroBatchExecution(session, Trigger.ProcessingTime(0L), new SystemClock, Map.empty, write) {

  /** Runs all batches, and throws the failure of a batch. */
  def run(): Unit =
    try sparkSessionForStream.withActive {
      prepareSession()
      loggingThreadContext = CloseableThreadContext.put("query_id", id.toString)
      logicalPlan // makes the sources
      state.set(ACTIVE)
      runActivatedStream(sparkSessionForStream)
    } finally {
      stopSources()
      cleanup()
      if (loggingThreadContext != null) loggingThreadContext.close()
    }

  /** The names of the sources, in the order of the offset log; none before the sources exist. */
  def sourceNames: Seq[String] = sources.map(_.toString)

  /** Describes the input files of a batch that are gone. */
  def gone(batch: Long): Option[String] =
    new MissingInputFiles(session, resolvedCheckpointRoot).among(sources, readOffsets(batch - 1), readOffsets(batch)) match {
      case Seq() => None
      case Seq(file) => Some(s"$file, which batch $batch has read, is gone")
      case first +: others => Some(s"$first and ${others.size} more, which batch $batch has read, are gone")
    }

  /** Sets the settings that Spark sets in the session of every stream. */
  private def prepareSession(): Unit = {
    val conf = sparkSessionForStream.conf
    conf.set(SQLConf.CBO_ENABLED.key, "false")
    conf.set(SQLConf.REQUIRE_ALL_CLUSTER_KEYS_FOR_DISTRIBUTION.key, "false")
    if (conf.get(SQLConf.STATEFUL_SHUFFLE_PARTITIONS_INTERNAL).isEmpty) {
      conf.set(SQLConf.STATEFUL_SHUFFLE_PARTITIONS_INTERNAL.key, conf.get(SQLConf.SHUFFLE_PARTITIONS).toString)
    }
  }

  override protected def getTrigger(): TriggerExecutor = new TriggerExecutor {
    override def execute(runBatch: MicroBatchExecutionContext => Boolean): Unit = (first to last).foreach { batch =>
      runOneBatch(runBatch)
      afterBatch(batch)
    }

    override def setNextBatch(context: MicroBatchExecutionContext): Unit = {
      if (context.batchId <= last) restoreBatch(context)
      super.setNextBatch(context)
    }
  }

  override protected def populateStartOffsets(context: MicroBatchExecutionContext, session: SparkSession): Unit = {
    context.batchId = first
    context.sinkCommitProgress = None
    restoreBatch(context)
  }

  /**
   * Gives a batch its recorded offsets and metadata. Spark plans nothing itself: it takes each batch for an
   * interrupted one.
   */
  private def restoreBatch(context: MicroBatchExecutionContext): Unit = {
    val recorded = offsetLog.get(context.batchId).getOrElse(
      throw new IllegalStateException(s"batch ${context.batchId} is gone from the offset log of $resolvedCheckpointRoot"))
    context.startOffsets = readOffsets(context.batchId - 1)
    context.endOffsets = readOffsets(context.batchId)
    if (whole) gone(context.batchId).foreach(words => throw new CecException("InputGone", words))
    recorded.metadataOpt.foreach { metadata =>
      OffsetSeqMetadata.setSessionConf(metadata, sparkSessionForStream.sessionState.conf)
      context.offsetSeqMetadata = metadata
    }
    context.isCurrentBatchConstructed = true
  }

  private def readOffsets(batch: Long): StreamProgress =
    offsetLog.get(batch).map(_.toStreamProgress(sources, sourceIdMap)).getOrElse(new StreamProgress())

  override protected def markMicroBatchStart(context: MicroBatchExecutionContext): Unit = ()
  override protected def cleanUpLastExecutedMicroBatch(context: MicroBatchExecutionContext): Unit = ()
  override protected def markMicroBatchEnd(context: MicroBatchExecutionContext): Unit = committedOffsets ++= context.endOffsets
  override def purgeStatefulMetadataAsync(plan: SparkPlan): Unit = ()
  override protected def getBatchDescriptionString: String = s"replay, ${super.getBatchDescriptionString}"
}

/**
 * Runs a batch for its state alone: the operators with state, and those that feed them.
 *
 * A replay keeps a window out of sight that has changed later. So in update mode an operator gives out rows that never
 * were, as with `sum(views) = 0`. An expression above that divides by it would fail, and fail again at each start.
 */
private[recovery] object SilentSink extends Sink {
  override def addBatch(batchId: Long, data: DataFrame): Unit = {
    val execution = data.queryExecution
    val roots = writersAbove(execution.executedPlan)
    (if (roots.isEmpty) Seq(execution.executedPlan) else roots)
      .foreach(root => new SQLExecutionRDD(root.execute(), execution.sparkSession.sessionState.conf).foreach(_ => ()))
  }

  /** The operators with state that have none above them. */
  private def writersAbove(plan: SparkPlan): Seq[SparkPlan] = plan match {
    case writer: StateStoreWriter => Seq(writer)
    case other => other.children.flatMap(writersAbove)
  }
}

/** Reports no progress, but counts the input rows. */
private[recovery] final class SilentReporter(session: SparkSession, clock: Clock, write: WriteToStream)
    extends ProgressReporter(session, clock, () => write.inputQuery) {
  /** The input rows of all batches that ran. */
  var rows = 0L

  override def updateProgress(progress: StreamingQueryProgress): Unit = rows += progress.numInputRows
}
