package org.apache.spark.sql.cec.pipeline

import java.util.concurrent.ConcurrentHashMap

import org.apache.spark.SparkContext
import org.apache.spark.scheduler.{SchedulingMode, SparkListener, SparkListenerStageCompleted, SparkListenerStageSubmitted, SparkListenerTaskEnd}
import org.apache.spark.sql.cec.agent.Json
import org.apache.spark.sql.execution.streaming.runtime.StreamExecution

/**
 * The executors of an application, the task time of each streaming query, and the query whose tasks get the next core.
 */
private[cec] final class ClusterLoad private (context: SparkContext) extends SparkListener {
  private val queryOfStage = new ConcurrentHashMap[Int, String]
  private val taskMs = new ConcurrentHashMap[String, Long]

  override def onStageSubmitted(event: SparkListenerStageSubmitted): Unit =
    for {
      properties <- Option(event.properties)
      query <- Option(properties.getProperty(StreamExecution.QUERY_ID_KEY))
    } queryOfStage.put(event.stageInfo.stageId, query)

  override def onTaskEnd(event: SparkListenerTaskEnd): Unit =
    Option(queryOfStage.get(event.stageId)).foreach(taskMs.merge(_, event.taskInfo.duration, _ + _))

  override def onStageCompleted(event: SparkListenerStageCompleted): Unit = queryOfStage.remove(event.stageInfo.stageId)

  /**
   * Returns {"executors": {id: tasks that it runs at once}, "task_ms": {query's id: ms}}. The driver counts as an
   * executor in local mode only.
   */
  def look(): String = {
    val node = Json.obj()
    val executors = node.putObject("executors")
    context.statusStore.executorList(activeOnly = true)
      .filter(each => context.isLocal || each.id != SparkContext.DRIVER_IDENTIFIER)
      .foreach(each => executors.put(each.id, each.maxTasks))
    val spent = node.putObject("task_ms")
    taskMs.forEach((query, ms) => spent.put(query, ms))
    node.toString
  }

  /** Sets whether tasks of this pool get the next core before other pools. The FIFO scheduler has no pools. */
  def precede(pool: String, others: Boolean): Unit = {
    val root = context.taskScheduler.rootPool
    if (root.schedulingMode == SchedulingMode.FAIR) {
      if (!root.schedulableNameToSchedulable.containsKey(pool)) root.addSchedulable(new FlowPool(pool))
      root.schedulableNameToSchedulable.get(pool) match {
        case ours: FlowPool => ours.precede(others)
        case _ => // the user's own pool, from the allocation file
      }
    }
  }

  def detach(): Unit = context.removeSparkListener(this)
}

private[cec] object ClusterLoad {
  def attach(context: SparkContext): ClusterLoad = {
    val load = new ClusterLoad(context)
    context.addSparkListener(load)
    load
  }
}
