"""A pipeline under a protocol: what cannot be had is refused, and all flows go back to one line, crashes or not."""

from __future__ import annotations

import contextlib
import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from spark_cec.adapters.fsspec_storage import open_storage
from spark_cec.agent.owner import claim_log
from spark_cec.errors import DamagedLog, NewerFormat, UnsuitableCheckpoint
from spark_cec.log.checked_json import canonical
from spark_cec.log.frame import crc32c
from spark_cec.log.home import read_log_id
from spark_cec.log.manifest import retire
from spark_cec.pipeline import protocol
from spark_cec.pipeline.declare import Declaration
from spark_cec.pipeline.graph import Graph, GraphError, Node
from spark_cec.pipeline.home import PipelineHome
from spark_cec.pipeline.protocol import ROLLBACK_FILE, Checkpointing, Lines, checkpointing_of
from spark_cec.protocols.choose import Protocol
from spark_cec.protocols.records import Record, Records, read_records
from spark_cec.protocols.spec import SPEC_FILE, Spec, read_spec, write_spec
from spark_cec.protocols.words import Checkpoint
from spark_cec.recovery.query_files import QUERY
from spark_cec.recovery.spark_logs import committed_batch
from tests.recovery.support import Crash, Crashing, Query

GRAPH = Graph("shop", {"a": Node("a"), "b": Node("b", ("a",)), "out": Node("out", ("b",), is_sink=True)})
UNC = Checkpointing(Protocol.UNCOORDINATED)


