package org.apache.spark.sql.cec.ui

/**
 * The samples of the last hour, in memory that never grows: a slot for each ten seconds. Batches of one slot become
 * one sample. Safe for several threads.
 */
private[ui] final class SampleRing {
  private val slots = new Array[Sample](SampleRing.Slots)

  def add(sample: Sample): Unit = synchronized {
    val place = findPlace(sample.atMs)
    val before = Option(slots(place)).filter(known => isSameSlot(known, sample) && known.batch <= sample.batch)
    slots(place) = before.fold(sample)(_.and(sample))
  }

  /** The samples of the hour before `nowMs`, oldest first. */
  def read(nowMs: Long): Seq[Sample] = synchronized {
    slots.toSeq.filter(sample => sample != null && nowMs - sample.atMs < SampleRing.KeptMs).sortBy(_.atMs)
  }

  private def isSameSlot(one: Sample, other: Sample): Boolean = one.atMs / SampleRing.SlotMs == other.atMs / SampleRing.SlotMs

  private def findPlace(atMs: Long): Int = (atMs / SampleRing.SlotMs % SampleRing.Slots).toInt
}

private[ui] object SampleRing {
  val SlotMs = 10000L
  val Slots = 360
  val KeptMs: Long = SlotMs * Slots
}
