"""The tab in Spark's user interface: a pipeline, fifty queries, a proxy, a filter, and what it costs nobody."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import os
import re
import signal
import time
from collections import Counter
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.parse import quote, urlsplit
from urllib.request import Request, urlopen

import pytest
from selenium.webdriver.common.by import By

from cec_it.browser import Application, application, browser, complaints, heading_of, rows_of, why_no_browser
from cec_it.local import eventually, kill
from cec_it.ui_job import KEYS, MANY
from cec_it.ui_names import HOSTILE, QUOTED

BROWSED = pytest.mark.skipif(why_no_browser() is not None, reason=f"no browser: {why_no_browser()}")
KEY = base64.urlsafe_b64encode(b"a key of thirty-two bytes or more").decode()
FILTER = "org.apache.spark.ui.JWSFilter"


@BROWSED
def test_a_pipeline_with_a_failed_flow(tmp_path: Path) -> None:
    with application(tmp_path / "job") as app, browser() as chromium:
        app.do("pipeline")
        (told,) = app.read("/cec/json")["pipelines"]
        flows = {flow["name"]: flow for flow in told["flows"]}
        assert flows["prices"]["state"] == "failed" and "<i>no</i> price" in flows["prices"]["why"]
        assert flows["alarms"]["state"] == "starving" and flows["alarms"]["why"].startswith("prices failed")
        assert flows["customers"]["state"] == "running" and flows["customers"]["inputs"] == ["orders"]
        chromium.get(f"{app.url}/cec/")
        chromium.find_element(By.LINK_TEXT, "shop").click()
        assert {row[0] for row in rows_of(chromium, "cec-flow-table")} == set(flows)
        assert len(chromium.find_elements(By.CSS_SELECTOR, "#cec-flows rect")) == len(flows)
        chromium.find_element(By.LINK_TEXT, "customers").click()
        assert heading_of(chromium) == "Spark CEC: customers"
        assert complaints(chromium) == []
        assert app.read(f"/cec/pipeline/json?home={quote(told['home'])}")["name"] == "shop"
        assert "error" in app.read("/cec/pipeline/json?home=file:/etc")


@BROWSED
def test_fifty_queries_in_one_session(tmp_path: Path) -> None:
    with application(tmp_path / "job") as app, browser(dark=True) as chromium:
        app.do("run")
        app.do("many")
        begun = time.monotonic()
        chromium.get(f"{app.url}/cec/")
        assert len(rows_of(chromium, "cec-queries")) == MANY + 2
        assert time.monotonic() - begun < 30
        assert chromium.find_element(By.TAG_NAME, "html").get_attribute("data-bs-theme") == "dark"
        assert complaints(chromium) == []


def test_links_of_a_proxy_and_a_filter(tmp_path: Path) -> None:
    """Spark's filter refuses a page without a token, and behind a proxy each link begins with the proxy's path."""
    conf = {"spark.ui.filters": FILTER, f"spark.{FILTER}.param.secretKey": KEY, "spark.ui.reverseProxy": "true"}
    with application(tmp_path / "job", conf) as app:
        app.do("run")
        for page in ("/cec/", "/cec/json", "/cec/query/json?id=1", "/cec/pipeline/"):
            with pytest.raises(HTTPError) as refused:
                urlopen(f"{app.url}{page}", timeout=30)
            assert refused.value.code == 403
        headers = {"Authorization": f"Bearer {make_token()}"}
        with urlopen(Request(f"{app.url}/cec/", headers=headers), timeout=30) as answer:
            page = answer.read().decode()
        assert len(re.findall(r'href="/proxy/[^/"]+/cec/query/\?id=', page)) == 2 and 'href="/cec/' not in page
        assert "<script>document.title" not in page and HOSTILE.replace("<", "&lt;").replace(">", "&gt;") in page


def test_another_application_goes_on_with_a_query(tmp_path: Path) -> None:
    """It shows the recovery, with what was foretold before."""
    with application(tmp_path / "job") as first:
        first.do("run")
        assert first.query(HOSTILE)["recoveries"] == []
    with application(tmp_path / "job") as second:
        second.do("run")
        found = eventually(lambda: recovered(second.query(HOSTILE)), "a recovery")
    (recovery,) = found["recoveries"]
    assert recovery["proved_right"] and recovery["replayed_batches"] > 0 and recovery["foretold_ms"] > 0
    assert found["state"] == "running" and found["batch"] == 11


@BROWSED
def test_the_ages_of_windows_come_from_all_executors(tmp_path: Path) -> None:
    """They are those of the keys that each batch read. An executor whose agent is silent is named."""
    cluster = {"spark.master": "local-cluster[2,1,768]", "spark.executor.memory": "768m"}
    conf = {**cluster, "spark.sql.shuffle.partitions": "4"}
    with application(tmp_path / "job", conf) as app, browser() as chromium:
        app.do("run")
        openings = count_ages(tmp_path / "job" / "clicks", is_eager=False)
        wanted = count_ages(tmp_path / "job" / "prices", is_eager=True)
        assert windows_by_class(read_complete(app, HOSTILE)) == openings
        assert windows_by_class(read_complete(app, QUOTED)) == wanted and len(wanted) > 1
        page = f"{app.url}/cec/query/?id={app.query(QUOTED)['id']}"
        chromium.get(page)
        assert sum(int(row[1]) for row in rows_of(chromium, "cec-ages")) == sum(wanted.values())
        stopped, other = app.executors_agents()
        os.kill(stopped, signal.SIGSTOP)
        try:
            begun = time.monotonic()
            known = app.read(page_of_json(app, QUOTED))
            assert time.monotonic() - begun < 10
        finally:
            os.kill(stopped, signal.SIGCONT)
        (missing,) = known["footprint_ages_missing"]
        assert re.fullmatch(r"executor [01] has not answered within 1\.5 s", missing)
        assert 0 < sum(windows_by_class(known).values()) < sum(wanted.values())
        assert windows_by_class(read_complete(app, QUOTED)) == wanted
        kill(other)
        known = app.read(page_of_json(app, QUOTED))
        (missing,) = known["footprint_ages_missing"]
        assert re.fullmatch(r"executor [01]: (no agent runs|its agent does not answer: .+)", missing)


def page_of_json(app: Application, name: str) -> str:
    """The path of a query's page as JSON."""
    return f"/cec/query/json?id={app.query(name)['id']}"


