package org.apache.spark.sql.cec.recovery

import java.util.UUID

import org.apache.logging.log4j.CloseableThreadContext

import org.apache.spark.sql.DataFrame
import org.apache.spark.sql.catalyst.streaming.WriteToStream
import org.apache.spark.sql.cec.agent.CecException
import org.apache.spark.sql.classic.SparkSession
import org.apache.spark.sql.execution.SparkPlan
import org.apache.spark.sql.execution.streaming.Sink
import org.apache.spark.sql.execution.streaming.checkpointing.OffsetSeqMetadata
import org.apache.spark.sql.execution.streaming.runtime._
import org.apache.spark.sql.internal.SQLConf
import org.apache.spark.sql.streaming.{StreamingQueryProgress, Trigger}
import org.apache.spark.util.{Clock, SystemClock}

/**
 * Runs committed batches of a query once more, so that its state stores come to be what they were: back to back, each
 * with exactly the offsets, the watermark, the timestamp and the confs that Spark's offset log has for it.
 *
 * It is Spark's own engine, whose hooks are overridden where a batch would leave a trace: nothing is written to Spark's
 * logs, acknowledged to a source, given to the user's sink or told to a listener. It runs in the thread of the query that
 * it is for and under that query's run id, so the state stores are those that the query then goes on with.
 *
 * @param write the query, with a sink of no consequence
 * @param first the first batch to run; the offset log has it, those up to `last`, and the one before it
 * @param last the last batch to run
 * @param whole whether input that is gone without a source's word must stop it: nothing may be left that would tell
 * @param afterBatch called with the id of each batch that has run
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

  /** Runs all batches; what fails in one of them is thrown. */
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

  /** The sources by their names, in the order of the offset log; none before they are made. */
  def sourceNames: Seq[String] = sources.map(_.toString)

  /** What a batch has read and cannot read any more, in words, where that can be seen without a source's word. */
  def gone(batch: Long): Option[String] =
    new MissingInputFiles(session, resolvedCheckpointRoot).among(sources, offsets(batch - 1), offsets(batch)) match {
      case Seq() => None
      case Seq(file) => Some(s"$file, which batch $batch has read, is gone")
      case first +: others => Some(s"$first and ${others.size} more, which batch $batch has read, are gone")
    }

  /** What Spark sets in the session of every stream. */
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
      if (context.batchId <= last) construct(context)
      super.setNextBatch(context)
    }
  }

  override protected def populateStartOffsets(context: MicroBatchExecutionContext, session: SparkSession): Unit = {
    context.batchId = first
    context.sinkCommitProgress = None
    construct(context)
  }

  /** Makes a batch what it was the first time. Spark plans none itself: to it, each is a batch that it was interrupted in. */
  private def construct(context: MicroBatchExecutionContext): Unit = {
    val recorded = offsetLog.get(context.batchId).getOrElse(
      throw new IllegalStateException(s"batch ${context.batchId} is gone from the offset log of $resolvedCheckpointRoot"))
    context.startOffsets = offsets(context.batchId - 1)
    context.endOffsets = offsets(context.batchId)
    if (whole) gone(context.batchId).foreach(words => throw new CecException("InputGone", words))
    recorded.metadataOpt.foreach { metadata =>
      OffsetSeqMetadata.setSessionConf(metadata, sparkSessionForStream.sessionState.conf)
      context.offsetSeqMetadata = metadata
    }
    context.isCurrentBatchConstructed = true
  }

  private def offsets(batch: Long): StreamProgress =
    offsetLog.get(batch).map(_.toStreamProgress(sources, sourceIdMap)).getOrElse(new StreamProgress())

  override protected def markMicroBatchStart(context: MicroBatchExecutionContext): Unit = ()
  override protected def cleanUpLastExecutedMicroBatch(context: MicroBatchExecutionContext): Unit = ()
  override protected def markMicroBatchEnd(context: MicroBatchExecutionContext): Unit = committedOffsets ++= context.endOffsets
  override def purgeStatefulMetadataAsync(plan: SparkPlan): Unit = ()
  override protected def getBatchDescriptionString: String = s"replay, ${super.getBatchDescriptionString}"
}

/** Runs a batch for its state's sake. */
private[recovery] object SilentSink extends Sink {
  override def addBatch(batchId: Long, data: DataFrame): Unit = data.queryExecution.toRdd.foreach(_ => ())
}

/** Tells nobody of a batch's progress, but counts its rows. */
private[recovery] final class SilentReporter(session: SparkSession, clock: Clock, write: WriteToStream)
    extends ProgressReporter(session, clock, () => write.inputQuery) {
  /** What the batches that have run had of their sources. */
  var rows = 0L

  override def updateProgress(progress: StreamingQueryProgress): Unit = rows += progress.numInputRows
}
