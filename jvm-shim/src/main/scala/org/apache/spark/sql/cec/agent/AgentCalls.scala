package org.apache.spark.sql.cec.agent

/** What the agent answers over Py4J: the name of a call and its arguments as JSON in, its answer as JSON out. */
trait AgentCalls {
  def call(name: String, arguments: String): String
}