@pytest.mark.parametrize(("said", "message"), [
    ({"protocol": "uncordinated"}, "there is no protocol 'uncordinated': did you mean uncoordinated?"),
    ({"protocol": "x"}, "cec, coordinated, uncoordinated, communication-induced, bcs, none"),
    ({"checkpoint_interval": "soon"}, "give a duration such as 5s, or a number of seconds"),
    ({"checkpoint_interval": 0}, "checkpoint_interval=0: give more than 0"),
    ({"release": "later"}, "release='later': give checkpoint or at-once"),
    ({"protocol": "none"}, "nothing is ever safe from a failure: say release='at-once'"),
])  # fmt: skip
def test_what_there_is_not_is_refused(said: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(GraphError, match=message):
        Declaration("shop", str(tmp_path), **said)


def test_what_is_said_is_meant() -> None:
    assert checkpointing_of("shop", "cec", "5s", "checkpoint") == Checkpointing()
    found = checkpointing_of("shop", "communication-induced", "1500ms", "at-once")
    assert found == Checkpointing(Protocol.CIC, 1.5, at_once=True)
    assert found.taking_part(GRAPH) == {"a": (), "b": ("a",), "out": ("b",)}
    assert UNC.taking_part(GRAPH) == {"a": (), "b": ("a",)}


def declared(home: Path, **how: Any) -> Declaration:
    made = Declaration("shop", str(home), **how)
    made.flow(name="a", schema="id BIGINT")(lambda spark: spark)
    return made


def test_coordinated_refuses_cycles_by_name(tmp_path: Path) -> None:
    made = declared(tmp_path, protocol="coordinated")
    made.flow(name="b", schema="id BIGINT")(lambda a, c: a)
    made.flow(name="c")(lambda b: b)
    with pytest.raises(GraphError, match=r"where flows feed themselves \((b -> c -> b|c -> b -> c)\): take"):
        made.graph()


@pytest.mark.parametrize("trigger", [{"availableNow": True}, {"once": True}])
def test_flows_that_end_are_refused(trigger: dict[str, Any], tmp_path: Path) -> None:
    made = declared(tmp_path, protocol="uncoordinated")
    made.flow(name="b", trigger=trigger, kept=True)(lambda a: a)
    with pytest.raises(GraphError, match=r"b has trigger=.*: under protocol='uncoordinated' a failure may"):
        made.graph()


@pytest.mark.parametrize(("then", "now", "message"), [
    ("uncoordinated", "coordinated", "with protocol='uncoordinated', and is to go on with protocol='coordinated'"),
    ("cec", "none", "begun with protocol='cec'"), ("coordinated", "cec", "with protocol='cec': say that again, or"),
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
    with pytest.raises(GraphError, match="begun without new: under protocol='uncoordinated' flows cannot be added"):
        home.take(more, {}, UNC)
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


class Shop:
    """Two flows that have committed batches 0 to 5; b has read what a has sent after its last checkpoint."""

    def __init__(self, home: Path) -> None:
        self.home, self.storage = home, open_storage(str(home))
        self.queries = {name: Query(home / "flows" / name) for name in ("a", "b")}
        for query in self.queries.values():
            QUERY.write(query.own, {"log_home": "cec/log", "log_id": "0" * 32, "generation": 2})
        self.record("a", Checkpoint("a", 1, 3), 2)
        self.record("a", Checkpoint("a", 2, 5), 4)
        self.record("b", Checkpoint("b", 1, 2, {"a": 2}), 1)
        self.record("b", Checkpoint("b", 2, 4, {"a": 5}), 3)
        self.record("b", Checkpoint("b", 3, 6, {"a": 6}), 5)  # of no use: batch 5 of a was sent after its checkpoint

    def records(self, name: str) -> Records:
        return read_records(self.queries[name].own, name, ("a",) if name == "b" else ())

    def record(self, name: str, at: Checkpoint, batch: int) -> None:
        self.records(name).add(Record(at, batch))

    def is_back(self) -> None:
        for name, batch in (("a", 4), ("b", 3)):
            assert [each.checkpoint.number for each in self.records(name).known] == [0, 1, 2]
            assert committed_batch(self.queries[name].checkpoint) == batch
            self.queries[name].is_back_at(batch)
        assert not (self.home / ROLLBACK_FILE).exists()


def test_all_go_back_to_the_line(tmp_path: Path) -> None:
    shop, lines = Shop(tmp_path), Lines(str(tmp_path), GRAPH, UNC)
    lines.go_back(["b"])
    shop.is_back()
    told = json.loads((tmp_path / "rollbacks" / "0000000001.json").read_text())
    assert told["failed"] == ["b"]
    assert told["flows"]["b"] == {"batch": 3, "batches": 2, "checkpoint": 2, "invalid": 1}
    spec = read_spec(open_storage(str(tmp_path)))
    assert spec is not None and spec.number == 1 and spec.inputs == {"a": (), "b": ("a",)}
    for name, takes_part in (("a", True), ("b", True), ("out", False)):
        conf = {key.rpartition("cec.")[2]: value for key, value in lines.conf_of(name).items()}
        assert conf["protocol.run"] == spec.run and conf["protocol.flow"] == name
        assert ("protocol" in conf) is takes_part is lines.takes_part(name)
    lines.go_back()
    later = read_spec(open_storage(str(tmp_path)))
    assert later is not None and later.number == 2 and later.run > spec.run


def test_a_copied_pipeline_does_not_take_back_the_output_of_the_original(tmp_path: Path) -> None:
    """Its flows' logs lie outside, by `log.path`: they are the original's."""
    shop, log = Shop(tmp_path / "shop"), tmp_path / "logs" / "a"
    log.parent.mkdir()
    (shop.home / "flows" / "a" / "cec" / "log").rename(log)
    log_id = read_log_id(open_storage(str(log)))
    QUERY.write(shop.queries["a"].own, {"log_home": str(log), "log_id": log_id, "generation": 2})
    claim_log(str(shop.home / "flows" / "a"), str(log))
    shutil.copytree(shop.home, tmp_path / "copy")
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    with pytest.raises(UnsuitableCheckpoint, match=f"the log at {log} belongs to the checkpoint {shop.home}/flows/a"):
        Lines(str(tmp_path / "copy"), GRAPH, UNC).go_back()
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before
    Lines(str(shop.home), GRAPH, UNC).go_back()
    assert committed_batch(shop.queries["a"].checkpoint) == 4


def test_a_crash_at_any_step_is_mended_by_the_same_steps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where the line that would be found then is another one, since some of its checkpoints are gone already."""
    left = [-1]
    monkeypatch.setattr(protocol, "open_storage", lambda place: Crashing(open_storage(place), left))
    whole = Shop(tmp_path / "whole")
    left[0] = 10_000
    Lines(str(whole.home), GRAPH, UNC).go_back()
    steps = 10_000 - left[0]
    assert steps > 15
    for crash in range(steps):
        left[0] = -1
        shop = Shop(tmp_path / str(crash))
        left[0] = crash
        with pytest.raises(Crash):
            Lines(str(shop.home), GRAPH, UNC).go_back()
        left[0] = -1
        Lines(str(shop.home), GRAPH, UNC).go_back()
        shop.is_back()


def test_a_line_that_is_damaged_on_the_way_back_is_left_for_an_older_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """After a crash at any step: what is left of either history is in none of the flows."""
    left = [-1]
    monkeypatch.setattr(protocol, "open_storage", lambda place: Crashing(open_storage(place), left))
    for crash in range(1, 30):
        left[0] = -1
        shop = Shop(tmp_path / str(crash))
        left[0] = crash
        with contextlib.suppress(Crash):
            Lines(str(shop.home), GRAPH, UNC).go_back()
        left[0] = -1
        (shop.home / "flows/b/cec/checkpoints/0000000002.json").write_text("{")
        Lines(str(shop.home), GRAPH, UNC).go_back()
        assert [committed_batch(query.checkpoint) for query in shop.queries.values()] == [4, 1], f"step {crash}"
        assert [each.checkpoint.number for each in shop.records("b").known] == [0, 1]
        shop.queries["b"].is_back_at(1)
    assert "cannot be gone to any more (checkpoint 2 of flow b cannot be read)" in caplog.text


def test_a_damaged_checkpoint_is_none(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    shop = Shop(tmp_path)
    (tmp_path / "flows/b/cec/checkpoints/0000000002.json").write_text("{")
    Lines(str(tmp_path), GRAPH, UNC).go_back()
    assert committed_batch(shop.queries["b"].checkpoint) == 1
    assert "an older checkpoint is used" in caplog.text
    left = (tmp_path / "flows/b/cec/checkpoints").iterdir()
    assert [path.name for path in left] == ["0000000001.json"], "it would be taken for one of the history to come"


def test_a_checkpoint_whose_batch_spark_has_lost_is_none(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    shop = Shop(tmp_path)
    for name in ("commits/4", "commits/5", "offsets/5", "offsets/6"):
        shop.queries["a"].checkpoint.delete(name)
    Lines(str(tmp_path), GRAPH, UNC).go_back()
    assert committed_batch(shop.queries["a"].checkpoint) == 2
    assert committed_batch(shop.queries["b"].checkpoint) == 1
    assert "which Spark's logs there do not have whole" in caplog.text


def test_a_checkpoint_whose_batch_is_empty_is_none(tmp_path: Path) -> None:
    """A power loss leaves names of files, and nothing in them."""
    shop = Shop(tmp_path)
    shop.queries["a"].checkpoint.replace("commits/4", b"")
    Lines(str(tmp_path), GRAPH, UNC).go_back()
    assert committed_batch(shop.queries["a"].checkpoint) == 2


def test_a_checkpoint_behind_a_batch_that_is_empty_is_none(tmp_path: Path) -> None:
    """Spark would read the plan of that one as it starts."""
    shop = Shop(tmp_path)
    shop.queries["a"].checkpoint.replace("offsets/3", b"")
    Lines(str(tmp_path), GRAPH, UNC).go_back()
    assert committed_batch(shop.queries["a"].checkpoint) == 2


@pytest.mark.parametrize("damage", ["", "{", None, "older"])
def test_runs_are_counted_without_the_file_that_says_so(
    damage: str | None, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A number that was had before would put the round of a stop below older ones."""
    shop, path = Shop(tmp_path), tmp_path / SPEC_FILE
    for _ in range(2):
        Lines(str(tmp_path), GRAPH, UNC).go_back()
    if damage == "older":
        write_spec(shop.storage, Spec(Protocol.UNCOORDINATED, 5.0, {"a": (), "b": ("a",)}, 1, "older"))
    elif damage is None:
        path.unlink()
    else:
        path.write_text(damage)
    Lines(str(tmp_path), GRAPH, UNC).go_back()
    found = read_spec(shop.storage)
    assert found is not None and found.number == 3
    assert (f"{path} cannot be read" in caplog.text) is (damage in ("", "{"))


def test_a_file_of_a_newer_release_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    shop = Shop(tmp_path)
    fields = {"format_version": 99}
    shop.storage.replace(SPEC_FILE, canonical({**fields, "crc32c": crc32c(canonical(fields))}))
    with pytest.raises(NewerFormat):
        Lines(str(tmp_path), GRAPH, UNC).go_back()
    assert not (tmp_path / ROLLBACK_FILE).exists()
    assert committed_batch(shop.queries["b"].checkpoint) == 5


@pytest.mark.parametrize("damage", ["line", "plan"])
def test_a_line_that_was_written_down_and_is_out_of_reach_is_left(
    damage: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    shop = Shop(tmp_path)
    (tmp_path / ROLLBACK_FILE).write_text("{" if damage == "line" else json.dumps({"line": {"a": 2, "b": 2}}))
    if damage == "plan":
        shop.queries["a"].checkpoint.delete("offsets/3")
    Lines(str(tmp_path), GRAPH, UNC).go_back()
    assert committed_batch(shop.queries["a"].checkpoint) == (4 if damage == "line" else 2)
    assert "which cannot be gone to any more" in caplog.text


def test_nothing_is_written_where_a_flow_cannot_go(tmp_path: Path) -> None:
    """Else each start would try the same again."""
    shop = Shop(tmp_path)
    retire(shop.queries["a"].log, 6)
    with pytest.raises(UnsuitableCheckpoint, match="its output is kept from batch 6 on"):
        Lines(str(tmp_path), GRAPH, UNC).go_back()
    assert not (tmp_path / ROLLBACK_FILE).exists()
    assert committed_batch(shop.queries["b"].checkpoint) == 5


def test_checkpoints_that_are_all_damaged_are_not_the_beginning(tmp_path: Path) -> None:
    """It was forgotten when they were taken: to begin there would be a silent loss."""
    shop = Shop(tmp_path)
    shop.records("b").forget_before(2)
    for path in (tmp_path / "flows/b/cec/checkpoints").iterdir():
        path.write_text("{")
    with pytest.raises(DamagedLog, match="none of the 2 checkpoints of flow b can be read: restore one"):
        Lines(str(tmp_path), GRAPH, UNC).go_back()
    assert committed_batch(shop.queries["b"].checkpoint) == 5
