package org.apache.spark.sql.cec.agent

/**
 * An error that the agent reported.
 *
 * @param kind name of the agent's exception class (`DamagedLog`, `SettingsError`, ...): what the caller may do about it
 */
class CecException(val kind: String, message: String, cause: Throwable = null)
  extends RuntimeException(message, cause)
