package org.apache.spark.sql.cec.agent

/**
 * An error that the agent reported, or that the shim reports in the same form.
 *
 * @param kind name of the agent's exception class (`LostLog`, `SettingsError`, ...)
 * @param parents names of that class's base classes
 */
class CecException(val kind: String, message: String, cause: Throwable = null, parents: Set[String] = Set.empty)
    extends RuntimeException(message, cause) {
  /** Whether the error is of the agent's class of that name, or of a class below it. The caller decides by this. */
  def isA(name: String): Boolean = kind == name || parents(name)
}
