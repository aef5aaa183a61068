package org.apache.spark.sql.cec.agent

/**
 * An error that the agent reported, or that the shim reports in the same form.
 *
 * @param kind name of the agent's exception class (`DamagedLog`, `SettingsError`, ...), by which the caller decides
 */
class CecException(val kind: String, message: String, cause: Throwable = null)
  extends RuntimeException(message, cause)
