package org.apache.spark.sql.cec.exchange

import java.util.concurrent.{ConcurrentHashMap, TimeUnit}
import java.util.concurrent.atomic.AtomicLong

import scala.concurrent.duration.FiniteDuration
import scala.jdk.CollectionConverters._
import scala.util.control.NonFatal

import com.fasterxml.jackson.databind.JsonNode

import org.apache.spark.{SparkContext, SparkEnv}
import org.apache.spark.internal.Logging
import org.apache.spark.rpc.{RpcCallContext, RpcEndpoint, RpcEndpointRef, RpcEnv, RpcTimeout}
import org.apache.spark.sql.cec.agent.{Agent, AgesRequest, CecException, DurableCommit, Json}
import org.apache.spark.sql.cec.state.{AgentStoreClient, StoreOfOperator, UnwrittenCommit}
import org.apache.spark.sql.execution.streaming.state.StateStoreId
import org.apache.spark.util.{RpcUtils, ShutdownHookManager, ThreadUtils}

/** A state store of this JVM, as the driver and other executors use it. Thread-safe. */
private[cec] trait HostedStore {
  def checkpoint: String
  def stateStoreId: StateStoreId

  /** The run of the query that the store belongs to; None if no rule announced a run. Does not wait for a task. */
  def generation: Option[Long]

  /** If the store is at `version` or one commit later, goes back to `version` and writes the dirty windows. */
  def flush(version: Long): Unit

  /**
   * Writes as `flush` does and drops the windows. If the store cannot go back to `version`, returns false and keeps
   * the windows.
   */
  def handOver(version: Long): Boolean

  /** Runs `body` while no task uses the store. */
  def exclusively[A](body: => A): A

  /** The commit of `version` that the log lacks, if the store holds one back. Call it within `exclusively`. */
  def unwritten(version: Long): Option[UnwrittenCommit]

  /** Notes that the log has the commit. Call it within `exclusively`. */
  def noteWritten(commit: UnwrittenCommit, answer: DurableCommit): Unit

  /** The checkpoint id of the commit of `version`, if the store is there and the log has it. Call it within `exclusively`. */
  def writtenCommit(version: Long): Option[String]

  /** Drops the windows and a commit that nobody will write. Call it within `exclusively`. */
  def forget(): Unit

  /** The log that an unwritten commit is for. */
  def home: String

  /** The settings of a call to the agent here. */
  def agentConf: Map[String, String]

  /** Drops the windows, with `write` after a flush at `version`. */
  def end(version: Long, write: Boolean): Unit

  /** Writes the dirty windows of the last commit and drops all windows. */
  def close(): Unit
}

