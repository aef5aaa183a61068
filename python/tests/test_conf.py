"""The conf file and docs/settings.md agree with the settings that the code knows."""

from __future__ import annotations

import json
import re
from pathlib import Path

from spark_cec.settings import _KEYS, PREFIX, PROVIDER, PROVIDER_KEY, Settings, parse_settings

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
        "writeAt",
        "index.path",
        "spool.path",
        "recoveryTarget",
    )
}
"""Settings without a fixed default: the file shows an example."""
SHOWN = ("Q", "U", "CI", "CP", "effort", "footprintAge", "mode", "functions.orderFree", "sources.margin")
"""Settings whose default the file shows in any case."""


def lines(pattern: str) -> dict[str, str]:
    return dict(re.findall(pattern, CONF, flags=re.MULTILINE))


def test_the_one_line_is_the_only_one_that_does_something() -> None:
    assert lines(r"^([^#\s]\S*)\s+(\S+)$") == {PROVIDER_KEY: PROVIDER}


def test_the_defaults_shown_are_the_defaults() -> None:
    shown = lines(r"^# (spark\.\S+)\s+(\S+)$")
    assert EXAMPLES_ONLY | {PREFIX + key for key in SHOWN} <= shown.keys()
    assert parse_settings({key: value for key, value in shown.items() if key not in EXAMPLES_ONLY}) == Settings()
    parse_settings({key: value for key, value in shown.items() if key not in {PREFIX + "Q", PREFIX + "U"}})


METRIC = re.compile(r"_cec_(?:query_(?:\.\*|\(\.\*\))|agent|windows)_(\w+)_Value")
"""A metric in an expression of Prometheus, by the name that Spark is told."""


def told() -> set[str]:
    """The metrics that Spark is told."""
    sources = ROOT / "jvm-shim" / "src" / "main" / "scala" / "org" / "apache" / "spark" / "sql" / "cec" / "metrics"
    code = "".join(path.read_text() for path in sources.glob("*Source.scala"))
    return set(re.findall(r'gauge\("(\w+)"\)', code)) | set(re.findall(r'"(\w+)" -> "cec\w+"', code))


def test_the_dashboard_shows_what_spark_is_told() -> None:
    dashboard = (ROOT / "conf" / "grafana-dashboard.json").read_text()
    shown = set(METRIC.findall(dashboard))
    assert {panel["type"] for panel in json.loads(dashboard)["panels"]} == {"timeseries"}
    assert told() - shown == {"batch"} and shown < told()
    page = (ROOT / "docs" / "watching.md").read_text()
    assert {name for name in told() if f"`{name}`" not in page} == set()


def test_the_panels_do_not_lie_on_one_another() -> None:
    panels = json.loads((ROOT / "conf" / "grafana-dashboard.json").read_text())["panels"]
    places = [(each["gridPos"]["x"], each["gridPos"]["y"]) for each in panels]
    assert len(set(places)) == len({each["id"] for each in panels}) == len(panels)
    (restarts,) = [each for each in panels if each["title"] == "Agent restarts"]
    assert restarts["targets"][0]["expr"].endswith(" - 1"), "the first start is none"


def test_alerts_are_on_what_spark_is_told() -> None:
    rules = (ROOT / "conf" / "prometheus-alerts.yml").read_text()
    alerts = rules.split("- alert: ")[1:]
    exprs = [re.findall(r"^ +expr: (.+)$", each, flags=re.MULTILINE) for each in alerts]
    assert len(alerts) >= 6 and all(len(found) == 1 for found in exprs)
    named = [set(METRIC.findall(expr)) for (expr,) in exprs]
    assert all(len(names) == 1 for names in named), "what it selects, and what it takes the label from, are two"
    assert set.union(*named) < told() and {"alive", "starts", "replayBatchesLeft"} < set.union(*named)
    for each, (expr,) in zip(alerts, exprs, strict=True):
        assert re.match(r"SparkCec\w+\n", each) and expr.count("(") == expr.count(")")
        assert all(f" {key}: " in each for key in ("severity", "summary", "description")), each
        labels = set(re.findall(r"\$labels\.(\w+)", each))
        assert labels == set(re.findall(r'"(jvm|query)", "\$1"', expr)), each


SETTINGS_PAGE = (ROOT / "docs" / "settings.md").read_text()
OF_PIPELINES = {
    *("protocol", "protocol.home", "protocol.flow", "protocol.run"),
    *("replica", "replica.agreements", "replica.every"),
}
"""What a pipeline sets for its flows: named on the page, but in no row."""


GONE = {"liveStore"}
"""Settings of earlier releases that have no effect: named on the page, but in no row."""


def rows_of_settings() -> dict[str, str]:
    """The keys in the tables of the page, each with the cell of its default."""
    return dict(re.findall(r"^\| `([\w.]+)` \|.*\| ([^|]+) \|$", SETTINGS_PAGE, flags=re.MULTILINE))


def test_the_page_of_settings_has_every_key_once() -> None:
    named = re.findall(r"^\| `([\w.]+)` \|.*\|.*\|$", SETTINGS_PAGE, flags=re.MULTILINE)
    tables = SETTINGS_PAGE.split("## Which settings exclude others")[0]
    assert len(named) == len(set(named))
    assert set(rows_of_settings()) == _KEYS - OF_PIPELINES - GONE
    assert all(f"`{key}`" in tables for key in OF_PIPELINES | GONE)


def test_the_page_of_settings_shows_the_defaults_of_the_conf_file() -> None:
    shown = lines(r"^# (spark\.\S+)\s+(\S+)$")
    fixed = {key[len(PREFIX) :]: value for key, value in shown.items() if key not in EXAMPLES_ONLY}
    rows = rows_of_settings()
    assert {key[len(PREFIX) :] for key in shown} == set(rows)
    assert {key: rows[key] for key in fixed} == {key: f"`{value}`" for key, value in fixed.items()}
