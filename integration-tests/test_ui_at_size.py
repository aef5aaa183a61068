"""The tab in Spark's user interface: a pipeline, fifty queries, a proxy, a filter, and what it costs nobody."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import re
import time
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.parse import quote
from urllib.request import Request, urlopen

import pytest
from selenium.webdriver.common.by import By

from cec_it.browser import application, browser, complaints, heading_of, rows_of, why_no_browser
from cec_it.local import eventually
from cec_it.ui_job import MANY
from cec_it.ui_names import HOSTILE

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
