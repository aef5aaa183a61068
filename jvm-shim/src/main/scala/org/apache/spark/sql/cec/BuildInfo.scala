package org.apache.spark.sql.cec

import java.util.Properties

import org.apache.spark.SPARK_VERSION

/** What this jar was built as, and for which Spark: written into the jar by its build. */
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
   * Refuses to run under a Spark that lacks what this jar uses. Another minor release is another Spark; a patch release is
   * asked for each class, method and field, once in a JVM.
   */
  def checkSpark(): Unit = refusal.foreach(why => throw new IllegalStateException(why))

  private lazy val refusal: Option[String] = refusalUnder(SPARK_VERSION)

  /** Why this jar cannot run under that release of Spark, if it cannot. */
  def refusalUnder(running: String): Option[String] =
    if (running == sparkVersion) None
    else {
      val why = if (minor(running) != minor(sparkVersion)) "another minor release" else lacking.mkString(", ")
      Option.when(why.nonEmpty)(
        s"this spark-cec jar was built for Spark $sparkVersion, but Spark $running is running ($why): install a spark-cec for that, or build " +
          "it with `python -m spark_cec.build` where that Spark is installed")
    }

  private def lacking: Seq[String] = {
    val missing = Linkage.missing(Linkage.jarOf(getClass), getClass.getClassLoader)
    missing.take(3).map(each => s"it lacks $each") ++ Option.when(missing.size > 3)(s"and ${missing.size - 3} more")
  }

  private def minor(version: String): Seq[String] = version.split('.').toSeq.take(2)
}