def read_complete(app: Application, name: str) -> dict[str, Any]:
    """What the query's page says, once it knows the last of the six batches and all executors answer."""

    def look() -> dict[str, Any] | None:
        known: dict[str, Any] = app.read(page_of_json(app, name))
        return known if known["batch"] == 5 and not known["footprint_ages_missing"] else None

    return eventually(look, "the last batch, and an answer of all executors")


def windows_by_class(known: dict[str, Any]) -> dict[int, int]:
    """The windows of a page by the first age of their class."""
    return {each["first_batches"]: each["windows"] for each in known["footprint_ages"]}


def count_ages(checkpoint: Path, *, is_eager: bool) -> dict[int, int]:
    """The same by the files that Spark says each batch has read.

    An eager commit writes each key of the batch. The other query writes a key when it comes first, and not again.
    """
    newest: dict[int, int] = {}
    batches = sorted(int(entry.name) for entry in (checkpoint / "offsets").iterdir() if entry.name.isdigit())
    for batch in batches:
        for line in (checkpoint / "sources" / "0" / str(batch)).read_text().splitlines()[1:]:
            rows = Path(urlsplit(json.loads(line)["path"]).path).read_text().splitlines()
            for key in {json.loads(row)["value"] % (KEYS * 10) for row in rows}:
                newest[key] = batch if is_eager else newest.get(key, batch)
    ages = Counter(max(first for first in (0, 1, 2, 5) if first <= batches[-1] - batch) for batch in newest.values())
    return dict(ages)


def recovered(query: dict[str, Any]) -> dict[str, Any] | None:
    """The query, once it has a recovery."""
    return query if query["recoveries"] else None


def test_without_a_user_interface_a_query_runs_as_before(tmp_path: Path) -> None:
    with application(tmp_path / "job", {"spark.ui.enabled": "false"}) as app:
        app.do("run")
        assert app.url == "None"


def make_token() -> str:
    """A token that the filter accepts."""
    told = ({"alg": "HS256"}, {"user": "a"})
    parts = [base64.urlsafe_b64encode(json.dumps(each).encode()).rstrip(b"=") for each in told]
    signed = hmac.new(base64.urlsafe_b64decode(KEY), b".".join(parts), hashlib.sha256).digest()
    return b".".join([*parts, base64.urlsafe_b64encode(signed).rstrip(b"=")]).decode()
