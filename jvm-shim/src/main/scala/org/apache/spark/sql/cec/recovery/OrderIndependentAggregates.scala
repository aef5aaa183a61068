package org.apache.spark.sql.cec.recovery

import org.apache.spark.sql.catalyst.expressions.{EvalMode, RuntimeReplaceableAggregate}
import org.apache.spark.sql.catalyst.expressions.aggregate._
import org.apache.spark.sql.catalyst.util.UnsafeRowUtils
import org.apache.spark.sql.types._

/**
 * Knows the aggregate functions whose state depends neither on the order of rows nor on their split into tasks.
 *
 * All other functions are unknown: new ones of Spark, the user's own, sketches, `first`. A function that adds
 * floating-point numbers depends on the order. Each addition rounds, and no bound on the difference holds where
 * numbers cancel out.
 */
private[recovery] object OrderIndependentAggregates {
  /** Classes and no subclasses of them. Logarithmic counters (HyperLogLog++) keep the maximum of hashed bits. */
  private val Known: Set[Class[_]] = Set(
    classOf[Count], classOf[Sum], classOf[Min], classOf[Max], classOf[Average],
    classOf[BitAndAgg], classOf[BitOrAgg], classOf[BitXorAgg], classOf[HyperLogLogPlusPlus])

  /** The longest decimals that a sum may take. Spark gives the sum 10 more digits, up to its maximum. */
  private val MaxSummedDigits = DecimalType.MAX_PRECISION - 10

  /** The longest decimals that Spark averages as doubles (its rule `DecimalAggregates`). */
  private val MaxDoubleDigits = 11

  /** A reason if a replay may give this aggregate another state; None if it gives the same. */
  def against(aggregate: AggregateExpression): Option[String] =
    if (aggregate.isDistinct) explainUnknown(s"${aggregate.aggregateFunction.prettyName}(DISTINCT …)")
    else against(aggregate.aggregateFunction)

  /** As `against`, but sums of floating-point numbers may differ in their last digits. */
  def againstUpToRounding(aggregate: AggregateExpression): Option[String] = aggregate.aggregateFunction match {
    case sum @ (_: Sum | _: Average) if !aggregate.isDistinct && Known(sum.getClass) && sum.children.head.dataType.isInstanceOf[FractionalType] &&
      !sum.children.head.dataType.isInstanceOf[DecimalType] => None
    case _ => against(aggregate)
  }

  /** A reason if keys of this type may be equal with other bytes. The first row then decides the bytes. */
  def againstKey(key: DataType): Option[String] =
    if (!UnsafeRowUtils.isBinaryStable(key)) Some(s"keys of the type ${key.simpleString} may be equal with other bytes")
    else Option.when(key.existsRecursively(_.isInstanceOf[MapType]))("it has a map in its key")

  private def against(function: AggregateFunction): Option[String] = function match {
    case rewritten: RuntimeReplaceableAggregate => rewritten.replacement match {
      case plain: AggregateFunction => against(plain).map(reason => s"${function.prettyName}: $reason")
      case _ => explainUnknown(function.prettyName)
    }
    case f if !Known(f.getClass) => explainUnknown(f.prettyName)
    case sum: Sum => judgeOverflow(sum.prettyName, sum.child.dataType, sum.evalContext.evalMode)
    case average: Average => judgeAverage(average)
    case min: Min => judgeBytes(min.prettyName, min.child.dataType)
    case max: Max => judgeBytes(max.prettyName, max.child.dataType)
    case _ => None
  }

  /**
   * Averages add doubles, but averages of long decimals add decimals. For averages of integers see
   * [[org.apache.spark.sql.cec.state.ExactAverages]].
   */
  private def judgeAverage(average: Average): Option[String] = average.child.dataType match {
    case ByteType | ShortType | IntegerType | _: YearMonthIntervalType | _: DayTimeIntervalType => None
    case decimal: DecimalType if decimal.precision > MaxDoubleDigits => judgeOverflow(average.prettyName, decimal, average.evalMode)
    case decimal: DecimalType => explainRounding(s"avg of ${decimal.simpleString}", s"; cast to decimal(${MaxDoubleDigits + 1},${decimal.scale}) or more digits")
    case LongType => explainRounding("avg of bigint", "; cast to int, or divide a sum by a count")
    case other => explainRounding(s"avg of ${other.simpleString}", "")
  }

  private def explainRounding(name: String, mend: String): Option[String] =
    Some(s"$name adds floating-point numbers, whose rounding depends on the order of rows$mend")

  private def explainUnknown(name: String): Option[String] = Some(s"$name is not known to be independent of the order of rows")

  /** A sum may fit and still overflow on the way, in one order of the rows and not in another. */
  private def judgeOverflow(name: String, summed: DataType, mode: EvalMode.Value): Option[String] = summed match {
    case FloatType | DoubleType => explainRounding(s"$name of ${summed.simpleString}", "")
    case _ if mode == EvalMode.TRY => Some(s"try_$name is null after an overflow, which depends on the order of rows")
    case decimal: DecimalType if decimal.precision > MaxSummedDigits =>
      Some(s"$name of ${decimal.simpleString} may overflow, which depends on the order of rows; cast to at most $MaxSummedDigits digits")
    case _ => None
  }

  /**
   * The first of equal values stays, even if their bytes differ. The digest treats 0.0 and -0.0 as one number, and all
   * NaNs.
   */
  private def judgeBytes(name: String, compared: DataType): Option[String] = compared match {
    case FloatType | DoubleType => None
    case other if !UnsafeRowUtils.isBinaryStable(other) =>
      Some(s"$name of ${other.simpleString} depends on the order of rows: values may be equal with other bytes")
    case other if other.existsRecursively(part => part == FloatType || part == DoubleType) =>
      Some(s"$name of ${other.simpleString} depends on the order of rows: 0.0 and -0.0 are equal")
    case _ => None
  }
}
