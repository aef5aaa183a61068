"""The settings of a pipeline's checkpoints: what is refused, and what a home keeps."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from spark_cec.pipeline.checkpointing import Checkpointing, parse_checkpointing
from spark_cec.pipeline.declare import Declaration
from spark_cec.pipeline.graph import Graph, GraphError, Node
from spark_cec.pipeline.home import PipelineHome
from spark_cec.protocols.choose import Protocol

GRAPH = Graph("shop", {"a": Node("a"), "b": Node("b", ("a",)), "out": Node("out", ("b",), is_sink=True)})
UNC = Checkpointing(Protocol.UNCOORDINATED)


@pytest.mark.parametrize(("said", "message"), [
    ({"protocol": "uncordinated"}, "there is no protocol 'uncordinated': did you mean uncoordinated?"),
    ({"protocol": "x"}, "cec, coordinated, uncoordinated, communication-induced, bcs, none"),
    ({"checkpoint_interval": "soon"}, "give a duration such as 5s, or a number of seconds"),
    ({"checkpoint_interval": 0}, "checkpoint_interval=0: give more than 0"),
    ({"release": "later"}, "release='later': give checkpoint or at-once"),
    ({"protocol": "none"}, "a failure can take back every row: give release='at-once'"),
])  # fmt: skip
def test_what_there_is_not_is_refused(said: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(GraphError, match=message):
        Declaration("shop", str(tmp_path), **said)


def test_what_is_said_is_meant() -> None:
    assert parse_checkpointing("shop", "cec", "5s", "checkpoint") == Checkpointing()
    found = parse_checkpointing("shop", "communication-induced", "1500ms", "at-once")
    assert found == Checkpointing(Protocol.CIC, 1.5, at_once=True)
    assert found.list_participants(GRAPH) == {"a": (), "b": ("a",), "out": ("b",)}
    assert UNC.list_participants(GRAPH) == {"a": (), "b": ("a",)}


def declared(home: Path, **how: Any) -> Declaration:
    made = Declaration("shop", str(home), **how)
    made.flow(name="a", schema="id BIGINT")(lambda spark: spark)
    return made


def test_coordinated_refuses_cycles_by_name(tmp_path: Path) -> None:
    made = declared(tmp_path, protocol="coordinated")
    made.flow(name="b", schema="id BIGINT")(lambda a, c: a)
    made.flow(name="c")(lambda b: b)
    with pytest.raises(GraphError, match=r"cannot run on a cycle of flows \((b -> c -> b|c -> b -> c)\): choose"):
        made.graph()


@pytest.mark.parametrize("trigger", [{"availableNow": True}, {"once": True}])
def test_flows_that_end_are_refused(trigger: dict[str, Any], tmp_path: Path) -> None:
    made = declared(tmp_path, protocol="uncoordinated")
    made.flow(name="b", trigger=trigger, kept=True)(lambda a: a)
    with pytest.raises(GraphError, match=r"b has trigger=.*: under protocol='uncoordinated' a failure can"):
        made.graph()


@pytest.mark.parametrize(("then", "now", "message"), [
    ("uncoordinated", "coordinated", "with protocol='uncoordinated', and is to go on with protocol='coordinated'"),
    ("cec", "none", "begun with protocol='cec'"),
    ("coordinated", "cec", "with protocol='cec': give the former value, or"),
])  # fmt: skip
def test_a_home_keeps_its_protocol(then: str, now: str, message: str, tmp_path: Path) -> None:
    home = PipelineHome(str(tmp_path))
    home.take(GRAPH, {}, Checkpointing(Protocol(then)))
    home.release()
    for another in (home.take, lambda *how: home.announce(how[0], (), how[2])):
        with pytest.raises(GraphError, match=message):
            another(GRAPH, {}, Checkpointing(Protocol(now)))


def test_a_home_keeps_its_release_and_its_flows(tmp_path: Path) -> None:
    home = PipelineHome(str(tmp_path))
    home.take(GRAPH, {}, UNC)
    home.release()
    with pytest.raises(GraphError, match="release='checkpoint', and is to go on with release='at-once'"):
        home.take(GRAPH, {}, Checkpointing(Protocol.UNCOORDINATED, at_once=True))
    more = Graph("shop", {**GRAPH.nodes, "new": Node("new", ("b",), kept=True)})
    for check in (home.take, lambda *how: home.announce(how[0], (), how[2])):
        with pytest.raises(GraphError, match="begun without new: under protocol='uncoordinated' flows cannot be added"):
            check(more, {}, UNC)
    home.take(GRAPH, {}, UNC)


def test_a_home_of_before_is_one_of_cec(tmp_path: Path) -> None:
    home = PipelineHome(str(tmp_path))
    home.take(GRAPH, {})
    home.release()
    path = tmp_path / "pipeline.json"
    recorded = json.loads(path.read_text())
    del recorded["protocol"]
    path.write_text(json.dumps(recorded))
    home.take(GRAPH, {})
    home.release()
    with pytest.raises(GraphError, match="begun with protocol='cec'"):
        home.take(GRAPH, {}, UNC)
