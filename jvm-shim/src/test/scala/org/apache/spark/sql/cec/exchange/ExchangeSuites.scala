package org.apache.spark.sql.cec.exchange

import java.util.concurrent.{CountDownLatch, CyclicBarrier, TimeUnit}

import scala.jdk.CollectionConverters._

import com.fasterxml.jackson.databind.JsonNode

import org.apache.spark.sql.cec.CecSuite
import org.apache.spark.sql.cec.agent.{DurableCommit, FootprintAges, Json}
import org.apache.spark.sql.cec.state.{StoreOfOperator, UnwrittenCommit}
import org.apache.spark.sql.execution.streaming.state.StateStoreId

class MessageSuite extends CecSuite {
  private val checkpoint = "/data/a \"b\"\\c/é"

  private def fields(node: JsonNode): Set[String] = Json.parse(node.toString).fieldNames.asScala.toSet

  test("an end and a flush name call, checkpoint, run and version") {
    val end = Json.parse(Message.end(checkpoint, 3L, Long.MaxValue, flush = true).toString)
    assert((end.get("call").asText, end.get("checkpoint").asText, end.get("generation").asLong, end.get("version").asLong, end.get("flush").asBoolean) ==
      (("end", checkpoint, 3L, Long.MaxValue, true)))
    assert(!Message.end(checkpoint, 3L, 4L, flush = false).get("flush").asBoolean)
    assert(fields(Message.flush(checkpoint, 3L, 4L)) == Set("call", "checkpoint", "generation", "version"))
    assert(Message.flush(checkpoint, 3L, 4L).get("call").asText == "flush")
  }

  test("a write names each store's commits, and frames of output") {
    val named = NamedWrites(Map(StoreOfOperator(1L << 40, 7, "left-keyToNumValues") -> Set("a", "b"), StoreOfOperator(0L, 0, "default") -> Set("c")), Set("f"))
    val asked = Json.parse(Message.write(checkpoint, 3L, 4L, named).toString)
    assert(fields(asked) == Set("call", "checkpoint", "generation", "version", "commits", "frames"))
    assert(Message.readCommits(asked) == named.commits && asked.get("frames").elements.asScala.map(_.asText).toSet == named.frames)
  }

  test("a hand-over names the store and the asking executor; -1 stands for a run that was not announced") {
    val id = StateStoreId("/state", 1L << 40, 7, "left-keyToNumValues")
    val asked = Json.parse(Message.handOver("exec-1", checkpoint, Some(2L), id, 9L, agentTimeoutMs = 1500).toString)
    assert((asked.get("call").asText, asked.get("from").asText, asked.get("generation").asLong, asked.get("version").asLong) ==
      (("hand_over", "exec-1", 2L, 9L)))
    assert((asked.get("operator").asLong, asked.get("partition").asInt, asked.get("store").asText, asked.get("agent_timeout_ms").asInt) ==
      ((1L << 40, 7, "left-keyToNumValues", 1500)))
    assert(Message.handOver("e", checkpoint, None, id, 9L, 1).get("generation").asLong == -1)
    assert(Message.handOver("e", checkpoint, Some(0L), id, 9L, 1).get("generation").asLong == 0)
  }
}

class WindowAgesSuite extends CecSuite {
  private val (first, join) = (StoreOfOperator(0L, 0, "default"), StoreOfOperator(1L << 40, 7, "left-keyToNumValues"))
  private val (young, old) = (FootprintAges(0, Some(0), 5), FootprintAges(10000, None, 2))

  test("what a JVM knows of its stores arrives as it was, and so does why it knows nothing") {
    val found = Right(Seq(StoreWindows(first, 3, 9, Seq(young, old)), StoreWindows(join, -1, 8, Nil)))
    assert(Message.readAges(Json.parse(Message.writeAges(found).toString)) == found)
    assert(Message.readAges(Json.parse(Message.writeAges(Left("no \"agent\"")).toString)) == Left("no \"agent\""))
    assert(Message.readAges(Json.parse(Message.writeAges(Right(Nil)).toString)) == Right(Nil))
    val asked = Json.parse(Message.ages("/c \"é").toString)
    assert(asked.get("call").asText == "ages" && asked.get("checkpoint").asText == "/c \"é" && asked.size == 2)
  }

