package org.apache.spark.sql.cec.exchange

import java.util.concurrent.{ConcurrentHashMap, Executors}

import scala.concurrent.{ExecutionContext, Future}
import scala.jdk.CollectionConverters._
import scala.util.{Failure, Success, Try}

import com.fasterxml.jackson.databind.node.ObjectNode

import org.apache.spark.SparkEnv
import org.apache.spark.internal.Logging
import org.apache.spark.rpc.{RpcCallContext, RpcEndpoint, RpcEndpointRef, RpcEnv, RpcTimeout, RpcTimeoutException}
import org.apache.spark.sql.cec.agent.Json

/**
 * The driver's list of the JVMs that hold state stores. Through it the driver makes them write what is dirty, and an
 * executor that is given a store gets it from the one that had it before.
 *
 * Messages are texts (JSON), or a text and a reference: an executor that got our jar with `--jars` could not read a class of ours.
 */
private[cec] object StoreLocations {
  val Name = "cec-directory"

  private var current: Option[(RpcEnv, Directory)] = None

  /** Has the directory of this application, which is begun at the first call; on the driver only. */
  def begin(): Unit = directory()

  /**
   * Ends a run's stores wherever they are: each takes back what is later than `version`, writes what is dirty if `flush`, and
   * forgets its windows. Answers a line for each JVM or store that could not, within the time that an agent's call may take.
   */
  def end(checkpoint: String, generation: Long, version: Long, flush: Boolean, agentTimeoutMs: Int): Seq[String] =
    directory().askAll(Message.end(checkpoint, generation, version, flush), LocalStores.timeout(agentTimeoutMs))

  /** Makes the stores of a run write what is dirty at `version`, between two batches. Answers as `end` does. */
  def flush(checkpoint: String, generation: Long, version: Long, agentTimeoutMs: Int): Seq[String] =
    directory().askAll(Message.flush(checkpoint, generation, version), LocalStores.timeout(agentTimeoutMs))

  private def directory(): Directory = synchronized {
    val env = SparkEnv.get.rpcEnv
    current match {
      case Some((known, directory)) if known eq env => directory
      case _ =>
        val directory = new Directory(env)
        env.setupEndpoint(Name, directory)
        current = Some((env, directory))
        directory
    }
  }
}

private final class Directory(override val rpcEnv: RpcEnv) extends RpcEndpoint with Logging {
  private val hosts = new ConcurrentHashMap[String, RpcEndpointRef]()

  /** Answers may take as long as a store takes to write its windows: not in the threads that deliver messages. */
  private val threads = Executors.newCachedThreadPool { task =>
    val thread = new Thread(task, "cec-directory")
    thread.setDaemon(true)
    thread
  }
  private implicit val pool: ExecutionContext = ExecutionContext.fromExecutor(threads)

  override def receiveAndReply(context: RpcCallContext): PartialFunction[Any, Unit] = {
    case (id: String, host: RpcEndpointRef) =>
      hosts.put(id, host)
      context.reply(true)
    case request: String => Future(requestHandOver(request)).onComplete {
      case Success(answer) => context.reply(answer)
      case Failure(error) => context.sendFailure(error)
    }
  }

  override def onStop(): Unit = threads.shutdownNow()

  /** Asks every JVM; answers what they could not do. */
  def askAll(message: ObjectNode, timeout: RpcTimeout): Seq[String] = {
    val answers = hosts.asScala.toSeq.map { case (id, host) => id -> Future(Try(host.askSync[String](message.toString, timeout))) }
    answers.flatMap { case (id, future) =>
      scala.concurrent.Await.result(future, scala.concurrent.duration.Duration.Inf) match {
        case Success(answer) => Json.parse(answer).get("failed").elements.asScala.map(_.asText)
        case Failure(error) =>
          forget(id, error)
          Some(s"executor $id does not answer: ${error.getMessage}")
      }
    }
  }

  /** Passes an executor's request on to all others, until one of them has had the store. */
  private def requestHandOver(request: String): Boolean = {
    val message = Json.parse(request).asInstanceOf[ObjectNode]
    val from = message.get("from").asText
    val timeout = LocalStores.timeout(message.get("agent_timeout_ms").asInt)
    hosts.asScala.filter(_._1 != from).exists { case (id, host) =>
      Try(host.askSync[String](message.toString, timeout)) match {
        case Success(answer) => Json.parse(answer).get("handed_over").asBoolean
        case Failure(error) =>
          logInfo(s"executor $id does not answer", error)
          forget(id, error)
          false
      }
    }
  }

  /** An executor that is gone goes; one that is only slow stays. One that lives joins again with its next batch (`LocalStores.announce`). */
  private def forget(id: String, error: Throwable): Unit = error match {
    case _: RpcTimeoutException =>
    case _ => hosts.remove(id)
  }
}
