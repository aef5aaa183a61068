package org.apache.spark.sql.cec.agent

import scala.jdk.CollectionConverters._

import org.apache.hadoop.conf.Configuration

import org.apache.spark.SparkEnv
import org.apache.spark.deploy.SparkHadoopUtil

/**
 * The settings of object stores and of HDFS in Spark's Hadoop configuration, for the agent, whose client of a store is another one.
 * The agent knows which of them have a meaning there.
 */
private[agent] object StorageSettings {
  private val OwnPrefix = "spark.sql.streaming.stateStore.cec.storage."

  /** Those of HDFS that its client in the agent knows. Hadoop's defaults have hundreds of others. */
  private val Hdfs = Seq(
    "fs.defaultFS", "fs.viewfs.mounttable.", "fs.permissions.umask-mode", "hadoop.security.authentication", "dfs.nameservices",
    "dfs.ha.namenodes.", "dfs.namenode.rpc-address.", "dfs.client.failover.", "dfs.client.use.datanode.hostname", "dfs.client.socket-timeout",
    "dfs.client.block.write.replace-datanode-on-failure.", "dfs.data.transfer.protection", "dfs.replication", "dfs.user.home.dir.prefix")

  private val Prefixes = Seq("fs.s3a.", "fs.gs.", "fs.azure.account.key.") ++ Hdfs

  /** The settings that Hadoop's credential files may have. They are in no list of settings, so they are asked by name. */
  private val Secrets = Seq("fs.s3a.access.key", "fs.s3a.secret.key", "fs.s3a.session.token")

  /**
   * The settings of this JVM: those of Spark, of `core-site.xml`, and of Hadoop's credential files; and `cec.storage.*`
   * of the query's `conf`.
   */
  def ofSpark(conf: Map[String, String]): Map[String, String] =
    Option(SparkEnv.get).map(env => of(SparkHadoopUtil.get.newConfiguration(env.conf))).getOrElse(Map.empty) ++
      conf.filter(_._1.startsWith(OwnPrefix))

  def of(configuration: Configuration): Map[String, String] = {
    val listed = configuration.asScala.map(_.getKey).filter(key => Prefixes.exists(key.startsWith)).map(key => key -> configuration.get(key))
    listed.toMap ++ Secrets.flatMap(key => Option(configuration.getPassword(key)).map(value => key -> new String(value)))
  }
}
