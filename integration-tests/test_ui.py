"""The tab in Spark's user interface, in a real browser: a query runs, replays, is back, and another one fails."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import urlsplit
from urllib.request import urlopen

import pytest
from selenium.webdriver.chrome.webdriver import WebDriver
from selenium.webdriver.common.by import By

from cec_it.browser import Application, application, browser, complaints, heading_of, heads_of, rows_of, why_no_browser
from cec_it.ui_names import HOSTILE, QUOTED

pytestmark = pytest.mark.skipif(why_no_browser() is not None, reason=f"no browser: {why_no_browser()}")

CEC_TABLES = ("cec-queries", "cec-operators", "cec-ages", "cec-recoveries")


def test_a_query_runs_replays_and_fails_before_a_browser(tmp_path: Path) -> None:
    with application(tmp_path / "job") as app, browser() as chromium:
        app.do("run")
        chromium.get(app.url)  # Spark's first page
        chromium.find_element(By.LINK_TEXT, "CEC").click()
        while_it_runs(app, chromium)
        app.do("replay")
        while_it_replays(app, chromium)
        app.do("go-on")
        after_the_restart(app, chromium)
        app.do("fail")
        after_an_error(app, chromium)


def while_it_runs(app: Application, chromium: WebDriver) -> None:
    """The tables have what the JSON says, sort by each column, and each link leads to a page."""
    rows = {row[0]: row for row in rows_of(chromium, "cec-queries")}
    assert set(rows) == {HOSTILE, QUOTED}
    assert rows[HOSTILE][1].startswith("running") and "deferred" in rows[HOSTILE][2] and "eager" in rows[QUOTED][2]
    told = app.query(HOSTILE)
    assert rows[HOSTILE][5].startswith(f"{told['q']['value']} of {told['q']['bound']}")
    assert told["u"]["value"] > 0 and told["reach"]["batches"] == int(rows[HOSTILE][7].split()[0]) > 0
    assert app.query(QUOTED)["reach"]["batches"] == 0
    sort_each_column(chromium, "cec-queries")
    follow_links(app, chromium)
    chromium.find_element(By.LINK_TEXT, HOSTILE).click()
    assert heading_of(chromium) == f"Spark CEC: {HOSTILE}"
    assert "hacked" in chromium.title and "<script>" in chromium.title, "the name itself, and not what it would do"
    assert len(chromium.find_elements(By.CSS_SELECTOR, "#cec-charts svg polyline")) == 9
    for table in CEC_TABLES[1:-1]:
        assert rows_of(chromium, table)
        sort_each_column(chromium, table)
    windows = sum(int(row[1]) for row in rows_of(chromium, "cec-ages"))
    assert windows == told["newest"]["open_windows"]
    detail = app.read(f"/cec/query/json?id={told['id']}")
    assert [each["batch"] for each in detail["samples"]][-1] == told["batch"]
    assert sum(each["windows"] for each in detail["footprint_ages"]) == windows
    follow_links(app, chromium)
    chromium.find_element(By.PARTIAL_LINK_TEXT, "Spark's page").click()
    assert app.runs[HOSTILE] in chromium.page_source
    chromium.get(f"{app.url}/cec/query/?id=<script>alert(1)</script>")
    assert "knows no such query" in chromium.page_source
    assert complaints(chromium) == []


def while_it_replays(app: Application, chromium: WebDriver) -> None:
    """The page says how far the replay is, while the replay's tasks wait."""
    chromium.get(f"{app.url}/cec/")
    row = next(row for row in rows_of(chromium, "cec-queries") if row[0] == HOSTILE)
    told = app.query(HOSTILE)
    assert told["state"] == "replaying" and told["replay_progress"]["batches"] >= 1
    assert row[1].startswith("replaying") and f"of {told['replay_progress']['batches']} batches" in row[1]


def after_the_restart(app: Application, chromium: WebDriver) -> None:
    """The page has the recovery, and the samples of before."""
    told = app.query(HOSTILE)
    assert told["state"] == "running" and told["recoveries"][0]["proved_right"]
    chromium.get(f"{app.url}/cec/query/?id={told['id']}")
    (recovery,) = rows_of(chromium, "cec-recoveries")
    assert recovery[4] == "yes" and recovery[3] == str(told["recoveries"][0]["replayed_batches"])
    batches = [each["batch"] for each in app.read(f"/cec/query/json?id={told['id']}")["samples"]]
    assert batches == sorted(batches) and batches[0] < 6 <= batches[-1]


def after_an_error(app: Application, chromium: WebDriver) -> None:
    """The page says why, and the error's own words do nothing."""
    chromium.get(f"{app.url}/cec/")
    row = next(row for row in rows_of(chromium, "cec-queries") if row[0] == "a query that fails")
    assert row[1] == "failed" and row[-1].startswith("the query has failed: ValueError: <img src=x")
    assert "ValueError" in chromium.find_element(By.CSS_SELECTOR, ".alert-danger").text
    chromium.find_element(By.LINK_TEXT, "a query that fails").click()
    chromium.find_element(By.TAG_NAME, "summary").click()
    assert "Traceback" in chromium.find_element(By.TAG_NAME, "pre").text
    assert chromium.title.endswith("Spark CEC: a query that fails")
    assert complaints(chromium) == []


def sort_each_column(chromium: WebDriver, table: str) -> None:
    """A click on a head sorts, and a second one turns the order around."""
    for column, _ in enumerate(heads_of(chromium, table)):
        before = rows_of(chromium, table)
        heads_of(chromium, table)[column].click()
        first = rows_of(chromium, table)
        heads_of(chromium, table)[column].click()
        assert rows_of(chromium, table) == first[::-1]
        assert sorted(first) == sorted(before)


def follow_links(app: Application, chromium: WebDriver) -> None:
    """Every link of the page leads to a page of this application, and every script and style comes from it."""
    places = {str(link.get_attribute("href")) for link in chromium.find_elements(By.CSS_SELECTOR, ".container-fluid a")}
    loaded = chromium.find_elements(By.CSS_SELECTOR, "script[src], link[href]")
    places |= {str(each.get_attribute("src") or each.get_attribute("href")) for each in loaded}
    assert places
    for place in places:
        assert urlsplit(place).netloc == urlsplit(app.url).netloc
        with urlopen(place, timeout=30) as answer:
            assert answer.status == 200
