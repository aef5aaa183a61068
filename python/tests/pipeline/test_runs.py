"""The runs of a pipeline under a protocol: all flows go back to one line, whatever step a crash interrupts."""

from __future__ import annotations

import contextlib
import json
import shutil
from pathlib import Path

import pytest

from spark_cec.adapters.fsspec_storage import open_storage
from spark_cec.agent.owner import claim_log
from spark_cec.errors import DamagedLog, Fenced, NewerFormat, UnsuitableCheckpoint
from spark_cec.ids import StoreId
from spark_cec.log.catalog import Catalog
from spark_cec.log.checked_json import canonical
from spark_cec.log.frame import crc32c
from spark_cec.log.home import read_log_id, restore_log
from spark_cec.log.index import MemoryIndex
from spark_cec.log.manifest import retire
from spark_cec.log.output_rollbacks import read_cuts
from spark_cec.pipeline import runs
from spark_cec.pipeline.checkpointing import Checkpointing
from spark_cec.pipeline.facts import ROLLBACK_FILE
from spark_cec.pipeline.graph import Graph, Node
from spark_cec.pipeline.runs import ProtocolRuns
from spark_cec.protocols.choose import Protocol
from spark_cec.protocols.messages import Checkpoint
from spark_cec.protocols.records import Record, Records, read_records
from spark_cec.protocols.spec import SPEC_FILE, Spec, read_spec, write_spec
from spark_cec.recovery.attempts import CommittedAttempts
from spark_cec.recovery.decide import refuse_later_batches
from spark_cec.recovery.facts import read_ahead
from spark_cec.recovery.query_files import QUERY
from spark_cec.recovery.spark_logs import committed_batch
from tests.checkpoint.support import Log, Tip, record_table, request
from tests.log.support import LOG_ID
from tests.recovery.support import Crash, Crashing, Query

GRAPH = Graph("shop", {"a": Node("a"), "b": Node("b", ("a",)), "out": Node("out", ("b",), is_sink=True)})
UNC = Checkpointing(Protocol.UNCOORDINATED)


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
    shop, protocol = Shop(tmp_path), ProtocolRuns(str(tmp_path), GRAPH, UNC)
    protocol.begin_run(["b"])
    shop.is_back()
    told = json.loads((tmp_path / "rollbacks" / "0000000001.json").read_text())
    assert told["failed"] == ["b"]
    assert told["flows"]["b"] == {"batch": 3, "batches": 2, "checkpoint": 2, "invalid": 1}
    spec = read_spec(open_storage(str(tmp_path)))
    assert spec is not None and spec.number == 1 and spec.inputs == {"a": (), "b": ("a",)}
    for name, takes_part in (("a", True), ("b", True), ("out", False)):
        conf = {key.rpartition("cec.")[2]: value for key, value in protocol.make_conf(name).items()}
        assert conf["protocol.run"] == spec.run and conf["protocol.flow"] == name
        assert ("protocol" in conf) is takes_part is protocol.takes_part(name)
    protocol.begin_run()
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
        ProtocolRuns(str(tmp_path / "copy"), GRAPH, UNC).begin_run()
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before
    ProtocolRuns(str(shop.home), GRAPH, UNC).begin_run()
    assert committed_batch(shop.queries["a"].checkpoint) == 4


