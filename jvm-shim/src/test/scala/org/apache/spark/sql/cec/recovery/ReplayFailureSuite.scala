package org.apache.spark.sql.cec.recovery

import org.apache.spark.SparkException
import org.apache.spark.sql.cec.CecSuite
import org.apache.spark.sql.cec.agent.CecException

class ReplayFailureSuite extends CecSuite {
  private def explain(kind: String): String =
    Replay.explainFailure(7, 9, first => s"input from $first", _ => "", 5, new SparkException("a task failed", new CecException(kind, "the cause"))).getMessage

  test("accept is for failures of the input and of the query alone") {
    def ofTask(cause: Throwable): Throwable = new SparkException("Job aborted due to stage failure: Task 1 in stage 2.0 failed 4 times", cause)
    def ours(kind: String): Throwable = ofTask(new CecException(kind, "the cause"))
    for (kind <- Seq("Divergence", "InputGone", "NotKept", "OutputTakenBack")) assert(Replay.isOfInputOrQuery(ours(kind)), kind)
    for (kind <- Seq("LiveStore", "DamagedLog", "AgentUnavailable", "TransientError", "RestartNeeded", "Fenced", "Unknown")) assert(!Replay.isOfInputOrQuery(ours(kind)), kind)
    assert(Replay.isOfInputOrQuery(ofTask(new java.io.FileNotFoundException("/in/7.json"))))
    assert(Replay.isOfInputOrQuery(ofTask(new ArithmeticException("/ by zero"))))
    assert(!Replay.isOfInputOrQuery(ofTask(new OutOfMemoryError("Java heap space"))))
    assert(!Replay.isOfInputOrQuery(ofTask(new java.io.IOException("No space left on device"))))
    assert(!Replay.isOfInputOrQuery(ofTask(new java.net.ConnectException("refused"))))
    assert(!Replay.isOfInputOrQuery(new SparkException("Lost task 1.3: ExecutorLostFailure (executor 2 exited)")))
    assert(!Replay.isOfInputOrQuery(new SparkException("Lost task 1.3: org.apache.kafka.common.errors.TimeoutException: expired before the position of t-0")))
    assert(Replay.derivesFrom(classOf[java.io.FileNotFoundException], "java.io.IOException") && !Replay.derivesFrom(classOf[java.io.IOException], "java.io.FileNotFoundException"))
  }

  test("a failure that neither the input nor an expression explains must come twice before accept takes it") {
    def ofTask(cause: Throwable): Throwable = new SparkException("Job aborted due to stage failure: Task 1 in stage 2.0 failed 4 times", cause)
    val workerEnded = ofTask(new SparkException("Python worker exited unexpectedly (crashed)", new java.io.EOFException()))
    val blockIsAway = ofTask(new java.io.IOException("Could not obtain block: BP-1 file=/in/7.json"))
    val slowDown = ofTask(new IllegalStateException("Slow Down (Service: S3, Status Code: 503)"))
    Seq(workerEnded, blockIsAway, slowDown).foreach(each => assert(Replay.mayPass(each) && Replay.isOfInputOrQuery(each), each))
    Seq(new java.io.FileNotFoundException("/in/7.json"), new ArithmeticException("/ by zero"), new CecException("InputGone", "gone"))
      .foreach(each => assert(!Replay.mayPass(ofTask(each)), each))
    assert(!Replay.mayPass(ofTask(new OutOfMemoryError("Java heap space")))) // accept never takes it
    def stays(failure: Throwable, earlier: Option[FailedBatch]) = Replay.stays(FailedBatch.of(7, failure), failure, earlier)
    assert(!stays(workerEnded, None) && stays(workerEnded, Some(FailedBatch.of(7, workerEnded))))
    assert(!stays(workerEnded, Some(FailedBatch.of(6, workerEnded))) && !stays(workerEnded, Some(FailedBatch.of(7, slowDown))))
    assert(stays(ofTask(new java.io.FileNotFoundException("/in/7.json")), None))
    val full = ofTask(new OutOfMemoryError("Java heap space"))
    assert(!stays(full, Some(FailedBatch.of(7, full))))
  }

  test("a replay that fails names the way out of its cause, and offers accept if input may be gone alone") {
    assert(explain("LiveStore").contains("If that is mended, start the query again") && !explain("LiveStore").contains("accept"))
    assert(explain("DamagedLog").contains("cec repair") && !explain("DamagedLog").contains("accept"))
    assert(explain("InputGone").contains("onDivergence=accept"))
    assert(Seq("LiveStore", "DamagedLog", "InputGone").forall(kind => explain(kind).contains("the replay of batch 7") && explain(kind).contains("the cause")))
    assert(explain("Divergence") == "the cause (input from 5)")
  }
}
