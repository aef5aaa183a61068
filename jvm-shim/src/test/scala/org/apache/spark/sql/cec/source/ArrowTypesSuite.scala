package org.apache.spark.sql.cec.source

import org.apache.spark.sql.cec.CecSuite
import org.apache.spark.sql.types._
import org.apache.spark.sql.util.ArrowUtils

class ArrowTypesSuite extends CecSuite {
  private def check(before: String, now: String): Unit = {
    val (old, wanted) = (StructType.fromDDL(s"x $before").head, StructType.fromDDL(s"x $now").head)
    ArrowTypes.check(ArrowUtils.toArrowField("x", old.dataType, old.nullable, "UTC", largeVarTypes = true), wanted, "late/totals/7.late")
  }

  test("a column of its present type is read, whatever that is") {
    Seq("INT", "BIGINT", "DOUBLE", "STRING", "STRING COLLATE UTF8_LCASE", "BINARY", "DATE", "TIMESTAMP", "TIMESTAMP_NTZ", "DECIMAL(10, 2)", "BOOLEAN",
      "ARRAY<INT>", "MAP<STRING, INT>", "STRUCT<a: INT, b: ARRAY<STRING>>", "INTERVAL DAY TO SECOND").foreach(each => check(each, each))
    check("STRUCT<a: INT NOT NULL>", "STRUCT<a: INT>")
  }

  test("a column of an earlier type is refused, though its bytes would do") {
    for ((before, now) <- Seq("BIGINT" -> "TIMESTAMP", "INT" -> "DATE", "INT" -> "BIGINT", "TIMESTAMP" -> "TIMESTAMP_NTZ", "STRUCT<a: INT, b: INT>" -> "STRUCT<b: INT, a: INT>",
        "DECIMAL(10, 2)" -> "DECIMAL(10, 3)")) {
      val error = intercept[IllegalArgumentException](check(before, now))
      assert(error.getMessage.startsWith("column x of late/totals/7.late is ") && error.getMessage.contains("move that object elsewhere"), before)
    }
  }
}
