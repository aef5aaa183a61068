package org.apache.spark.sql.cec.source

import java.util

import org.apache.spark.sql.cec.agent.QueryRefusedException
import org.apache.spark.sql.connector.catalog.{Table, TableProvider}
import org.apache.spark.sql.connector.expressions.Transform
import org.apache.spark.sql.sources.DataSourceRegister
import org.apache.spark.sql.types.StructType
import org.apache.spark.sql.util.CaseInsensitiveStringMap

/** `format("cec")`: the sink that writes into a query's own log, and the reader of logs. */
class CecDataSource extends TableProvider with DataSourceRegister {
  override def shortName(): String = "cec"

  override def supportsExternalMetadata(): Boolean = true

  override def inferSchema(options: CaseInsensitiveStringMap): StructType = QueryRefusedException.orResult(View.of(options).schema())

  override def getTable(schema: StructType, partitioning: Array[Transform], properties: util.Map[String, String]): Table =
    new CecTable(schema.asNullable, new CaseInsensitiveStringMap(properties), None)
}
