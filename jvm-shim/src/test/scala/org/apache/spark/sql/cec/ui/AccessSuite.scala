package org.apache.spark.sql.cec.ui

import java.net.{HttpURLConnection, URI}

import jakarta.servlet.{Filter, FilterChain, ServletRequest, ServletResponse}
import jakarta.servlet.http.{HttpServletRequest, HttpServletRequestWrapper}

import org.apache.spark.{SecurityManager, SparkConf}
import org.apache.spark.sql.cec.CecSuite
import org.apache.spark.sql.cec.agent.{LookAnswer, PipelineLookAnswer}
import org.apache.spark.sql.cec.exchange.WindowAges
import org.apache.spark.status.AppStatusStore
import org.apache.spark.ui.SparkUI
import org.apache.spark.util.kvstore.InMemoryStore

/** Takes the user from a header, as a proxy that signs people in would. */
final class HeaderFilter extends Filter {
  override def doFilter(request: ServletRequest, response: ServletResponse, chain: FilterChain): Unit = {
    val asked = request.asInstanceOf[HttpServletRequest]
    chain.doFilter(new HttpServletRequestWrapper(asked) {
      override def getRemoteUser: String = asked.getHeader(HeaderFilter.Header)
    }, response)
  }
}

object HeaderFilter {
  val Header = "X-Test-User"
}

/** Spark's access lists, over HTTP. */
class AccessSuite extends CecSuite {
  import ViewFacts._

  private object NoLooks extends Looks {
    override def lookAtQueries(running: Seq[QueryPlace], ended: Seq[QueryPlace]): Map[QueryPlace, Timed[LookAnswer]] =
      (running ++ ended).map(_ -> look()).toMap
    override def lookAtAges(of: QueryPlace, isOver: Boolean): Timed[WindowAges] = Timed(None, 0L, None)
    override def lookAtPipelines(homes: Seq[String]): Map[String, Timed[PipelineLookAnswer]] = homes.map(_ -> Timed(None, 0L, None)).toMap
    override def keepOnly(places: Set[QueryPlace], homes: Set[String]): Unit = ()
  }

  private val run = identity()
  private val pages = Seq("cec/", "cec/query/", "cec/pipeline/")
  private val json = Seq("cec/json", "cec/json/", s"cec/query/json?id=${run.id}", "cec/pipeline/json?home=file:/h")

  /** A user interface that runs before it gets the tab, as that of an application does. */
  private def withTab(conf: SparkConf)(body: String => Unit): Unit = {
    val all = conf.set("spark.ui.port", "0").set("spark.ui.filters", classOf[HeaderFilter].getName)
    val ui = SparkUI.create(None, new AppStatusStore(new InMemoryStore), all, new SecurityManager(all), "test", "", 0L)
    try {
      ui.bind()
      val queries = new TrackedQueries
      queries.begin(run, decision, () => None)
      ui.attachTab(new CecTab(ui, queries, NoLooks))
      body(s"http://localhost:${ui.boundPort}")
    } finally ui.stop()
  }

  private def statusFor(user: String, url: String): Int = {
    val connection = new URI(url).toURL.openConnection().asInstanceOf[HttpURLConnection]
    connection.setRequestProperty(HeaderFilter.Header, user)
    try connection.getResponseCode finally connection.disconnect()
  }

  test("with access lists, only those who may see the application see the tab and its JSON") {
    withTab(new SparkConf(false).set("spark.acls.enable", "true").set("spark.ui.view.acls", "alice")) { root =>
      for (page <- "jobs/" +: (pages ++ json)) {
        assert(statusFor("alice", s"$root/$page") == 200, page)
        assert(statusFor("bob", s"$root/$page") == 403, page)
      }
    }
  }

  test("without access lists everybody sees it") {
    withTab(new SparkConf(false)) { root =>
      for (page <- pages ++ json) assert(statusFor("bob", s"$root/$page") == 200, page)
    }
  }
}
