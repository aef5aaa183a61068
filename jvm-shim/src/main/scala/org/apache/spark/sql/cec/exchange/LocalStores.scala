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
import org.apache.spark.sql.cec.agent.Json
import org.apache.spark.sql.execution.streaming.state.StateStoreId
import org.apache.spark.util.{RpcUtils, ShutdownHookManager, ThreadUtils}

/** A state store that this JVM holds, as the driver and other executors deal with it. Safe for several threads. */
private[cec] trait HostedStore {
  def checkpoint: String
  def stateStoreId: StateStoreId

  /** The run of the query that it belongs to; None for a store without word from the rule. Waits for nobody. */
  def generation: Option[Long]

  /** Writes what is dirty at `version`, after taking back what is later, if the store is there. */
  def flush(version: Long): Unit

  /** Gives the store away at `version`: writes as `flush` does, and lets the windows go. False if it is not there: then it stays as it is. */
  def handOver(version: Long): Boolean

  /** How long a call to the agent may take here. */
  def agentTimeoutMs: Int

  /** Lets the windows go, with `write` after a flush at `version`. */
  def end(version: Long, write: Boolean): Unit

  /** Writes what is dirty at its last commit, and lets the windows go. */
  def close(): Unit
}

/** The state stores of this JVM, and its line to the driver's directory. */
private[cec] object LocalStores extends Logging {
  /** Stores that write side by side. */
  private val AtOnce = 8

  /** A container that is told to end is killed 30 s later, by Kubernetes' default. */
  private val CloseWithinMs = 25000L

  /** The driver forgets a JVM that once did not answer: each says again that it is there. */
  private val AnnounceEveryNs = TimeUnit.SECONDS.toNanos(10)

  private val stores = new ConcurrentHashMap[HostedStore, java.lang.Boolean]()
  private val announcedNs = new AtomicLong(System.nanoTime() - AnnounceEveryNs)
  private var line: Option[Line] = None

  /** This JVM's own endpoint, and the driver's directory. */
  private final case class Line(env: RpcEnv, self: RpcEndpointRef, directory: RpcEndpointRef)

  /**
   * An executor that ends in good order (decommissioned, idle, told to by a signal) leaves nothing behind that only it knows: Spark
   * itself does not close its stores. Before Spark's own hooks, which stop what stores may need.
   */
  private lazy val closeAtEnd = ShutdownHookManager.addShutdownHook(ShutdownHookManager.DEFAULT_SHUTDOWN_PRIORITY + 10) { () =>
    val stores = this.stores.keySet.asScala.toSeq
    val left = closeAll(stores, CloseWithinMs)
    if (left.nonEmpty) logWarning(s"${left.size} of ${stores.size} stores were not closed within ${CloseWithinMs / 1000} s: a restart of their " +
      s"queries replays them: ${left.take(3).map(_.stateStoreId).mkString(", ")}")
  }

  /** Closes stores side by side, for so long; answers those that are not closed then. */
  def closeAll(stores: Seq[HostedStore], withinMs: Long): Seq[HostedStore] = {
    val threads = ThreadUtils.newDaemonFixedThreadPool(Math.max(stores.size, 1), "cec-close")
    val closing = stores.map(store => store -> threads.submit[Unit](() => store.close()))
    threads.shutdown()
    threads.awaitTermination(withinMs, TimeUnit.MILLISECONDS)
    val left = closing.collect { case (store, done) if !done.isDone => store }
    threads.shutdownNow()
    left
  }

  /** How long to wait for stores that write: as long as their agent may take, and a task that uses them. */
  def timeout(agentTimeoutMs: Int): RpcTimeout =
    new RpcTimeout(FiniteDuration(agentTimeoutMs + 60000L, TimeUnit.MILLISECONDS), "spark.sql.streaming.stateStore.cec.agent.timeout")

  /** From now on the driver knows where this store is. */
  def add(store: HostedStore): Unit = {
    if (SparkEnv.get.executorId != SparkContext.DRIVER_IDENTIFIER) closeAtEnd
    stores.put(store, true)
    announce(atOnce = true)
  }

  /** Tells the driver that this JVM holds stores, if it has not done so lately: each batch calls this. */
  def announce(atOnce: Boolean = false): Unit = {
    val (last, now) = (announcedNs.get, System.nanoTime())
    if (atOnce || now - last >= AnnounceEveryNs && announcedNs.compareAndSet(last, now)) {
      try lineToDriver().foreach(line => line.directory.askSync[Boolean]((SparkEnv.get.executorId, line.self)))
      catch { case NonFatal(error) => logWarning("the driver cannot be told that this JVM holds state stores: another batch tries again", error) }
    }
  }

  def remove(store: HostedStore): Unit = stores.remove(store)

  /**
   * Asks whoever had this store before for its windows at a version: true if one had them, and has written them. That may be
   * an earlier provider in this JVM, which Spark is about to close.
   */
  def requestHandOver(store: HostedStore, version: Long): Boolean = {
    val id = store.stateStoreId
    holders(store.checkpoint, store.generation, id).exists(other => (other ne store) && other.handOver(version)) ||
      lineToDriver().exists { line =>
        val request = Message.handOver(SparkEnv.get.executorId, store.checkpoint, store.generation, id, version, store.agentTimeoutMs)
        try line.directory.askSync[Boolean](request.toString, timeout(store.agentTimeoutMs))
        catch {
          case NonFatal(error) =>
            logWarning(s"no executor could be asked for store $id at version $version", error)
            false
        }
      }
  }

  private def holders(checkpoint: String, generation: Option[Long], id: StateStoreId): Seq[HostedStore] =
    stores.keySet.asScala.toSeq.filter { store =>
      val other = store.stateStoreId
      store.checkpoint == checkpoint && store.generation == generation && other.operatorId == id.operatorId &&
        other.partitionId == id.partitionId && other.storeName == id.storeName
    }

  /** None where the driver has no directory, as without our extension. */
  private def lineToDriver(): Option[Line] = synchronized {
    Option(SparkEnv.get).flatMap { env =>
      line = line.filter(_.env eq env.rpcEnv).orElse {
        try {
          val directory = RpcUtils.makeDriverRef(StoreLocations.Name, env.conf, env.rpcEnv)
          Some(Line(env.rpcEnv, env.rpcEnv.setupEndpoint(s"cec-stores-${env.executorId}", new Endpoint(env.rpcEnv)), directory))
        } catch {
          case NonFatal(error) =>
            logInfo("the driver has no directory of state stores", error)
            None
        }
      }
      line
    }
  }

  private def answer(message: JsonNode): String = {
    val (checkpoint, version) = (message.get("checkpoint").asText, message.get("version").asLong)
    message.get("call").asText match {
      case Message.HandOver =>
        val id = StateStoreId(checkpoint, message.get("operator").asLong, message.get("partition").asInt, message.get("store").asText)
        val generation = Some(message.get("generation").asLong).filter(_ >= 0)
        Json.obj().put("handed_over", holders(checkpoint, generation, id).exists(handsOver(_, version))).toString
      case call =>
        val generation = message.get("generation").asLong
        val ours = stores.keySet.asScala.toSeq.filter(store => store.checkpoint == checkpoint && store.generation.contains(generation))
        // Side by side: each waits for the log, which writes for all that wait at once.
        val failed = ThreadUtils.parmap(ours, "cec-stores", AtOnce) { store =>
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

  /** A store that cannot be had is no reason to think that this JVM is gone. */
  private def handsOver(store: HostedStore, version: Long): Boolean = try store.handOver(version) catch {
    case NonFatal(error) =>
      logWarning(s"store ${store.stateStoreId} at version $version could not be given away", error)
      false
  }

  private final class Endpoint(override val rpcEnv: RpcEnv) extends RpcEndpoint {
    override def receiveAndReply(context: RpcCallContext): PartialFunction[Any, Unit] = { case message: String =>
      // A store waits for the task that uses it, and writes: not in the threads that deliver messages.
      val thread = new Thread("cec-stores") {
        override def run(): Unit =
          try context.reply(answer(Json.parse(message))) catch { case error: Throwable => context.sendFailure(error) }
      }
      thread.setDaemon(true)
      thread.start()
    }
  }
}