def test_a_crash_at_any_step_is_mended_by_the_same_steps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where the line that would be found then is another one, since some of its checkpoints are gone already."""
    left = [-1]
    monkeypatch.setattr(runs, "open_storage", lambda place: Crashing(open_storage(place), left))
    whole = Shop(tmp_path / "whole")
    left[0] = 10_000
    ProtocolRuns(str(whole.home), GRAPH, UNC).begin_run()
    steps = 10_000 - left[0]
    assert steps > 15
    for crash in range(steps):
        left[0] = -1
        shop = Shop(tmp_path / str(crash))
        left[0] = crash
        with pytest.raises(Crash):
            ProtocolRuns(str(shop.home), GRAPH, UNC).begin_run()
        left[0] = -1
        ProtocolRuns(str(shop.home), GRAPH, UNC).begin_run()
        shop.is_back()


def test_a_driver_that_was_paused_changes_nothing_beside_its_follower(tmp_path: Path) -> None:
    """It wakes up at any step. From then on it changes no file, and notes no stop."""
    for step in range(5):
        shop, left, before = Shop(tmp_path / str(step)), [step], dict[Path, bytes]()

        def confirm(shop: Shop = shop, left: list[int] = left, before: dict[Path, bytes] = before) -> None:
            left[0] -= 1
            if left[0] < 0:
                before.update({path: path.read_bytes() for path in shop.home.rglob("*") if is_data(path)})
                raise Fenced("another driver has the home")

        paused = ProtocolRuns(str(shop.home), GRAPH, UNC, confirm)
        with pytest.raises(Fenced):
            paused.begin_run()
            paused.note_stop()
        assert {path: path.read_bytes() for path in shop.home.rglob("*") if is_data(path)} == before, f"step {step}"
        ProtocolRuns(str(shop.home), GRAPH, UNC).begin_run()
        shop.is_back()


def is_data(path: Path) -> bool:
    return path.is_file() and path.name != "lock"


def test_a_line_that_is_damaged_on_the_way_back_is_left_for_an_older_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """After a crash at any step: what is left of either history is in none of the flows."""
    left = [-1]
    monkeypatch.setattr(runs, "open_storage", lambda place: Crashing(open_storage(place), left))
    for crash in range(1, 30):
        left[0] = -1
        shop = Shop(tmp_path / str(crash))
        left[0] = crash
        with contextlib.suppress(Crash):
            ProtocolRuns(str(shop.home), GRAPH, UNC).begin_run()
        left[0] = -1
        (shop.home / "flows/b/cec/checkpoints/0000000002.json").write_text("{")
        ProtocolRuns(str(shop.home), GRAPH, UNC).begin_run()
        assert [committed_batch(query.checkpoint) for query in shop.queries.values()] == [4, 1], f"step {crash}"
        assert [each.checkpoint.number for each in shop.records("b").known] == [0, 1]
        shop.queries["b"].is_back_at(1)
    assert "cannot reach its line any more (checkpoint 2 of flow b cannot be read)" in caplog.text


def test_a_damaged_checkpoint_is_none(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    shop = Shop(tmp_path)
    (tmp_path / "flows/b/cec/checkpoints/0000000002.json").write_text("{")
    ProtocolRuns(str(tmp_path), GRAPH, UNC).begin_run()
    assert committed_batch(shop.queries["b"].checkpoint) == 1
    assert "an older checkpoint is used" in caplog.text
    left = (tmp_path / "flows/b/cec/checkpoints").iterdir()
    assert [path.name for path in left] == ["0000000001.json"], "it would be taken for one of the history to come"


def test_a_checkpoint_whose_batch_spark_has_lost_is_none(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    shop = Shop(tmp_path)
    for name in ("commits/4", "commits/5", "offsets/5", "offsets/6"):
        shop.queries["a"].checkpoint.delete(name)
    ProtocolRuns(str(tmp_path), GRAPH, UNC).begin_run()
    assert committed_batch(shop.queries["a"].checkpoint) == 2
    assert committed_batch(shop.queries["b"].checkpoint) == 1
    assert "and Spark's logs there lack files of that batch" in caplog.text


def test_a_checkpoint_whose_batch_is_empty_is_none(tmp_path: Path) -> None:
    """A power loss leaves names of files, and nothing in them."""
    shop = Shop(tmp_path)
    shop.queries["a"].checkpoint.replace("commits/4", b"")
    ProtocolRuns(str(tmp_path), GRAPH, UNC).begin_run()
    assert committed_batch(shop.queries["a"].checkpoint) == 2


def test_a_checkpoint_behind_a_batch_that_is_empty_is_none(tmp_path: Path) -> None:
    """Spark would read the plan of that one as it starts."""
    shop = Shop(tmp_path)
    shop.queries["a"].checkpoint.replace("offsets/3", b"")
    ProtocolRuns(str(tmp_path), GRAPH, UNC).begin_run()
    assert committed_batch(shop.queries["a"].checkpoint) == 2


@pytest.mark.parametrize("damage", ["", "{", None, "older"])
def test_runs_are_counted_without_the_file_that_says_so(
    damage: str | None, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A number that was had before would put the round of a stop below older ones."""
    shop, path = Shop(tmp_path), tmp_path / SPEC_FILE
    for _ in range(2):
        ProtocolRuns(str(tmp_path), GRAPH, UNC).begin_run()
    if damage == "older":
        write_spec(shop.storage, Spec(Protocol.UNCOORDINATED, 5.0, {"a": (), "b": ("a",)}, 1, "older"))
    elif damage is None:
        path.unlink()
    else:
        path.write_text(damage)
    ProtocolRuns(str(tmp_path), GRAPH, UNC).begin_run()
    found = read_spec(shop.storage)
    assert found is not None and found.number == 3
    assert (f"{path} cannot be read" in caplog.text) is (damage in ("", "{"))