/** The state stores of this JVM, and its connection to the driver's directory. */
private[cec] object LocalStores extends Logging {
  /** The number of stores that write at the same time. */
  private val FlushedAtOnce = 8

  /** Kubernetes by default kills a container 30 s after it tells it to end. */
  private val CloseWithinMs = 25000L

  /** `holdAll` goes down some calls for each store, and a JVM may have thousands. */
  private val StackBytes = 64L << 20

  /** The driver forgets a JVM that it failed to reach once, so each JVM announces itself again. */
  private val AnnounceEveryNs = TimeUnit.SECONDS.toNanos(10)

  private val stores = new ConcurrentHashMap[HostedStore, java.lang.Boolean]()
  private val announcedNs = new AtomicLong(System.nanoTime() - AnnounceEveryNs)
  private var connection: Option[Connection] = None

  /** This JVM's own endpoint, and the driver's directory. */
  private final case class Connection(env: RpcEnv, self: RpcEndpointRef, directory: RpcEndpointRef)

  /**
   * Writes the stores and the output of an executor that ends in good order (decommissioned, idle, or by a signal). Spark does not
   * close its stores. The hook runs before Spark's own hooks, which stop services that the stores need.
   */
  private lazy val closeAtEnd = ShutdownHookManager.addShutdownHook(ShutdownHookManager.DEFAULT_SHUTDOWN_PRIORITY + 10) { () =>
    val stores = this.stores.keySet.asScala.toSeq
    HeldOutputs.writeAll()
    val left = closeAll(stores, CloseWithinMs)
    if (left.nonEmpty) logWarning(s"${left.size} of ${stores.size} stores were not closed within ${CloseWithinMs / 1000} s: a restart of their " +
      s"queries replays them: ${left.take(3).map(_.stateStoreId).mkString(", ")}")
  }

  /** Closes stores at the same time, within the limit. Returns the stores that are not closed then. */
  def closeAll(stores: Seq[HostedStore], withinMs: Long): Seq[HostedStore] = {
    val threads = ThreadUtils.newDaemonFixedThreadPool(Math.max(stores.size, 1), "cec-close")
    val closing = stores.map(store => store -> threads.submit[Unit](() => store.close()))
    threads.shutdown()
    threads.awaitTermination(withinMs, TimeUnit.MILLISECONDS)
    val left = closing.collect { case (store, done) if !done.isDone => store }
    threads.shutdownNow()
    left
  }

  /** The timeout for stores that write: the agent's timeout, and a minute for a task that uses the store. */
  def timeout(agentTimeoutMs: Int): RpcTimeout =
    new RpcTimeout(FiniteDuration(agentTimeoutMs + 60000L, TimeUnit.MILLISECONDS), "spark.sql.streaming.stateStore.cec.agent.timeout")

  /** Makes an executor write what it holds before it ends in good order. */
  def prepareEnd(): Unit = if (SparkEnv.get.executorId != SparkContext.DRIVER_IDENTIFIER) closeAtEnd

  /** Adds a store and announces this JVM to the driver. */
  def add(store: HostedStore): Unit = {
    prepareEnd()
    stores.put(store, true)
    announce(atOnce = true)
  }

  /** Tells the driver that this JVM holds stores, unless it did so lately. Each batch calls this. */
  def announce(atOnce: Boolean = false): Unit = {
    val (last, now) = (announcedNs.get, System.nanoTime())
    if (atOnce || now - last >= AnnounceEveryNs && announcedNs.compareAndSet(last, now)) {
      try connectDriver().foreach(connection => connection.directory.askSync[Boolean]((SparkEnv.get.executorId, connection.self)))
      catch {
        case _: InterruptedException => Thread.currentThread.interrupt() // the task ends, and its store keeps its windows
        case NonFatal(error) => logWarning("the driver cannot be told that this JVM holds state stores: another batch tries again", error)
      }
    }
  }

  def remove(store: HostedStore): Unit = stores.remove(store)

  /**
   * Asks the earlier owner of this store for its windows at a version; true if one had them and wrote them. The owner
   * may be an earlier provider in this JVM, which Spark will close.
   */
  def requestHandOver(store: HostedStore, version: Long): Boolean = {
    val id = store.stateStoreId
    findHolders(store.checkpoint, store.generation, id).exists(other => (other ne store) && tryHandOver(other, version)) ||
      connectDriver().exists { connection =>
        val limitMs = Agent.timeoutMs(store.agentConf)
        val request = Message.handOver(SparkEnv.get.executorId, store.checkpoint, store.generation, id, version, limitMs)
        try connection.directory.askSync[Boolean](request.toString, timeout(limitMs))
        catch {
          case NonFatal(error) =>
            logWarning(s"no executor could be asked for store $id at version $version", error)
            false
        }
      }
  }

  private def findHolders(checkpoint: String, generation: Option[Long], id: StateStoreId): Seq[HostedStore] =
    stores.keySet.asScala.toSeq.filter { store =>
      val other = store.stateStoreId
      store.checkpoint == checkpoint && store.generation == generation && other.operatorId == id.operatorId &&
        other.partitionId == id.partitionId && other.storeName == id.storeName
    }

  /** None if the driver has no directory, as without our extension. */
  private def connectDriver(): Option[Connection] = synchronized {
    Option(SparkEnv.get).flatMap { env =>
      connection = connection.filter(_.env eq env.rpcEnv).orElse {
        try {
          val directory = RpcUtils.makeDriverRef(StoreLocations.Name, env.conf, env.rpcEnv)
          Some(Connection(env.rpcEnv, env.rpcEnv.setupEndpoint(s"cec-stores-${env.executorId}", new Endpoint(env.rpcEnv)), directory))
        } catch {
          case NonFatal(error) =>
            logInfo("the driver has no directory of state stores", error)
            None
        }
      }
      connection
    }
  }

  /** The answer to the driver. A failure is an answer too: an error would make the driver forget this JVM, which lives. */
  private[exchange] def answerAnyway(message: JsonNode): String = try answer(message) catch {
    case NonFatal(error) =>
      logWarning(s"this JVM cannot do what the driver asks of its stores: $message", error)
      Message.writeProblem(Option(error.getMessage).getOrElse(error.toString)).toString
  }

  private def answer(message: JsonNode): String = {
    val checkpoint = message.get("checkpoint").asText
    def version = message.get("version").asLong
    message.get("call").asText match {
      case Message.HandOver =>
        val id = StateStoreId(checkpoint, message.get("operator").asLong, message.get("partition").asInt, message.get("store").asText)
        val generation = Some(message.get("generation").asLong).filter(_ >= 0)
        Json.obj().put("handed_over", findHolders(checkpoint, generation, id).exists(tryHandOver(_, version))).toString
      case Message.Ages =>
        val ours = stores.keySet.asScala.toSeq.filter(_.checkpoint == checkpoint)
        Message.writeAges(readAges(ours)).toString
      case Message.Write =>
        val frames = message.get("frames").elements.asScala.map(_.asText).toSet
        val outputs = HeldOutputs.choose(checkpoint, message.get("generation").asLong, version - 1, frames)
        val written = writeTogether(findStores(checkpoint, message), Message.readCommits(message), outputs, version)
        val node = Json.obj()
        node.set[JsonNode]("frames", Json.strings(outputs.map(_.rows.frame)))
        node.set[JsonNode]("written", written.foldLeft(Json.arr())((list, store) => list.add(Message.writeStore(keyOf(store)))))
        node.toString
      case call @ (Message.Flush | Message.End) =>
        val ours = findStores(checkpoint, message)
        if (call == Message.End) HeldOutputs.choose(checkpoint, message.get("generation").asLong, Long.MaxValue, Set.empty)
        // Stores flush at the same time, because the log writes the frames of all waiting stores at once.
        val failed = ThreadUtils.parmap(ours, "cec-stores", FlushedAtOnce) { store =>
          try {
            if (call == Message.Flush) store.flush(version) else store.end(version, message.get("flush").asBoolean)
            None
          } catch { case NonFatal(error) => Some(s"store ${store.stateStoreId}: ${error.getMessage}") }
        }.flatten.foldLeft(Json.arr())(_ add _)
        val node = Json.obj()
        node.set[JsonNode]("failed", failed)
        node.toString
    }
  }

  /** The agent's counts of these stores, which are of one log. */
  private def readAges(ours: Seq[HostedStore]): Either[String, Seq[StoreWindows]] = {
    val generations = ours.groupMapReduce(keyOf)(_.generation.getOrElse(-1L))(Math.max)
    try Right(for {
      home <- ours.headOption.map(_.home).toSeq
      counted <- Agent.ask(AgesRequest(home)).stores
      key = StoreOfOperator(counted.store.operator, counted.store.partition.toInt, counted.store.name)
      generation <- generations.get(key)
    } yield StoreWindows(key, generation, counted.version, counted.ages))
    catch {
      case refused: CecException => Left(refused.getMessage)
      case NonFatal(error) => Left(s"its agent does not answer: ${Option(error.getMessage).getOrElse(error.toString)}")
    }
  }

  /** The stores of the message's run. */
  private def findStores(checkpoint: String, message: JsonNode): Seq[HostedStore] = {
    val generation = message.get("generation").asLong
    stores.keySet.asScala.toSeq.filter(store => store.checkpoint == checkpoint && store.generation.contains(generation))
  }

  /**
   * Writes the named commits of `version` that these stores hold back, and output of its batch, with one call to the
   * agent. Returns the stores of whose named commits the log has one then. All are of one run, so they have one log.
   *
   * If the driver names another commit of a store, the store's own is that of a task that failed later. The store forgets
   * it, because its frame must not come after that of the task that ended well. If the driver does not know the store,
   * its commit is written: a frame too many does no harm, and a frame too few loses state.
   */
  private def writeTogether(
      ours: Seq[HostedStore], named: Map[StoreOfOperator, Set[String]], outputs: Seq[HeldOutput], version: Long): Seq[HostedStore] =
    holdAll(ours.sortBy(_.stateStoreId.toString).toList) {
      val (waiting, others) = (for (store <- ours; commit <- store.unwritten(version)) yield (store, commit))
        .partition { case (store, commit) => named.get(keyOf(store)).forall(_(commit.commit.checkpointId)) }
      others.foreach { case (store, _) => store.forget() }
      val log = waiting.headOption.map { case (store, _) => (store.home, None, store.agentConf) }
        .orElse(outputs.headOption.map(output => (output.home, Some(output.logId), output.conf)))
      log.foreach { case (home, logId, conf) =>
        val answers = AgentStoreClient.writeAll(home, logId, waiting.map(_._2), outputs.map(_.rows), conf)
        waiting.zip(answers).foreach { case ((store, commit), answer) => store.noteWritten(commit, answer) }
        outputs.foreach(HeldOutputs.forget)
      }
      ours.filter(store => named.get(keyOf(store)).exists(ids => store.writtenCommit(version).exists(ids)))
    }

  private def keyOf(store: HostedStore): StoreOfOperator =
    StoreOfOperator(store.stateStoreId.operatorId, store.stateStoreId.partitionId, store.stateStoreId.storeName)

  /** Runs `body` while no task uses one of the stores. */
  private def holdAll[A](stores: List[HostedStore])(body: => A): A = stores match {
    case store :: others => store.exclusively(holdAll(others)(body))
    case Nil => body
  }

  /** If a store is busy, answer false: another holder may have the version. */
  private def tryHandOver(store: HostedStore, version: Long): Boolean = try store.handOver(version) catch {
    case NonFatal(error) =>
      logWarning(s"store ${store.stateStoreId} at version $version could not be given away", error)
      false
  }

  private final class Endpoint(override val rpcEnv: RpcEnv) extends RpcEndpoint {
    override def receiveAndReply(context: RpcCallContext): PartialFunction[Any, Unit] = { case message: String =>
      // A store may wait for its task and then writes, so it must not block the threads that deliver messages.
      val thread = new Thread(null, null, "cec-stores", StackBytes) {
        override def run(): Unit =
          try context.reply(answerAnyway(Json.parse(message))) catch { case error: Throwable => context.sendFailure(error) }
      }
      thread.setDaemon(true)
      thread.start()
    }
  }
}
