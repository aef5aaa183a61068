package org.apache.spark.sql.cec

import java.util.Properties

import org.apache.spark.SPARK_VERSION

/** The versions of this jar and of its Spark, which the build writes into the jar. */
private[cec] object BuildInfo {
  private val properties: Properties = {
    val all = new Properties()
    val stream = getClass.getResourceAsStream("/META-INF/spark-cec/build.properties")
    if (stream != null) try all.load(stream) finally stream.close()
    all
  }

  val version: String = properties.getProperty("product.version", "unknown")
  val sparkVersion: String = properties.getProperty("spark.version", "unknown")

  /**
   * Refuses a Spark that lacks a member that this jar uses. Another minor release is refused. A patch release is
   * checked by classes, methods and fields, once in a JVM.
   */
  def checkSpark(): Unit = refusal.foreach(why => throw new IllegalStateException(why))

  private lazy val refusal: Option[String] = refusalUnder(SPARK_VERSION)

  /** The reason why this jar cannot run under that release of Spark; None if it can. */
  def refusalUnder(running: String): Option[String] =
    if (running == sparkVersion) None
    else {
      val why = if (minorRelease(running) != minorRelease(sparkVersion)) "another minor release" else findMissing.mkString(", ")
      Option.when(why.nonEmpty)(
        s"this spark-cec jar was built for Spark $sparkVersion, but Spark $running is running ($why): install a spark-cec for that, or build " +
          "it with `python -m spark_cec.build` where that Spark is installed")
    }

  private def findMissing: Seq[String] = {
    val missing = Linkage.missing(Linkage.jarOf(getClass), getClass.getClassLoader)
    missing.take(3).map(each => s"it lacks $each") ++ Option.when(missing.size > 3)(s"and ${missing.size - 3} more")
  }

  private def minorRelease(version: String): Seq[String] = version.split('.').toSeq.take(2)
}