def test_a_file_of_a_newer_release_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    shop = Shop(tmp_path)
    fields = {"format_version": 99}
    shop.storage.replace(SPEC_FILE, canonical({**fields, "crc32c": crc32c(canonical(fields))}))
    with pytest.raises(NewerFormat):
        ProtocolRuns(str(tmp_path), GRAPH, UNC).begin_run()
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
    ProtocolRuns(str(tmp_path), GRAPH, UNC).begin_run()
    assert committed_batch(shop.queries["a"].checkpoint) == (4 if damage == "line" else 2)
    assert "cannot reach its line any more" in caplog.text


def test_nothing_is_written_where_a_flow_cannot_go(tmp_path: Path) -> None:
    """Else each start would try the same again."""
    shop = Shop(tmp_path)
    retire(shop.queries["a"].log, 6)
    with pytest.raises(UnsuitableCheckpoint, match="its output is kept from batch 6 on"):
        ProtocolRuns(str(tmp_path), GRAPH, UNC).begin_run()
    assert not (tmp_path / ROLLBACK_FILE).exists()
    assert committed_batch(shop.queries["b"].checkpoint) == 5


def test_checkpoints_that_are_all_damaged_are_not_the_beginning(tmp_path: Path) -> None:
    """It was forgotten when they were taken: to begin there would be a silent loss."""
    shop = Shop(tmp_path)
    shop.records("b").forget_before(2)
    for path in (tmp_path / "flows/b/cec/checkpoints").iterdir():
        path.write_text("{")
    with pytest.raises(DamagedLog, match="none of the 2 checkpoints of flow b can be read: restore one"):
        ProtocolRuns(str(tmp_path), GRAPH, UNC).begin_run()
    assert committed_batch(shop.queries["b"].checkpoint) == 5


def write_commits(query: Query, versions: int, generation: int) -> None:
    """A store's commits of these versions, as those of a sink whose rows go elsewhere: the log has no manifest."""
    shutil.rmtree(query.place / "cec/log/manifests")
    restore_log(query.log, LOG_ID)
    log, tip = Log(query.log), Tip()
    for version in range(1, versions + 1):
        before, (tip, records) = tip, tip.next({b"w": {b"w": b"%d" % version}}, set())
        made = request(StoreId(0, 0), before, tip, records, False, whole=True, generation=generation)
        log.commit(made, record_table(False, records))
    log.writer.close()


def lose_spark_files(query: Query, after: int) -> None:
    """Spark syncs none of its files: a power loss takes those after the last checkpoint."""
    for name in ("offsets", "commits"):
        for batch in range(after + 1, 7):
            for path in (f"{name}/.{batch}.crc", f"{name}/{batch}"):
                if query.checkpoint.exists(path):
                    query.checkpoint.delete(path)


def refuse_commits_ahead(query: Query, committed: int) -> None:
    """As a start of the flow does it."""
    catalog = Catalog(query.log, MemoryIndex(LOG_ID))
    catalog.refresh()
    attempts = CommittedAttempts(query.checkpoint, query.own, read_cuts(query.log).known, committed)
    refuse_later_batches(read_ahead(catalog.index, committed, attempts.allows), "/checkpoint", committed)


@pytest.mark.parametrize("protocol", [Protocol.UNCOORDINATED, Protocol.NONE])
def test_commits_that_outlive_sparks_files_are_taken_back(protocol: Protocol, tmp_path: Path) -> None:
    """Where the log is on another disk, and stores have written for a checkpoint that a power loss prevented."""
    shop, at_once = Shop(tmp_path), Checkpointing(protocol, at_once=True)
    query, line = shop.queries["b"], 3 if protocol is Protocol.UNCOORDINATED else -1
    write_commits(query, 6, generation=2)
    lose_spark_files(query, line)
    with pytest.raises(UnsuitableCheckpoint, match="the log is ahead of the checkpoint"):
        refuse_commits_ahead(query, line)
    ProtocolRuns(str(tmp_path), GRAPH, at_once).begin_run()
    assert committed_batch(query.checkpoint) == line
    refuse_commits_ahead(query, line)
    assert [cut.after for cut in read_cuts(query.log).known] == [line]
    ProtocolRuns(str(tmp_path), GRAPH, at_once).begin_run()
    assert len(read_cuts(query.log).known) == 1, "it is there already"


def test_a_commit_of_the_batch_that_was_under_way_is_left(tmp_path: Path) -> None:
    """Any crash leaves one, and a start expects it."""
    shop = Shop(tmp_path)
    query = shop.queries["b"]
    write_commits(query, 5, generation=2)
    lose_spark_files(query, 3)
    ProtocolRuns(str(tmp_path), GRAPH, UNC).begin_run()
    refuse_commits_ahead(query, 3)
    assert not read_cuts(query.log).known
