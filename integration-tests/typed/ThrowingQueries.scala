package org.apache.spark.sql.cec.testing

import java.io.IOException
import java.util
import java.util.concurrent.{CountDownLatch, TimeUnit}

import scala.jdk.CollectionConverters._

import com.fasterxml.jackson.databind.ObjectMapper
import org.apache.spark.sql.{DataFrame, SparkSession, SQLContext}
import org.apache.spark.sql.connector.catalog._
import org.apache.spark.sql.connector.expressions.Transform
import org.apache.spark.sql.connector.read._
import org.apache.spark.sql.connector.read.streaming.{MicroBatchStream, Offset}
import org.apache.spark.sql.connector.write._
import org.apache.spark.sql.connector.write.streaming._
import org.apache.spark.sql.execution.streaming.{Offset => OffsetV1, Source}
import org.apache.spark.sql.execution.streaming.runtime.LongOffset
import org.apache.spark.sql.sources.{DataSourceRegister, StreamSourceProvider}
import org.apache.spark.sql.types.{LongType, StructType}
import org.apache.spark.sql.util.CaseInsensitiveStringMap

/** What a source or sink does at one of its calls. */
object Trouble {
  @volatile var at = ""
  @volatile var kind = ""
  @volatile var reached = new CountDownLatch(1)

  def begin(where: String, how: String): Unit = {
    reached = new CountDownLatch(1)
    at = where
    kind = how
  }

  /** Scala declares no exceptions: a connector throws those of the system's calls as they are. */
  def here(place: String): Unit = if (place == at) {
    reached.countDown()
    kind match {
      case "wait" => Thread.sleep(600000) // until it is interrupted, by a stop
      case "io" => throw new IOException("the disk is on fire")
    }
  }
}

class ThrowingTables extends TableProvider {
  override def inferSchema(options: CaseInsensitiveStringMap): StructType = new StructType().add("n", LongType)
  override def getTable(schema: StructType, partitioning: Array[Transform], properties: util.Map[String, String]): Table = new ThrowingTable
}

class ThrowingTable extends Table with SupportsRead with SupportsWrite {
  override def name: String = "throwing"
  override def schema: StructType = new StructType().add("n", LongType)
  override def capabilities: util.Set[TableCapability] = Set(TableCapability.MICRO_BATCH_READ, TableCapability.STREAMING_WRITE, TableCapability.ACCEPT_ANY_SCHEMA).asJava
  override def newScanBuilder(options: CaseInsensitiveStringMap): ScanBuilder = () => new Scan {
    override def readSchema: StructType = schema
    override def toMicroBatchStream(checkpoint: String): MicroBatchStream = {
      Trouble.here("toMicroBatchStream")
      new ThrowingStream
    }
  }
  override def newWriteBuilder(info: LogicalWriteInfo): WriteBuilder = new WriteBuilder with SupportsTruncate {
    override def truncate(): WriteBuilder = this
    override def buildForStreaming: StreamingWrite = new ThrowingWrite
  }
}

class ThrowingStream extends MicroBatchStream {
  override def initialOffset: Offset = LongOffset(0)
  override def deserializeOffset(json: String): Offset = LongOffset(json.toLong)
  override def latestOffset: Offset = {
    Trouble.here("latestOffset")
    LongOffset(1)
  }
  override def planInputPartitions(start: Offset, end: Offset): Array[InputPartition] = {
    Trouble.here("planInputPartitions")
    Array.empty
  }
  override def createReaderFactory: PartitionReaderFactory = _ => throw new IllegalStateException("there are no partitions")
  override def commit(end: Offset): Unit = ()
  override def stop(): Unit = ()
}

class ThrowingWrite extends StreamingWrite {
  override def createStreamingWriterFactory(info: PhysicalWriteInfo): StreamingDataWriterFactory = NoWriterFactory
  override def commit(epoch: Long, messages: Array[WriterCommitMessage]): Unit = Trouble.here("sink commit")
  override def abort(epoch: Long, messages: Array[WriterCommitMessage]): Unit = ()
}

object NoWriterFactory extends StreamingDataWriterFactory {
  override def createWriter(partition: Int, task: Long, epoch: Long): DataWriter[org.apache.spark.sql.catalyst.InternalRow] =
    new DataWriter[org.apache.spark.sql.catalyst.InternalRow] {
      override def write(row: org.apache.spark.sql.catalyst.InternalRow): Unit = ()
      override def commit(): WriterCommitMessage = null
      override def abort(): Unit = ()
      override def close(): Unit = ()
    }
}

class ThrowingSources extends StreamSourceProvider with DataSourceRegister {
  private val schema = new StructType().add("n", LongType)
  override def shortName: String = "throwing-v1"
  override def sourceSchema(c: SQLContext, s: Option[StructType], p: String, o: Map[String, String]): (String, StructType) = (shortName, schema)
  override def createSource(context: SQLContext, metadata: String, s: Option[StructType], p: String, o: Map[String, String]): Source = {
    Trouble.here("createSource")
    new Source {
      override def schema: StructType = ThrowingSources.this.schema
      override def getOffset: Option[OffsetV1] = {
        Trouble.here("getOffset")
        Some(LongOffset(1))
      }
      override def getBatch(start: Option[OffsetV1], end: OffsetV1): DataFrame = throw new IllegalStateException("not reached")
      override def stop(): Unit = ()
    }
  }
}

/** Queries whose source or sink throws, or is stopped in a call, on our store and on Spark's: prints what Spark makes of each. */
object ThrowingQueries {
  private val Provider = "spark.sql.streaming.stateStore.providerClass"
  private val V1 = Set("createSource", "getOffset")

  /** Arguments: a directory for checkpoints, `key=value` confs. */
  def main(arguments: Array[String]): Unit = {
    val builder = SparkSession.builder().master("local[1]").config("spark.ui.enabled", "false").config("spark.sql.shuffle.partitions", "1")
    val confs = arguments.drop(1).map(_.split("=", 2)).map(each => each(0) -> each(1))
    val spark = confs.foldLeft(builder) { case (so, (key, value)) => so.config(key, value) }.getOrCreate()
    val providers = Seq("cec" -> spark.conf.get(Provider), "spark" -> "org.apache.spark.sql.execution.streaming.state.HDFSBackedStateStoreProvider")
    val places = Seq("toMicroBatchStream", "latestOffset", "planInputPartitions", "sink commit", "createSource", "getOffset")
    for (place <- places; how <- Seq("wait", "io"); (store, provider) <- providers) {
      spark.conf.set(Provider, provider)
      Trouble.begin(place, how)
      val source = if (V1(place)) classOf[ThrowingSources] else classOf[ThrowingTables]
      val query = spark.readStream.format(source.getName).load().groupBy("n").count()
        .writeStream.format(classOf[ThrowingTables].getName).outputMode("complete")
        .option("checkpointLocation", s"${arguments(0)}/$place-$how-$store").start()
      val reached = Trouble.reached.await(30, TimeUnit.SECONDS)
      if (how == "wait" || !reached) query.stop()
      else try query.awaitTermination(60000) catch { case _: Throwable => }
      val causes = Iterator.iterate[Throwable](query.exception.map(_.cause).orNull)(_.getCause).takeWhile(_ != null).toSeq
      val answer = new ObjectMapper().createObjectNode().put("place", place).put("how", how).put("store", store).put("reached", reached)
      val list = answer.putArray("causes")
      causes.foreach(each => list.add(s"${each.getClass.getName}: ${each.getMessage}"))
      println(answer)
    }
    spark.stop()
  }
}
