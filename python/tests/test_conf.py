"""The conf file and the README agree with the settings that the code knows."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from spark_cec.settings import PREFIX, PROVIDER, PROVIDER_KEY, Settings, parse_settings

ROOT = Path(__file__).resolve().parents[2]
CONF = (ROOT / "conf" / "cec-defaults.conf").read_text()
EXAMPLES_ONLY = {
    PREFIX + key
    for key in (
        "log.path",
        "python",
        "driver.python",
        "output.retainBatches",
        "output.readers",
        "sources.replayable",
        "index.path",
        "spool.path",
        "recoveryTarget",
    )
}
"""Settings without a fixed default: the file shows an example."""
SHOWN = ("Q", "U", "CI", "CP", "effort", "footprintAge", "mode", "functions.orderFree", "sources.margin")
"""Settings whose default the file and the README show."""


def lines(pattern: str) -> dict[str, str]:
    return dict(re.findall(pattern, CONF, flags=re.MULTILINE))


def test_the_one_line_is_the_only_one_that_does_something() -> None:
    assert lines(r"^([^#\s]\S*)\s+(\S+)$") == {PROVIDER_KEY: PROVIDER}


def test_the_defaults_shown_are_the_defaults() -> None:
    shown = lines(r"^# (spark\.\S+)\s+(\S+)$")
    assert EXAMPLES_ONLY | {PREFIX + key for key in SHOWN} <= shown.keys()
    assert parse_settings({key: value for key, value in shown.items() if key not in EXAMPLES_ONLY}) == Settings()
    parse_settings({key: value for key, value in shown.items() if key not in {PREFIX + "Q", PREFIX + "U"}})


def test_the_dashboard_shows_what_spark_is_told() -> None:
    sources = ROOT / "jvm-shim" / "src" / "main" / "scala" / "org" / "apache" / "spark" / "sql" / "cec" / "metrics"
    code = "".join(path.read_text() for path in sources.glob("*Source.scala"))
    told = set(re.findall(r'gauge\("(\w+)"\)', code)) | set(re.findall(r'"(\w+)" -> "cec\w+"', code))
    dashboard = (ROOT / "conf" / "grafana-dashboard.json").read_text()
    shown = set(re.findall(r"_cec_(?:query_\.\*|agent)_(\w+)_Value", dashboard))
    assert {panel["type"] for panel in json.loads(dashboard)["panels"]} == {"timeseries"}
    assert told - shown == {"batch", "starts"} and shown < told
    page = (ROOT / "docs" / "operations.md").read_text()
    assert {name for name in told if f"`{name}`" not in page} == set()


@pytest.mark.parametrize("key", SHOWN)
def test_the_readme_shows_the_same_default(key: str) -> None:
    shown = lines(r"^# (spark\.\S+)\s+(\S+)$")[PREFIX + key]
    row = re.search(rf"^\| `{key}` \|.*\| `([^`]+)` \|$", (ROOT / "README.md").read_text(), flags=re.MULTILINE)
    assert row is not None
    assert row[1] == shown
