package org.apache.spark.sql.cec.agent

import java.io.{InputStream, IOException, OutputStream, PipedInputStream, PipedOutputStream}
import java.nio.charset.StandardCharsets.UTF_8
import java.util.concurrent.{CompletableFuture, TimeoutException}

import org.apache.hadoop.conf.Configuration
import org.apache.hadoop.security.alias.CredentialProviderFactory

import org.apache.spark.sql.AnalysisException
import org.apache.spark.sql.cec.CecSuite

class JsonSuite extends CecSuite {
  test("texts, long numbers and settings come back as they were") {
    val texts = Seq("", "a\"b\\c\n\u0000", "é中\uD83D\uDE00", "null")
    val numbers = Seq(0L, -1L, (1L << 53) + 1, Long.MaxValue, Long.MinValue)
    val node = Json.obj()
    node.set[com.fasterxml.jackson.databind.JsonNode]("texts", Json.strings(texts))
    node.set[com.fasterxml.jackson.databind.JsonNode]("numbers", Json.longs(numbers))
    node.set[com.fasterxml.jackson.databind.JsonNode]("conf", Json.map(Map("a.b" -> "1", "" -> "x y")))
    val read = Json.parse(node.toString)
    assert((0 until texts.size).map(read.get("texts").get(_).asText) == texts)
    assert((0 until numbers.size).map(read.get("numbers").get(_).asLong) == numbers)
    assert(read.get("numbers").get(3).isIntegralNumber)
    assert(read.get("conf").get("a.b").asText == "1" && read.get("conf").get("").asText == "x y")
  }

  test("a text may be missing or null, and empty is a text") {
    val node = Json.parse("""{"none": null, "empty": "", "number": 7}""")
    assert(Json.text(node.get("none")).isEmpty && Json.text(node.get("other")).isEmpty)
    assert(Json.text(node.get("empty")).contains("") && Json.text(node.get("number")).contains("7"))
    assert(Json.arr().isEmpty && Json.obj().isEmpty && Json.strings(Nil).toString == "[]")
  }
}

class QueryRefusedExceptionSuite extends CecSuite {
  test("our error is one of analysis, with its message, and others pass") {
    val cause = new CecException("SettingsError", "no such key")
    val refused = intercept[AnalysisException](QueryRefusedException.orResult(throw cause))
    assert(refused.getMessage.contains("no such key") && (refused.getCause eq cause))
    assert(QueryRefusedException.orResult(5) == 5)
    assertThrows[IllegalStateException](QueryRefusedException.orResult(throw new IllegalStateException))
  }
}

class AgentOutputSuite extends CecSuite {
  import AgentOutput._

  private val PatientMs = 30000L

  /** A process of which only the end matters. */
  private final class Ending extends Process {
    val end = new CompletableFuture[Process]
    override def onExit(): CompletableFuture[Process] = end
    override def getOutputStream: OutputStream = null
    override def getInputStream: InputStream = null
    override def getErrorStream: InputStream = null
    override def waitFor(): Int = 0
    override def exitValue(): Int = 0
    override def destroy(): Unit = ()
  }

  private def pipe(): (PipedOutputStream, AgentOutput) = {
    val stream = new PipedOutputStream
    (stream, new AgentOutput(new PipedInputStream(stream)))
  }

  private def send(stream: OutputStream, text: String): Unit = {
    stream.write(text.getBytes(UTF_8))
    stream.flush()
  }

  private val greeting = Mark + "\"1.0\", \"name\": \"é\"}"

  test("a greeting may come byte by byte, behind other text") {
    val (stream, output) = pipe()
    s"warning: é\n$greeting\n".getBytes(UTF_8).foreach { byte =>
      stream.write(byte.toInt)
      stream.flush()
    }
    assert(output.await(new Ending, PatientMs) == Greeted(greeting))
    stream.close()
  }

  test("the greeting is the first whole line with the mark") {
    val (stream, output) = pipe()
    send(stream, s"x $greeting\n$Mark 2}\nmore")
    assert(output.await(new Ending, PatientMs) == Greeted(greeting))
    stream.close()
  }

  test("an output that ends before the greeting keeps its last words on one line") {
    val (stream, output) = pipe()
    send(stream, " Traceback:\r\n\n  no module \n")
    stream.close()
    assert(output.await(new Ending, PatientMs) == Ended)
    assert(output.said == "Traceback: / no module")
  }

