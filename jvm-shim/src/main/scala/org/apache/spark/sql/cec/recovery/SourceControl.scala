package org.apache.spark.sql.cec.recovery

import java.util.ArrayDeque

import org.apache.spark.internal.Logging
import org.apache.spark.sql.cec.agent.{Agent, CecException, Json}
import org.apache.spark.sql.connector.read.streaming.Offset

/** What the wrapper of one source does: hands out recorded offsets, and holds acknowledgements back. */
private[recovery] final class SourceControl(
    position: Int, recording: Recording, acknowledgements: Acknowledgements, clock: BatchClock) {
  private var idleBatch = -1L
  @volatile private var usedUp = recording.offsets.isEmpty

  /** The offset that the batch being built must end at, or None when the recording is used up. */
  def recorded(start: Offset, deserialize: String => Offset): Option[Offset] = {
    clock.announce() // Spark asks here, in the stream's thread, before every batch
    if (usedUp) None
    else {
      val batch = recording.batchBeingBuilt()
      recording.at(batch, position) match {
        case None =>
          usedUp = true
          None
        case Some(None) => Some(start)
        case Some(Some(json)) =>
          refuseToStall(batch)
          Some(if (start != null && start.json == json) start else deserialize(json))
      }
    }
  }

  def commit(acknowledge: () => Unit): Unit = acknowledgements.hold(acknowledge)

  /** A recorded batch without data runs because the watermark moved; if Spark does not see that, it never will. */
  private def refuseToStall(batch: Long): Unit = if (recording.hadNoData(batch)) {
    if (idleBatch == batch) {
      throw new CecException("Divergence",
        s"batch $batch had no data and ran because the watermark had moved, but in the replay Spark does not run it: give the query " +
          "back its watermark and spark.sql.streaming.noDataMicroBatches.enabled as they were")
    }
    idleBatch = batch
  }
}

/**
 * Acknowledgements to the sources, held back for as long as a recovery may ask for the batches again: an upstream must
 * not discard what a replay would need.
 *
 * @param home the query's log
 */
private[recovery] final class Acknowledgements(home: String, conf: Map[String, String], recording: Recording) extends Logging {
  private val waiting = new ArrayDeque[Held]()

  /** Keeps an acknowledgement, and passes on those that no recovery will need: see the design, section 6, step 7. */
  def hold(acknowledge: () => Unit): Unit = synchronized {
    // Spark acknowledges the batch before the one being built; the newest in the offset log is that one or a later one.
    val batch = recording.batchBeingBuilt() - 1
    waiting.add(new Held(batch, acknowledge))
    val oldestNeeded = dirtyFrom(batch)
    while (!waiting.isEmpty && waiting.peek.batch < oldestNeeded) {
      waiting.poll().acknowledge()
    }
  }

  /** D over all stores at the version before `batch`, whose commits are in the log: no replay begins before it. */
  private def dirtyFrom(batch: Long): Long = {
    val answer = Agent.call("acknowledge", Json.obj().put("home", home).put("version", batch), conf)
    Json.text(answer.get("dirty_from")).map(_.toLong).getOrElse(-1L)
  }
}

private final class Held(val batch: Long, val acknowledge: () => Unit)