  test("stores add up by age, and of a store that has moved the newest version of the newest run counts once") {
    val moved = Seq(StoreWindows(first, 1, 30, Seq(old)), StoreWindows(first, 2, 8, Seq(old)), StoreWindows(first, 2, 9, Seq(young)))
    assert(WindowAges.sum(moved) == Seq(young) && WindowAges.sum(moved.reverse) == Seq(young))
    val more = StoreWindows(join, 2, 9, Seq(FootprintAges(0, Some(0), 1), old))
    assert(WindowAges.sum(moved :+ more) == Seq(FootprintAges(0, Some(0), 6), old))
    assert(WindowAges.sum(Nil).isEmpty)
  }
}

class LocalStoresSuite extends CecSuite {
  private def store(partition: Int)(onClose: => Unit): HostedStore = new HostedStore {
    override def checkpoint: String = "/c"
    override val stateStoreId: StateStoreId = StateStoreId("/c/state", 0L, partition)
    override def generation: Option[Long] = Some(1L)
    override def flush(version: Long): Unit = fail("flush")
    override def handOver(version: Long): Boolean = fail("handOver")
    override def exclusively[A](body: => A): A = body
    override def unwritten(version: Long): Option[UnwrittenCommit] = fail("unwritten")
    override def noteWritten(commit: UnwrittenCommit, answer: DurableCommit): Unit = fail("noteWritten")
    override def writtenCommit(version: Long): Option[String] = fail("writtenCommit")
    override def forget(): Unit = fail("forget")
    override def home: String = "/c/cec/log"
    override def agentConf: Map[String, String] = Map.empty
    override def end(version: Long, write: Boolean): Unit = fail("end")
    override def close(): Unit = onClose
  }

  test("stores are closed at the same time") {
    val all = new CyclicBarrier(3)
    val stores = (0 until 3).map(store(_)(all.await(30, TimeUnit.SECONDS)))
    assert(LocalStores.closeAll(stores, 60000L).isEmpty)
    assert(!all.isBroken)
  }

  test("a store that fails is done, and one that does not end is left and interrupted") {
    val (interrupted, closed) = (new CountDownLatch(1), new CountDownLatch(1))
    val stuck = store(0)(try new CountDownLatch(1).await() catch { case _: InterruptedException => interrupted.countDown() })
    val stores = Seq(stuck, store(1)(throw new IllegalStateException("no")), store(2)(closed.countDown()))
    assert(LocalStores.closeAll(stores, 300L) == Seq(stuck))
    assert(closed.await(30, TimeUnit.SECONDS) && interrupted.await(30, TimeUnit.SECONDS))
  }

  test("what a JVM cannot do is an answer, because the driver forgets a JVM that gives none") {
    val answer = Message.readAnswer(LocalStores.answerAnyway(Json.obj().put("call", Message.Write).put("checkpoint", "/c")))
    assert(answer.isFailure && answer.failed.get.isInstanceOf[StoreProblem])
    assert(StoreLocations.describe("3", new StoreProblem("it is fenced")) == "executor 3: it is fenced")
    assert(Message.readAnswer(Message.writeProblem("it is fenced").toString).failed.get.getMessage == "it is fenced")
    assert(Message.readAnswer(Message.writeAges(Right(Nil)).toString).isSuccess && Message.readAnswer("""{"failed":[]}""").isSuccess)
    assert(LocalStores.answerAnyway(Message.flush("/c", 1L, 2L)) == """{"failed":[]}""")
  }

  test("no store, no wait") {
    assert(LocalStores.closeAll(Nil, 60000L).isEmpty)
  }

  test("a call waits a minute longer than the agent's own") {
    assert(LocalStores.timeout(5000).duration.toMillis == 65000)
    assert(LocalStores.timeout(Int.MaxValue).duration.toMillis == Int.MaxValue + 60000L)
  }
}
