package org.apache.spark.sql.cec.exchange

import java.util.concurrent.{ConcurrentHashMap, Executors, TimeUnit}

import scala.concurrent.{Await, ExecutionContext, Future}
import scala.concurrent.duration.{Duration, FiniteDuration}
import scala.jdk.CollectionConverters._
import scala.util.{Failure, Success, Try}

import com.fasterxml.jackson.databind.JsonNode
import com.fasterxml.jackson.databind.node.ObjectNode

import org.apache.spark.SparkEnv
import org.apache.spark.internal.Logging
import org.apache.spark.rpc.{RpcCallContext, RpcEndpoint, RpcEndpointRef, RpcEnv, RpcTimeout, RpcTimeoutException}
import org.apache.spark.sql.cec.agent.Json
import org.apache.spark.sql.cec.state.StoreOfOperator

/**
 * What the JVMs shall write at the end of a batch.
 *
 * @param commits of each store, the checkpoint ids of the commits whose tasks ended well
 * @param frames of output, their ids
 */
private[cec] final case class NamedWrites(commits: Map[StoreOfOperator, Set[String]], frames: Set[String])

/**
 * The result of a write of all JVMs.
 *
 * @param stores whose commit the log has
 * @param frames of output that the log has
 * @param failed a line for each JVM that failed
 */
private[cec] final case class WrittenTogether(stores: Set[StoreOfOperator], frames: Set[String], failed: Seq[String])

/**
 * The driver's list of the JVMs that hold state stores. Through it the driver makes stores write their dirty windows,
 * and an executor gets a store from its earlier owner.
 *
 * A message is a text (JSON), or a text and a reference. An executor that got our jar with `--jars` cannot read our
 * classes there.
 */
private[cec] object StoreLocations {
  val Name = "cec-directory"

  private var current: Option[(RpcEnv, Directory)] = None

  /** Makes the directory of this application at the first call. Call it on the driver only. */
  def begin(): Unit = directory()

  /**
   * Ends the stores of a run on all JVMs. Each store goes back to `version`, writes its dirty windows if `flush`, and
   * drops all windows. Returns a line for each JVM or store that failed. The agent's timeout limits the wait.
   */
  def end(checkpoint: String, generation: Long, version: Long, flush: Boolean, agentTimeoutMs: Int): Seq[String] =
    listFailures(directory().askAll(Message.end(checkpoint, generation, version, flush), LocalStores.timeout(agentTimeoutMs)))

  /**
   * Makes the stores of a run write their dirty windows at `version`, between two batches. Returns lines as `end`
   * does.
   */
  def flush(checkpoint: String, generation: Long, version: Long, agentTimeoutMs: Int): Seq[String] =
    listFailures(directory().askAll(Message.flush(checkpoint, generation, version), LocalStores.timeout(agentTimeoutMs)))

  /** Makes the JVMs write what they hold back of a run: the named commits of `version`, and the named frames. */
  def write(checkpoint: String, generation: Long, version: Long, named: NamedWrites, agentTimeoutMs: Int): WrittenTogether = {
    val answers = directory().askAll(Message.write(checkpoint, generation, version, named), LocalStores.timeout(agentTimeoutMs))
    val known = answers.flatMap(_.toSeq)
    val stores = for (answer <- known; store <- answer.get("written").elements.asScala) yield Message.readStore(store)
    WrittenTogether(stores.toSet, known.flatMap(_.get("frames").elements.asScala.map(_.asText)).toSet, answers.flatMap(_.left.toSeq))
  }

  /** Asks all JVMs how old the windows of a query are. It is for people alone, so no JVM is waited for longer than the limit. */
  def ages(checkpoint: String, withinMs: Long): WindowAges = {
    val limit = new RpcTimeout(FiniteDuration(withinMs, TimeUnit.MILLISECONDS), "the page that asks")
    val answers = directory().askEach(Message.ages(checkpoint), limit).map {
      case (id, Success(answer)) => Message.readAges(answer).left.map(why => s"executor $id: $why")
      case (id, Failure(_: RpcTimeoutException)) => Left(s"executor $id has not answered within ${withinMs / 1000.0} s")
      case (id, Failure(error)) => Left(describe(id, error))
    }
    WindowAges(WindowAges.sum(answers.flatMap(_.toSeq.flatten)), answers.flatMap(_.left.toSeq).sorted)
  }

  private[exchange] def describe(id: String, error: Throwable): String = error match {
    case problem: StoreProblem => s"executor $id: ${problem.getMessage}"
    case _ => s"executor $id does not answer: ${error.getMessage}"
  }

  private def listFailures(answers: Seq[Either[String, JsonNode]]): Seq[String] = answers.flatMap {
    case Left(line) => Seq(line)
    case Right(answer) => answer.get("failed").elements.asScala.map(_.asText).toSeq
  }

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

  /** A store may take long to write its windows, so the answer must not block the threads that deliver messages. */
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

  /** Asks every JVM at the same time. Returns the answer of each, or a line that says why there is none. */
  def askAll(message: ObjectNode, timeout: RpcTimeout): Seq[Either[String, JsonNode]] = askEach(message, timeout).map { case (id, answer) =>
    answer.toEither.left.map(StoreLocations.describe(id, _))
  }

  /** Asks every JVM at the same time. Returns the answers by the JVM's id, and forgets the JVMs that are lost. */
  def askEach(message: ObjectNode, timeout: RpcTimeout): Seq[(String, Try[JsonNode])] = {
    val answers = hosts.asScala.toSeq.map { case (id, host) => id -> Future(Try(host.askSync[String](message.toString, timeout))) }
    answers.map { case (id, future) =>
      val answer = Await.result(future, Duration.Inf)
      answer.failed.foreach(forget(id, _))
      id -> answer.flatMap(Message.readAnswer)
    }
  }

  /** Sends an executor's request to all others, until one of them hands the store over. */
  private def requestHandOver(request: String): Boolean = {
    val message = Json.parse(request).asInstanceOf[ObjectNode]
    val from = message.get("from").asText
    val timeout = LocalStores.timeout(message.get("agent_timeout_ms").asInt)
    hosts.asScala.filter(_._1 != from).exists { case (id, host) =>
      Try(host.askSync[String](message.toString, timeout)) match {
        case Success(answer) => Message.readAnswer(answer).toOption.exists(_.get("handed_over").asBoolean)
        case Failure(error) =>
          logInfo(s"executor $id does not answer", error)
          forget(id, error)
          false
      }
    }
  }

  /**
   * Removes an executor that is lost. A slow executor stays. A living executor announces itself again with its next
   * batch (`LocalStores.announce`).
   */
  private def forget(id: String, error: Throwable): Unit = error match {
    case _: RpcTimeoutException =>
    case _ => hosts.remove(id)
  }
}