  test("half a greeting is none") {
    val (stream, output) = pipe()
    send(stream, greeting)
    stream.close()
    assert(output.await(new Ending, PatientMs) == Ended)
  }

  test("a flood without a greeting ends the wait") {
    val text = new String(Array.fill(Most + 2)('x'))
    val output = new AgentOutput(new java.io.ByteArrayInputStream(text.getBytes(UTF_8)))
    assert(output.await(new Ending, PatientMs) == Flooded)
    assert(output.said.length == 500)
  }

  test("an error of the stream is its end") {
    val output = new AgentOutput(() => throw new IOException("closed"))
    assert(output.await(new Ending, PatientMs) == Ended)
  }

  test("a process that ends while a child holds the output open has ended") {
    val (stream, output) = pipe()
    val process = new Ending
    process.end.complete(process)
    assert(output.await(process, PatientMs) == Ended)
    stream.close()
  }

  test("a silent process is waited for no longer than asked") {
    val (stream, output) = pipe()
    assertThrows[TimeoutException](output.await(new Ending, 10L))
    send(stream, greeting + "\n")
    assert(output.await(new Ending, PatientMs) == Greeted(greeting))
    stream.close()
  }
}

class StorageSettingsSuite extends CecSuite {
  private val keys = Seq("fs.s3a.access.key", "fs.s3a.secret.key")

  private def write(configuration: Configuration, name: String, value: String): Unit = {
    configuration.set(name, s"jceks://file${java.nio.file.Files.createTempDirectory("cec-credentials")}/keys.jceks")
    store(configuration, name, value)
  }

  private def store(configuration: Configuration, name: String, value: String): Unit = {
    val files = new Configuration(false)
    files.set("hadoop.security.credential.provider.path", configuration.get(name))
    val file = CredentialProviderFactory.getProviders(files).get(0)
    keys.foreach { key =>
      if (file.getCredentialEntry(key) != null) file.deleteCredentialEntry(key)
      file.createCredentialEntry(key, s"$key $value".toCharArray)
    }
    file.flush()
  }

  test("the settings of object stores and HDFS are those of Spark and of Hadoop's credential files, and no others") {
    val configuration = new Configuration(false)
    configuration.set("fs.s3a.endpoint", "http://there")
    configuration.set("fs.s3a.secret.key", "of Spark")
    configuration.set("fs.defaultFS", "hdfs://elsewhere")
    configuration.set("dfs.namenode.rpc-address.elsewhere.a", "host:8020")
    configuration.set("dfs.namenode.handler.count", "10")
    configuration.set("fs.trash.interval", "10")
    configuration.set("fs.azure.account.key.shop.dfs.core.windows.net", "a")
    val known = Map(
      "fs.defaultFS" -> "hdfs://elsewhere", "dfs.namenode.rpc-address.elsewhere.a" -> "host:8020",
      "fs.s3a.endpoint" -> "http://there", "fs.s3a.secret.key" -> "of Spark", "fs.azure.account.key.shop.dfs.core.windows.net" -> "a")
    assert(StorageSettings.of(configuration) == known && !StorageSettings.mayChange(known))
    Seq("hadoop.security.credential.provider.path", "fs.s3a.security.credential.provider.path").foreach { name =>
      write(configuration, name, s"of the file of $name")
      val found = StorageSettings.of(configuration)
      assert(found == known ++ keys.map(key => key -> s"$key of the file of $name") ++ found.filter(_._1.endsWith("credential.provider.path")))
      assert(found(name).startsWith("jceks:") && StorageSettings.mayChange(found))
    }
  }

  test("a credential file that was written anew is sent again, once") {
    val configuration = new Configuration(false)
    val name = "hadoop.security.credential.provider.path"
    write(configuration, name, "one")
    val sent = scala.collection.mutable.Buffer.empty[Map[String, String]]
    var isBroken = false
    def read(): Map[String, String] = if (isBroken) throw new IOException("half a file") else StorageSettings.of(configuration)
    val watch = new StorageSettingsWatch(read(), () => read(), sent += _)
    watch.look()
    isBroken = true
    watch.look()
    assert(sent.isEmpty)
    isBroken = false
    store(configuration, name, "two")
    watch.look()
    watch.look()
    assert(sent.map(_("fs.s3a.access.key")) == Seq("fs.s3a.access.key two"))
  }
}
