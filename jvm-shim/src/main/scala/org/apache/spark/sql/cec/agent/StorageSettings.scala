package org.apache.spark.sql.cec.agent

import scala.jdk.CollectionConverters._
import scala.util.control.NonFatal

import org.apache.hadoop.conf.Configuration

import org.apache.spark.SparkEnv
import org.apache.spark.deploy.SparkHadoopUtil

/**
 * The settings of object stores and of HDFS in Spark's Hadoop configuration, for the agent, whose client of a store is another one.
 * The agent knows which of them have a meaning there.
 */
private[cec] object StorageSettings {
  private val OwnPrefix = "spark.sql.streaming.stateStore.cec.storage."

  /** Those of HDFS that its client in the agent knows. Hadoop's defaults have hundreds of others. */
  private val Hdfs = Seq(
    "fs.defaultFS", "fs.viewfs.mounttable.", "fs.permissions.umask-mode", "hadoop.security.authentication", "dfs.nameservices",
    "dfs.ha.namenodes.", "dfs.namenode.rpc-address.", "dfs.client.failover.", "dfs.client.use.datanode.hostname", "dfs.client.socket-timeout",
    "dfs.client.block.write.replace-datanode-on-failure.", "dfs.data.transfer.protection", "dfs.replication", "dfs.user.home.dir.prefix")

  /** The settings that name Hadoop's credential files: that for S3A, which comes first, and that for all. */
  private val Files = "hadoop.security.credential.provider.path"
  private val FilesOfS3a = "fs.s3a.security.credential.provider.path"

  private val Prefixes = Seq("fs.s3a.", "fs.gs.", "fs.azure.account.key.", Files) ++ Hdfs

  /** The settings that Hadoop's credential files may have. They are in no list of settings, so they are asked by name. */
  private val Secrets = Seq("fs.s3a.access.key", "fs.s3a.secret.key", "fs.s3a.session.token")

  /**
   * Reads the settings of this JVM at each call: those of Spark, of `core-site.xml`, and of Hadoop's credential files;
   * and `cec.storage.*` of the query's `conf`. Of these only the credential files may change meanwhile.
   */
  def reader(conf: Map[String, String]): () => Map[String, String] = {
    val configuration = Option(SparkEnv.get).map(env => SparkHadoopUtil.get.newConfiguration(env.conf))
    val own = conf.filter(_._1.startsWith(OwnPrefix))
    () => configuration.map(of).getOrElse(Map.empty) ++ own
  }

  /** The settings of this JVM as JSON, for a pipeline's driver in Python, which reads and writes the pipeline's home. */
  def json(): String = Json.map(reader(Map.empty)()).toString

  def of(configuration: Configuration): Map[String, String] = {
    val listed = configuration.asScala.map(_.getKey).filter(key => Prefixes.exists(key.startsWith)).map(key => key -> configuration.get(key))
    val files = new Configuration(configuration)
    files.set(Files, filesOf(configuration.get(_)).mkString(","))
    listed.toMap ++ Secrets.flatMap(key => Option(files.getPassword(key)).map(value => key -> new String(value)))
  }

  /** Whether these settings may change while the application runs. */
  def mayChange(settings: Map[String, String]): Boolean = filesOf(settings.getOrElse(_, null)).nonEmpty

  private def filesOf(get: String => String): Seq[String] =
    Seq(FilesOfS3a, Files).flatMap(key => Option(get(key))).map(_.trim).filter(_.nonEmpty)
}

/**
 * Sends the settings of storage again when they have changed: somebody has written a credential file anew, because the
 * keys in it had expired.
 */
private[agent] final class StorageSettingsWatch(
    known: Map[String, String], read: () => Map[String, String], send: Map[String, String] => Unit) {
  private var last = known

  /** Looks once. A file that cannot be read now is perhaps about to be written: the next look will tell. */
  def look(): Unit = try {
    val now = read()
    if (now != last) send(now)
    last = now
  } catch { case NonFatal(_) => }

  /** Looks again and again, in a thread of its own, until `isOver`. */
  def start(isOver: () => Boolean): Unit = if (StorageSettings.mayChange(known)) {
    val thread = new Thread(() => while (!isOver()) { Thread.sleep(StorageSettingsWatch.EveryMs); look() }, "cec-credential-files")
    thread.setDaemon(true)
    thread.start()
  }
}

private object StorageSettingsWatch {
  /** Less than the time for which the agent repeats a request: `cec.storage.retry`. */
  val EveryMs = 10000L
}
