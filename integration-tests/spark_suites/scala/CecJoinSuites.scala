package org.apache.spark.sql.cec.suites

import org.scalactic.source
import org.scalatest.Tag

import org.apache.spark.sql.cec.CecStateStoreProvider
import org.apache.spark.sql.execution.streaming.state.{HDFSBackedStateStoreProvider, RocksDBStateStoreProvider}
import org.apache.spark.sql.internal.SQLConf
import org.apache.spark.sql.streaming._

/**
 * Where a suite asks for the HDFS-backed provider by name, it gets ours: the suites of joins do. They have each test once more for the
 * RocksDB provider, which would be Spark testing itself, and takes half of the time.
 */
trait OursForHdfsBacked extends StreamTest {
  override protected def test(name: String, tags: Tag*)(body: => Any)(implicit position: source.Position): Unit =
    if (!name.contains(classOf[RocksDBStateStoreProvider].getName)) super.test(name, tags: _*)(body)

  override protected def withSQLConf[T](pairs: (String, String)*)(body: => T): T = {
    val Hdfs = classOf[HDFSBackedStateStoreProvider].getName
    super.withSQLConf(pairs.map {
      case (SQLConf.STATE_STORE_PROVIDER_CLASS.key, Hdfs) => SQLConf.STATE_STORE_PROVIDER_CLASS.key -> classOf[CecStateStoreProvider].getName
      case other => other
    }: _*)(body)
  }
}

class CecInnerJoinSuite extends StreamingInnerJoinWithoutVCFSuite with OursForHdfsBacked

class CecOuterJoinSuite extends StreamingOuterJoinWithoutVCFSuite with OursForHdfsBacked

class CecFullOuterJoinSuite extends StreamingFullOuterJoinWithoutVCFSuite with OursForHdfsBacked

class CecLeftSemiJoinSuite extends StreamingLeftSemiJoinWithoutVCFSuite with OursForHdfsBacked
