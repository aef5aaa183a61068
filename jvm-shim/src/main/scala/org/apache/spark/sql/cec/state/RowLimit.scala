package org.apache.spark.sql.cec.state

import org.apache.spark.sql.catalyst.expressions.UnsafeRow
import org.apache.spark.sql.cec.agent.CecException
import org.apache.spark.sql.execution.streaming.state.StateStoreId

/**
 * The largest row that a store takes. Arrow grows a buffer to the next power of two, and ends at 2^31 - 1. So the log
 * cannot take a value of more than 2^30 bytes. The put refuses it, because a commit would fail at every restart.
 * A page has one array, so a key and its value may not have 2^31 bytes together.
 */
private[cec] object RowLimit {
  val Bytes: Int = 1 << 30
  private val TogetherBytes = Int.MaxValue - 63 // a record has a head, and an array too

  def check(store: StateStoreId, key: UnsafeRow, value: UnsafeRow): Unit =
    if (key.getSizeInBytes > Bytes || value.getSizeInBytes > Bytes || key.getSizeInBytes.toLong + value.getSizeInBytes > TogetherBytes) {
      throw new CecException("TooLarge",
        s"$store: a value of ${value.getSizeInBytes} bytes (its key has ${key.getSizeInBytes}) cannot be kept: keys and values may have " +
          s"up to $Bytes bytes each, and $TogetherBytes together")
    }
}
