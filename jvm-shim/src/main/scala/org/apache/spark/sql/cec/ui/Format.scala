package org.apache.spark.sql.cec.ui

import java.time.{Instant, ZoneId}
import java.time.format.DateTimeFormatter
import java.util.Locale

/** Numbers as text. */
private[ui] object Format {
  private val Clock = DateTimeFormatter.ofPattern("yyyy-MM-dd HH:mm:ss")
  private val Units = Seq("bytes", "KB", "MB", "GB", "TB")

  def count(value: Long): String = "%,d".formatLocal(Locale.ROOT, value)

  /** One of them, or several: `1 batch`, `2 batches`. */
  def counted(value: Long, one: String, several: String): String = s"${count(value)} ${if (value == 1) one else several}"

  def time(ms: Long): String = Clock.format(Instant.ofEpochMilli(ms).atZone(ZoneId.systemDefault))

  def duration(ms: Long): String = ms match {
    case _ if ms < 1000 => s"$ms ms"
    case _ if ms < 120000 => "%.1f s".formatLocal(Locale.ROOT, ms / 1000.0)
    case _ if ms < 7200000 => s"${ms / 60000} min"
    case _ => "%.1f h".formatLocal(Locale.ROOT, ms / 3600000.0)
  }

  /** A time without a decimal place. */
  def rough(ms: Long): String = if (ms < 120000) s"${ms / 1000} s" else if (ms < 7200000) s"${ms / 60000} min" else s"${ms / 3600000} h"

  def bytes(value: Long): String = {
    val power = Math.min(if (value < 1000) 0 else (Math.log10(value.toDouble) / 3).toInt, Units.size - 1)
    if (power == 0) s"${count(value)} bytes" else s"%.1f ${Units(power)}".formatLocal(Locale.ROOT, value / Math.pow(1000, power))
  }

  def share(value: Double): String = s"${Math.round(value * 100)} %"

  def cores(value: Double): String = "%.2f".formatLocal(Locale.ROOT, value)
}
