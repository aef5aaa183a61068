package org.apache.spark.sql.cec.agent

/** The interface that the agent serves over Py4J: the name of a call and JSON arguments in, a JSON answer out. */
trait AgentCalls {
  def call(name: String, arguments: String): String
}
