package org.apache.spark.sql.cec.recovery

import java.nio.charset.StandardCharsets.ISO_8859_1
import java.util.Locale

import scala.util.Try

import org.apache.spark.api.python.PythonEvalType
import org.apache.spark.sql.catalyst.expressions.{AesEncrypt, Attribute, Cast, Expression, GetStructField, PythonUDF, RuntimeReplaceable, VariableReference}
import org.apache.spark.sql.catalyst.expressions.aggregate.AggregateFunction
import org.apache.spark.sql.catalyst.plans.logical.{FlatMapGroupsWithState, LogicalPlan, Project}
import org.apache.spark.sql.catalyst.trees.TreePattern
import org.apache.spark.sql.cec.operators.CountWindow
import org.apache.spark.sql.execution.datasources.FileFormat
import org.apache.spark.sql.internal.SQLConf
import org.apache.spark.sql.types.{DateType, StringType, StructType, TimestampNTZType, TimestampType}

/**
 * Finds expressions that may have another value for the same row. Spark marks most of them; this object looks for the
 * others. [[OrderIndependentAggregates]] judges aggregate functions, and this object judges their arguments.
 */
private[recovery] object DeterministicExpressions {
  private def rowFunctions: Set[Int] =
    if (SQLConf.get.getConfString(PandasConversion, "false").toBoolean) Set(PythonEvalType.SQL_BATCHED_UDF)
    else Set(PythonEvalType.SQL_BATCHED_UDF, PythonEvalType.SQL_ARROW_BATCHED_UDF)

  /** With it a chunk of rows decides the type of a column: integers with a null among them are floating-point numbers. */
  private val PandasConversion = "spark.sql.legacy.execution.pythonUDF.pandas.conversion.enabled"

  /** The functions of plan nodes and of arbitrary-state operators. [[DeterministicNodes]] judges the nodes. */
  private val NodeFunctions = Set(
    PythonEvalType.SQL_MAP_PANDAS_ITER_UDF, PythonEvalType.SQL_MAP_ARROW_ITER_UDF,
    PythonEvalType.SQL_GROUPED_MAP_PANDAS_UDF, PythonEvalType.SQL_GROUPED_MAP_PANDAS_ITER_UDF,
    PythonEvalType.SQL_GROUPED_MAP_ARROW_UDF, PythonEvalType.SQL_GROUPED_MAP_ARROW_ITER_UDF,
    PythonEvalType.SQL_GROUPED_MAP_PANDAS_UDF_WITH_STATE)

  /** What the optimizer replaces by its own clock if such a text is cast to a date or a timestamp. */
  private val MomentWords = Seq("now", "today", "tomorrow", "yesterday")

  /** Spark adds the day of its clock to a time of day that is cast to a TIMESTAMP. */
  private val TimeOfDay = raw"(t\d|\d{1,2}:).*".r

  /** How a file is split depends on the number of cores. */
  private val PlacesOfSplits = Set("file_block_start", "file_block_length")

  /** A reason if an expression of the plan or its subqueries may have another value in a replay. */
  def against(plan: LogicalPlan): Option[String] =
    plan.collectWithSubqueries { case node => expressionsOf(node) ++ findHidden(node) }.iterator.flatten.flatMap(against(_)).nextOption()

  /** The expressions of a node, and the columns that it keeps, but not one that it only hands on. */
  private def expressionsOf(node: LogicalPlan): Seq[Expression] = node match {
    case project: Project => project.projectList.filterNot(hasPlaceOfSplit)
    case stateful if StatefulOperators.kind(stateful).isDefined => stateful.expressions ++ stateful.output.filter(hasPlaceOfSplit)
    case other => other.expressions
  }

  /** The expressions within a function, which no rule of Spark sees. */
  private def findHidden(node: LogicalPlan): Seq[Expression] = node match {
    case windows: FlatMapGroupsWithState => CountWindow.expressionsOf(windows.func)
    case _ => Nil
  }

  private def against(expression: Expression): Option[String] = expression match {
    // Spark does not say that each call draws another vector.
    case aes: AesEncrypt if !hasOwnVector(aes) => makeReason(aes)
    case field: GetStructField if hasPlaceOfSplit(field.child) => if (PlacesOfSplits(field.extractFieldName)) judgePlace(field) else None
    case metadata if hasPlaceOfSplit(metadata) => judgePlace(metadata)
    // Judge the expression that Spark will compute, such as the random generator behind `uniform`.
    case rewritten: RuntimeReplaceable if !expression.isInstanceOf[AggregateFunction] =>
      Try(rewritten.replacement).fold(_ => makeReason(expression), against(_))
    case _ => judgeAlone(expression).orElse(expression.children.iterator.flatMap(against(_)).nextOption())
  }

  private def judgeAlone(expression: Expression): Option[String] = expression match {
    case _: AggregateFunction => None
    case udf: PythonUDF if !rowFunctions(udf.evalType) && !NodeFunctions(udf.evalType) =>
      Some(s"'${udf.name}' is a function of many rows at once, which come in any order")
    case cast: Cast if isSpecialMoment(cast) => Some(s"the plan is not deterministic: ${cast.sql} is read off a clock")
    case variable: VariableReference => Some(s"the plan is not deterministic: ${variable.sql} is a variable of the session, and each start may set it to another value")
    case e if dependsOnMoment(e) || !e.deterministic && e.children.forall(_.deterministic) => makeReason(e)
    case _ => None
  }

  private def makeReason(expression: Expression): Option[String] = Some(s"the plan is not deterministic: ${expression.prettyName}")

  private def isSpecialMoment(cast: Cast): Boolean = cast.dataType match {
    case DateType | TimestampType | TimestampNTZType if cast.child.foldable && cast.child.dataType.isInstanceOf[StringType] =>
      val text = Try(Option(cast.child.eval())).fold(_ => None, known => known).map(_.toString.toLowerCase(Locale.ROOT))
      text.exists(known => MomentWords.exists(known.contains) || cast.dataType == TimestampType && TimeOfDay.matches(known.trim))
    case _ => false
  }

  private def judgePlace(place: Expression): Option[String] = Some(s"the plan is not deterministic: ${place.sql} depends on how files are split")

  /** Whether this is the column of a file source that tells where a row is. One that is handed on has this name, too. */
  private def hasPlaceOfSplit(expression: Expression): Boolean = expression match {
    case metadata: Attribute if metadata.name.equalsIgnoreCase(FileFormat.METADATA_NAME) => metadata.dataType match {
      case fields: StructType => fields.fieldNames.exists(PlacesOfSplits)
      case _ => false
    }
    case _ => false
  }

  private def hasOwnVector(aes: AesEncrypt): Boolean = {
    def isFixed(part: Expression, is: String => Boolean) = part.foldable && Try(Option(part.eval())).toOption.flatten.exists(value => is(value match {
      case bytes: Array[Byte] => new String(bytes, ISO_8859_1)
      case other => other.toString
    }))
    isFixed(aes.mode, _.equalsIgnoreCase("ECB")) || isFixed(aes.iv, _.nonEmpty)
  }

  /** Whether the value depends on the time of the batch, the user or the current catalog. */
  private def dependsOnMoment(expression: Expression): Boolean =
    expression.containsPattern(TreePattern.CURRENT_LIKE) && !expression.children.exists(_.containsPattern(TreePattern.CURRENT_LIKE))
}
