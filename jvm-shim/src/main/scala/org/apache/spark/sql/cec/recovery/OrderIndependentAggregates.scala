package org.apache.spark.sql.cec.recovery

import org.apache.spark.sql.catalyst.expressions.{EvalMode, RuntimeReplaceableAggregate}
import org.apache.spark.sql.catalyst.expressions.aggregate._
import org.apache.spark.sql.catalyst.util.UnsafeRowUtils
import org.apache.spark.sql.types._

/**
 * The aggregate functions whose state is known not to depend on the order of the rows, nor on how they were split between
 * tasks. Whatever is not named here is not known: a function that Spark adds tomorrow, the user's own, sketches, `first`.
 * Nothing that adds floating-point numbers is: each addition is rounded, so another order gives another sum, and where numbers cancel
 * out no bound on the difference holds.
 */
private[recovery] object OrderIndependentAggregates {
  /** Classes, not names, and none of their subclasses. Logarithmic counters (HyperLogLog++) keep the maximum of hashed bits. */
  private val Known: Set[Class[_]] = Set(
    classOf[Count], classOf[Sum], classOf[Min], classOf[Max], classOf[Average],
    classOf[BitAndAgg], classOf[BitOrAgg], classOf[BitXorAgg], classOf[HyperLogLogPlusPlus])

  /** Digits that Spark gives the sum of decimals on top of theirs, and how many there can be. */
  private val Headroom = DecimalType.MAX_PRECISION - 10

  /** Digits up to which Spark averages decimals as doubles (its rule `DecimalAggregates`). */
  private val LongestAsDouble = 11

  /** Why a replay may give this aggregate another state; None if it gives the same. */
  def against(aggregate: AggregateExpression): Option[String] =
    if (aggregate.isDistinct) unknown(s"${aggregate.aggregateFunction.prettyName}(DISTINCT …)")
    else against(aggregate.aggregateFunction)

  /** Why keys of this type may be the same and yet not one sequence of bytes: then the first row decides which it is. */
  def againstKey(key: DataType): Option[String] =
    if (!UnsafeRowUtils.isBinaryStable(key)) Some(s"keys of the type ${key.simpleString} may be equal with other bytes")
    else Option.when(key.existsRecursively(_.isInstanceOf[MapType]))("it has a map in its key")

  private def against(function: AggregateFunction): Option[String] = function match {
    case rewritten: RuntimeReplaceableAggregate => rewritten.replacement match {
      case plain: AggregateFunction => against(plain).map(reason => s"${function.prettyName}: $reason")
      case _ => unknown(function.prettyName)
    }
    case f if !Known(f.getClass) => unknown(f.prettyName)
    case sum: Sum => overflows(sum.prettyName, sum.child.dataType, sum.evalContext.evalMode)
    case average: Average => averages(average)
    case min: Min => choosesBytes(min.prettyName, min.child.dataType)
    case max: Max => choosesBytes(max.prettyName, max.child.dataType)
    case _ => None
  }

  /** Averages are sums of doubles, but of decimals with many digits; [[org.apache.spark.sql.cec.state.ExactAverages]] looks after those of integers. */
  private def averages(average: Average): Option[String] = average.child.dataType match {
    case ByteType | ShortType | IntegerType | _: YearMonthIntervalType | _: DayTimeIntervalType => None
    case decimal: DecimalType if decimal.precision > LongestAsDouble => overflows(average.prettyName, decimal, average.evalMode)
    case decimal: DecimalType => rounded(s"avg of ${decimal.simpleString}", s"; cast to decimal(${LongestAsDouble + 1},${decimal.scale}) or more digits")
    case LongType => rounded("avg of bigint", "; cast to int, or divide a sum by a count")
    case other => rounded(s"avg of ${other.simpleString}", "")
  }

  private def rounded(name: String, mend: String): Option[String] =
    Some(s"$name adds floating-point numbers, whose rounding depends on the order of rows$mend")

  private def unknown(name: String): Option[String] = Some(s"$name is not known to be independent of the order of rows")

  /** What overflows on its way to a sum that fits does so in one order of the rows, and not in another. */
  private def overflows(name: String, summed: DataType, mode: EvalMode.Value): Option[String] = summed match {
    case FloatType | DoubleType => rounded(s"$name of ${summed.simpleString}", "")
    case _ if mode == EvalMode.TRY => Some(s"try_$name is null after an overflow, which depends on the order of rows")
    case decimal: DecimalType if decimal.precision > Headroom =>
      Some(s"$name of ${decimal.simpleString} may overflow, which depends on the order of rows; cast to at most $Headroom digits")
    case _ => None
  }

  /** Of values that are equal with other bytes, the first one stays. The digest takes 0.0 and -0.0 for one number, and all NaNs. */
  private def choosesBytes(name: String, compared: DataType): Option[String] = compared match {
    case FloatType | DoubleType => None
    case other if !UnsafeRowUtils.isBinaryStable(other) =>
      Some(s"$name of ${other.simpleString} depends on the order of rows: values may be equal with other bytes")
    case other if other.existsRecursively(part => part == FloatType || part == DoubleType) =>
      Some(s"$name of ${other.simpleString} depends on the order of rows: 0.0 and -0.0 are equal")
    case _ => None
  }
}
