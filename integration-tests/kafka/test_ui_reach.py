"""The tab in Spark's user interface says how far back a recovery would reach, against what a topic still has."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from urllib.request import urlopen

from typer.testing import CliRunner

from cec_it.browser import Application, application
from cec_it.driver import CEC
from cec_it.kafka_feed import Purchases
from cec_it.local import eventually
from spark_cec.cli.app import app as cec
from testbed.broker import Broker
from testbed.jars import CONNECTOR, jars
from testbed.topics import Topics

ROWS = 150
NEAR, FAR = 3, 7
"""How many offsets the partitions keep before those that a recovery needs."""


def test_the_tab_compares_the_reach_of_a_recovery_with_the_topic(
    broker: Broker, topics: Topics, topic: str, tmp_path: Path
) -> None:
    topics.create(topic, 2, retention_ms="86400000")
    topics.produce(topic, Purchases(seed=6, rows=ROWS).step(2))
    conf = {"spark.jars": ",".join(map(str, jars(CONNECTOR))), f"{CEC}sources.margin": "0.001"}
    with application(tmp_path / "job", conf) as app:
        app.do("topic", broker.address, topic)
        needs = read_needs(tmp_path / "job" / topic)
        assert needs["batches"] > 1
        first = {each["partition"]: each["from"] for each in needs["sources"][0]["offsets"]}
        needed = sum(each["to"] - each["from"] for each in needs["sources"][0]["offsets"])
        known = eventually(lambda: find_source(app, topic), "an answer of the topic")
        assert (known["spare_offsets"], known["spare_share"], known["needed_offsets"]) == (None, None, needed)
        topics.delete_before(topic, {0: first[0] - NEAR, 1: first[1] - FAR})
        known = eventually(lambda: find_source(app, topic, is_losing=True), "an answer of after the deletion")
        assert (known["spare_offsets"], known["needed_offsets"], known["gone"]) == (NEAR, needed, False)
        end = topics.ends(topic)[0][1]
        assert known["spare_share"] == NEAR / (end - first[0] + NEAR)
        assert f"still has {NEAR} offsets before that in {topic}-0" in known["text"]
        with urlopen(f"{app.url}/cec/", timeout=30) as answer:
            assert f"the source has {NEAR} offsets more" in answer.read().decode()
        topics.delete_before(topic, {0: first[0] + 1})
        reach = eventually(lambda: None if (now := read_reach(app, topic))["batches"] else now, "a flush")
        assert reach["sources"] == [], "nothing is needed of it"


def read_needs(checkpoint: Path) -> dict[str, Any]:
    """What a recovery would need of the topic, by `cec inspect`."""
    result = CliRunner().invoke(cec, ["inspect", str(checkpoint), "--json"])
    assert result.exit_code == 0, result.output
    needs: dict[str, Any] = json.loads(result.stdout)["needs_input"]
    return needs


def read_reach(app: Application, topic: str) -> dict[str, Any]:
    """How far back a recovery would reach, by the page; the agent may be too busy for an answer."""
    return eventually(lambda: app.query(topic)["reach"], "a reach")


def find_source(app: Application, topic: str, *, is_losing: bool = False) -> dict[str, Any] | None:
    """What the page says of the topic, once it says so; `is_losing`: once it knows of a lost offset."""
    found = [each for each in read_reach(app, topic)["sources"] if not is_losing or each["spare_offsets"] is not None]
    return found[0] if found else None
