"""`cec rollback`: what it says, what it refuses, and the old or the new state, whole, wherever it is killed."""

from __future__ import annotations

import fcntl
import itertools
import json
import re
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from spark_cec.adapters.fsspec_storage import open_storage
from spark_cec.admin import roll_back
from spark_cec.cli import rollback_command
from spark_cec.cli.app import app
from spark_cec.ids import StoreId
from spark_cec.log.catalog import Catalog
from spark_cec.log.home import read_log_id
from spark_cec.log.index import MemoryIndex
from spark_cec.log.manifest import batches, manifest_path, retire
from spark_cec.log.readers import ReaderTrail
from spark_cec.log.segment import segment_path
from spark_cec.log.storage import Storage
from spark_cec.recovery.generations import next_generation
from spark_cec.recovery.query_files import QUERY, ROLLBACK, Fallback, mark_migrated, save_carried, save_fallback
from spark_cec.recovery.spark_logs import committed_batch, planned_batches
from spark_cec.settings import PREFIX
from tests.agent.support import DECISION, Agent, Refused, window
from tests.checkpoint.support import Rows, Tip
from tests.cli.support import answer, files, run
from tests.recovery.support import Crashing

DIRTY, CLEAN = STORES = (StoreId(0, 0), StoreId(0, 1))
LAST = 8
PROVIDED = {**DECISION, "provider": True}


@dataclass
class Run:
    """A query of two stores whose batches 0 to `LAST` are committed, with output, and one more is planned.

    The first store's window `a` has the value of its newest batch, which is in the log if it is `eager`, else `0` is;
    the second one has a new window with each batch. Batch b reads 10 rows of a topic, up to 10 b + 10.
    """

    place: Path
    eager: bool = False
    states: dict[StoreId, list[Mapping[bytes, Rows]]] = field(default_factory=lambda: {store: [{}] for store in STORES})

    def __post_init__(self) -> None:
        self.agent = Agent(self.place.parent, self.place)
        generation = self.agent.begin_run(decision=PROVIDED)
        tips = dict.fromkeys(STORES, Tip())
        for batch in range(LAST + 1):
            self.plan(batch)
            tips = self.commit(batch, tips, generation)
            for store in STORES:
                self.states[store].append(tips[store].state)
        self.plan(LAST + 1)

    @property
    def path(self) -> str:
        return str(self.place)

    def plan(self, batch: int) -> None:
        planned = json.dumps({"batchTimestampMs": 1_700_000_000_000 + batch, "conf": {}})
        self.write("offsets", batch, f'v1\n{planned}\n{{"t":{{"0":{10 * batch + 10}}}}}')

    def commit(self, batch: int, tips: dict[StoreId, Tip], generation: int) -> dict[StoreId, Tip]:
        changes = {DIRTY: window(b"a", b"%d" % batch), CLEAN: window(b"%d" % batch, b"1")}
        checked = frozenset([b"a"] if self.eager else [])
        for store in STORES:
            about = {"inputs": 10, "generation": generation}
            tips[store] = self.agent.append(store, tips[store], changes[store], checked, **about)[0]
        made = {"batch": batch, "frames": [], "rows": 0, "schema": "{}", "truncate": False, "generation": generation}
        self.agent.ask("publish", **made, sources=["t"])
        self.write("commits", batch, 'v1\n{"nextBatchWatermarkMs":0}')
        return tips

    def write(self, log: str, batch: int, text: str) -> None:
        (self.place / log).mkdir(exist_ok=True, parents=True)
        (self.place / log / str(batch)).write_text(text)
        (self.place / log / f".{batch}.crc").write_text("crc")

    def forget(self, log: str, *numbers: int) -> None:
        """As the known recipe does it by hand."""
        for number in numbers:
            (self.place / log / str(number)).unlink()
            (self.place / log / f".{number}.crc").unlink()

    def start(self) -> tuple[int, dict[StoreId, list[Any]]]:
        """What the next start finds, or `Refused`: V, and, of each store, the windows that EC(V + 1) has."""
        agent = Agent(self.place.parent, self.place)
        try:
            committed = committed_batch(open_storage(self.path))
            agent.ask("check", sink_path=None, committed_batch=committed, provider=True, stateful=True)
            plan = agent.plan(committed, decision=PROVIDED)
            generation = agent.begin_run(committed, decision=PROVIDED)
            about = {"committed_batch": committed, "generation": generation, "retained": 100}
            found = {}
            for store in STORES:
                name = [store.operator, store.partition, store.name]
                loaded = agent.ask("load", store=name, version=plan["base"], **about)
                found[store] = sorted((row["window"], row["value"]) for row in agent.rows(loaded))
            return committed, found
        finally:
            agent.calls.close()

    def has_state_of(self, batch: int, found: dict[StoreId, list[Any]]) -> bool:
        """The window that is dirty is in the log as it opened, and those of the other store as they are."""
        clean = [(name, rows[name]) for name, rows in self.states[CLEAN][batch + 1].items()]
        return found == {DIRTY: [(b"a", b"%d" % batch if self.eager else b"0")], CLEAN: sorted(clean)}

    @property
    def log(self) -> Storage:
        return open_storage(f"{self.place}/cec/log")

    @property
    def output(self) -> list[int]:
        return batches(self.log)

    @property
    def planned(self) -> list[int]:
        return sorted(planned_batches(open_storage(self.path)))


@pytest.fixture
def query(tmp_path: Path) -> Iterator[Run]:
    made = Run(tmp_path / "checkpoint")
    yield made
    made.agent.calls.close()


def kept(query: Run) -> dict[str, tuple[bytes, int]]:
    """All but the lock, which says who has it."""
    return {name: content for name, content in files(query.place).items() if name != "cec/lock"}


def rollback(query: Run, *arguments: str) -> tuple[int, str, str]:
    result = run("rollback", query.path, *arguments)
    return result.exit_code, result.stdout, result.stderr


@pytest.fixture
def eager(tmp_path: Path) -> Iterator[Run]:
    made = Run(tmp_path / "eager", eager=True)
    yield made
    made.agent.calls.close()


@pytest.mark.parametrize("to", [0, 5, LAST - 1, LAST])
@pytest.mark.parametrize("name", ["query", "eager"])
def test_the_next_start_begins_where_the_batch_had_ended(
    name: str, to: int, request: pytest.FixtureRequest
) -> None:
    query: Run = request.getfixturevalue(name)
    code, said, _ = rollback(query, "--to", str(to), "--yes")
    assert code == 0, said
    assert query.planned == list(range(to + 1)) == query.output
    for place in (query.path, f"{query.path}/cec/log"):  # the agent of the run before has the log open still
        about = {"view": "windows", "operator": 0, "store": "default", "path": place}
        splits = query.agent.ask("view_splits", **about)["splits"]
        assert {each["version"] for each in splits} == {to + 1}
    committed, found = query.start()
    assert committed == to
    assert query.has_state_of(to, found)
    assert run("verify", query.path).exit_code == 0
    shown = answer(run("inspect", query.path, "--json"))
    assert {(store["version"], store["newest_version"]) for store in shown["stores"]} == {(to + 1, to + 1)}


def test_what_it_needs_and_costs_is_said_before_it_is_done(query: Run) -> None:
    before = files(query.place)
    code, said, _ = rollback(query, "--to", "5", "--dry-run")
    assert (code, files(query.place)) == (0, before)
    lines = [line.rstrip() for line in said.splitlines()]
    assert lines[0] == "back to     the end of batch 5, from batch 9"
    assert lines[1] == (
        "state       2 stores, whole in the log at version 6; the next start replays batches 1 to 5 (100 input tuples)"
    )
    assert lines[2].startswith("input       needed since batch 1 (t-0 from offset 10), ")
    assert lines[2].endswith(" ago: what came since is read again")
    output = "of the cec sink: 0 rows of batches 6 to 8 taken back; "
    assert lines[3] == f"output      {output}a stream that has read more than batch 5 stops by name"
    assert lines[4].startswith("other sinks have batches 6 to 9 already: rows come again")
    assert lines[5:] == ["nothing was changed"]


def test_programs_get_one_object(query: Run) -> None:
    told = answer(run("rollback", query.path, "--to", "5", "--dry-run", "--json"))
    assert (told["to_batch"], told["from_batch"], told["done"], told["generation"]) == (5, 9, False, None)
    assert told["replay"] == {"first": 1, "last": 5, "input_tuples": 100}
    assert told["needs_input"]["sources"][0]["offsets"] == [{"topic": "t", "partition": 0, "from": 10, "to": 60}]
    assert (told["stores"], told["output"]) == (2, {"first": 6, "last": 8, "rows": 0})
    assert (told["readers"], told["gone_files"], told["finishes"], told["has_lock"]) == ({}, [], False, True)
    told = answer(run("rollback", query.path, "--to", "5", "--yes", "--json"))
    assert (told["done"], told["generation"]) == (True, 2)
    told = answer(run("rollback", query.path, "--to", "5", "--yes", "--json"))
    assert (told["done"], told["from_batch"], "replay" in told) == (False, 5, False)


def test_where_it_is_nothing_is_done(query: Run) -> None:
    assert rollback(query, "--to", str(LAST), "--yes")[0] == 0
    before = kept(query)
    code, said, _ = rollback(query, "--to", str(LAST), "--yes")
    assert (code, said) == (0, f"the query is at the end of batch {LAST} already: nothing to do\n")
    assert kept(query) == before


@pytest.mark.parametrize("note", [b"", b"{"])
def test_a_note_that_cannot_be_read_is_overtaken(query: Run, note: bytes) -> None:
    """It keeps starts away, although the query is where it is to be."""
    assert rollback(query, "--to", "5", "--yes")[0] == 0
    open_storage(f"{query.path}/cec").replace(ROLLBACK.name, note)
    with pytest.raises(Refused, match=f"cannot be read .*; run `cec rollback {query.path} --to BATCH`"):
        query.start()
    assert rollback(query, "--to", "5", "--yes")[0] == 0
    assert query.start()[0] == 5


@pytest.mark.parametrize("late", [[LAST + 1], [LAST + 2], [LAST + 1, LAST + 3]])
@pytest.mark.parametrize("lost", [0, 3], ids=["committed", "planned"])
def test_a_commit_that_a_run_wrote_late_is_refused_by_name_and_removed(
    late: list[int], lost: int, query: Run
) -> None:
    """As after a rollback by another machine, while the network of the run was cut off. Spark would run the batch
    before it again, and fail at its commit, at each start.
    """
    stays = LAST - lost
    for log, first in (("offsets", LAST + 1), ("commits", LAST)):
        query.forget(log, *range(stays + 1 + (log == "offsets" and lost > 0), first + 1))
    for batch in late:
        query.write("commits", batch, 'v1\n{"nextBatchWatermarkMs":0}')
    words = (
        rf"commits of .* are ahead of its offsets: commits/{late[-1]} is there, but the newest batch in offsets is "
        rf"{max(query.planned)}.* run `cec rollback .* --to {stays}`"
    )
    for _ in range(2):
        with pytest.raises(Refused, match=words) as failed:
            query.start()
        assert failed.value.kind == "UnsuitableCheckpoint"
    shown = run("inspect", query.path).stdout
    assert f"commits/{late[-1]} is ahead of the offsets" in " ".join(shown.split())
    assert answer(run("inspect", query.path, "--json"))["stray_commits"] == late
    code, said, error = rollback(query, "--to", str(stays), "--yes")
    assert code == 0, said + error
    assert f"the end of batch {stays}, from batch {late[-1]}" in said
    assert query.planned == list(range(stays + 1)) == query.output
    assert sorted(int(each.name) for each in (query.place / "commits").iterdir() if each.name.isdigit())[-1] == stays
    committed, found = query.start()
    assert committed == stays and query.has_state_of(stays, found)
    assert answer(run("inspect", query.path, "--json"))["stray_commits"] == []


def test_people_are_asked(query: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    before = kept(query)
    for more in ((), ("--json",)):
        code, _, error = rollback(query, "--to", "5", *more)
        assert code == 2 and "nobody can be asked here: give --yes, or --dry-run" in error
    monkeypatch.setattr(rollback_command, "can_ask", lambda: True)
    for told, left in (("n\n", LAST), ("", LAST), ("y\n", 5)):
        result = CliRunner().invoke(app, ["rollback", query.path, "--to", "5"], input=told)
        assert "Go back? [y/N]" in result.stderr and "Go back" not in result.stdout
        assert result.exit_code == (0 if left == 5 else 2)
        assert committed_batch(open_storage(query.path)) == left
        if left == LAST:
            assert result.stdout.splitlines()[-1].strip() == "nothing was changed" and kept(query) == before


def test_a_query_that_runs_is_refused(query: Run) -> None:
    committed = committed_batch(open_storage(query.path))
    query.agent.ask("hold", wait_s=1, generation=query.agent.begin_run(committed, decision=PROVIDED))
    before = files(query.place)
    for arguments in (("--yes",), ("--dry-run",)):
        code, _, error = rollback(query, "--to", "5", *arguments)
        assert code == 2 and "running" in error and "stop that run first" in error
    assert files(query.place) == before


def test_no_run_begins_meanwhile(query: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def is_locked(way: roll_back.WayBack) -> int:
        with (query.place / "cec" / "lock").open() as other, pytest.raises(BlockingIOError):
            fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return 7

    monkeypatch.setattr(roll_back, "go_back", is_locked)
    assert answer(run("rollback", query.path, "--to", "5", "--yes", "--json"))["generation"] == 7


@pytest.mark.parametrize(
    ("to", "change", "words"),
    [
        pytest.param(9, None, "ends at batch 8: give a batch before that$", id="later"),
        pytest.param(2, "old batches", r"batches 4 to 9, .*minBatchesToRetain .*; the nearest .* is 5$", id="old"),
        pytest.param(4, "old batches", r"have this one and the one before it .*; the nearest .* is 5$", id="the first"),
        pytest.param(5, "a commit", r"have this one and .*; the nearest .* is 6$", id="a lost commit"),
        pytest.param(3, "output", r"output is kept from batch 6 on .*; the nearest .* is 5$", id="output"),
        pytest.param(3, "carried", r"carried here .*, as batch 5 had left it; the nearest .* is 5$", id="carried"),
        pytest.param(3, "left", r"left\.json: the state of this checkpoint was carried to another one", id="left"),
        pytest.param(3, "protocol", "flow under a checkpointing protocol", id="a flow under a protocol"),
        pytest.param(3, "copy", "the log is ahead of the checkpoint: .*run 5.*; restore both", id="an older copy"),
        pytest.param(3, "frame", r"has not all of the state .*version 4; .*; the nearest .* is 4$", id="log"),
    ],
)
def test_what_cannot_be_done_is_refused_by_name(eager: Run, to: int, change: str | None, words: str) -> None:
    own, log = open_storage(f"{eager.path}/cec"), open_storage(f"{eager.path}/cec/log")
    if change == "old batches":
        eager.forget("offsets", 0, 1, 2, 3)
    elif change == "a commit":
        eager.forget("commits", 5)
    elif change == "output":
        retire(log, 6)
    elif change == "carried":
        save_carried(own, 6)
    elif change == "left":
        mark_migrated(own, "/elsewhere")
    elif change == "protocol":
        QUERY.write(own, {**(QUERY.read(own) or {}), "settings_conf": {PREFIX + "protocol": "coordinated"}})
    elif change == "copy":
        eager.agent.append(CLEAN, Tip(version=LAST + 1), window(b"x"), whole=True, generation=5)
    elif change == "frame":
        damage(eager, CLEAN, 4, at=40)
    refused(eager, to, 2, words)


def refused(query: Run, to: int, code: int, words: str) -> None:
    """In one line that says why, and without a trace."""
    before = kept(query)
    for mode in ("--dry-run", "--yes"):
        found, said, error = rollback(query, "--to", str(to), mode)
        assert (found, said) == (code, ""), error
        assert error.startswith("cec rollback: ") and error.count("\n") == 1
        assert re.search(words, error.rstrip()), error
    assert kept(query) == before


def damage(query: Run, store: StoreId, version: int, at: int) -> None:
    """Flips a bit of the frame of a commit: in its header (`at` 40), or in its records, counted from its end."""
    catalog = Catalog(open_storage(f"{query.path}/cec/log"), MemoryIndex(str(read_log_id(query.log))))
    catalog.refresh()
    (entry,) = catalog.index.commits(store, version, version)
    segment = query.place / "cec" / "log" / segment_path(entry.location.segment)
    data = bytearray(segment.read_bytes())
    data[entry.location.offset + at if at > 0 else entry.location.end + at] ^= 0x40
    segment.write_bytes(data)


def test_damage_that_comes_during_a_rollback_is_repaired_and_the_rollback_finished(query: Run) -> None:
    """No other batch could be chosen any more, and no start is possible before."""
    own = open_storage(f"{query.path}/cec")
    ROLLBACK.write(own, {"batch": 5, "generation": next_generation(own)})
    damage(query, CLEAN, 6, -8)
    refused(query, 5, 1, "cannot be taken back to batch 5, whose state cannot be rebuilt")
    assert run("repair", query.path).exit_code == 0
    code, said, _ = rollback(query, "--to", "5", "--yes")
    assert code == 0 and "the next start replays batch" in said, said
    committed, found = query.start()
    assert committed == 5 and found[CLEAN] == [(b"%d" % each, b"1") for each in range(5)], "batch 5 is replayed"


@pytest.mark.parametrize(("is_done", "version"), [(False, 4), (True, 6)])
def test_a_fallback_that_a_run_has_carried_out_is_none(
    is_done: bool, version: int, query: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its note stays until the next start, and the state of its batch is whole again."""
    save_fallback(open_storage(f"{query.path}/cec"), Fallback(4, 5, 1))
    monkeypatch.setattr(roll_back, "is_fallback_done", lambda *_: is_done)
    assert f"whole in the log at version {version};" in rollback(query, "--to", "5", "--dry-run")[1]


def test_batches_that_the_replay_needs_and_spark_has_forgotten(query: Run) -> None:
    query.forget("offsets", 0)
    words = "no longer has batch 0, but the recovery of batch 5 replays from batch 1: .*nor to a later one$"
    refused(query, 5, 2, words)


def test_state_that_the_log_has_lost_is_damage(query: Run) -> None:
    """Of a frame that the batch rests on, or of its own."""
    damage(query, CLEAN, 3, at=-6)
    refused(query, 5, 1, r"damaged log: store 0/1/default: its query cannot be taken back to batch 5, .* nothing was")
    assert rollback(query, "--to", "1", "--yes")[0] == 0
    assert query.start()[0] == 1


@pytest.fixture
def reading(query: Run) -> list[Path]:
    """As a query on files that has read one with each batch has noted them."""
    read = [query.place.parent / f"in {batch}" for batch in range(LAST + 2)]
    sources = query.place / "sources" / "0"
    sources.mkdir(parents=True)
    for batch, file in enumerate(read):
        file.write_text("rows")
        noted = json.dumps({"path": file.as_uri(), "timestamp": 1, "batchId": batch})
        (sources / str(batch)).write_text(f"v1\n{noted}")
        planned = json.dumps({"batchTimestampMs": 1_700_000_000_000 + batch, "conf": {}})
        query.write("offsets", batch, f'v1\n{planned}\n{{"logOffset":{batch}}}')
    return read


def test_a_file_that_the_replay_needs_and_that_is_gone_is_named(query: Run, reading: list[Path]) -> None:
    reading[2].unlink()
    refused(query, 5, 2, "replay batches 1 to 5, which have read file:.*/in%202, which is gone: restore that, or ch")
    assert rollback(query, "--to", "1", "--dry-run")[0] == 0


def test_files_that_come_again_and_are_gone_are_named(query: Run, reading: list[Path]) -> None:
    reading[7].unlink()
    reading[9].unlink()
    code, said, _ = rollback(query, "--to", "5", "--dry-run")
    assert code == 0
    (line,) = [each for each in said.splitlines() if each.startswith("gone")]
    lost = "what these files had is lost to the batches that run anew"
    assert line == f"gone        {reading[7].as_uri()} and 1 more: {lost}"
    told = answer(run("rollback", query.path, "--to", "5", "--yes", "--json"))
    assert told["gone_files"] == [reading[7].as_uri(), reading[9].as_uri()]


def test_state_in_one_of_sparks_own_stores(eager: Run) -> None:
    """Of a query whose output alone is in the log."""
    own = open_storage(f"{eager.path}/cec")
    QUERY.write(own, {**(QUERY.read(own) or {}), "provider": False})
    metadata = json.dumps({"stateStoreInfo": [{"storeName": "default", "numPartitions": 2}]})
    for partition, versions in ((0, range(1, 10)), (1, range(7, 10))):
        for version in versions:
            place = eager.place / "state" / "0" / str(partition)
            place.mkdir(parents=True, exist_ok=True)
            name = f"{version}.delta" if version % 2 else f"{version}_00ff.zip"
            (place / name).write_text("x")
            (place / f".{name}.crc").write_text("x")
    (eager.place / "state" / "0" / "_metadata").mkdir()
    (eager.place / "state" / "0" / "_metadata" / "metadata").write_text(f"v1\n{metadata}")
    by_batch = eager.place / "state" / "1" / "_metadata" / "v2"
    by_batch.mkdir(parents=True)
    for batch in (0, 6, 7):
        (by_batch / str(batch)).write_text(f"v2\n{metadata}")
    for version in (7, 8):
        (eager.place / "state" / "1" / "1").mkdir(parents=True, exist_ok=True)
        (eager.place / "state" / "1" / "1" / f"{version}.snapshot").write_text("x")
    refused(eager, 5, 2, "store 0/1/default, which is one of Spark's own, has no version 6 .* the nearest .* is 6$")
    code, said, _ = rollback(eager, "--to", "6", "--yes")
    assert (code, "state       none in this log" in said) == (0, True)
    assert "lock        a query without state here takes none: nothing here tells whether the query runs" in said
    assert eager.planned == eager.output == list(range(7))
    left = {each.name for each in (eager.place / "state" / "0" / "0").iterdir()}
    kept = {f"{each}.delta" if each % 2 else f"{each}_00ff.zip" for each in range(1, 8)}
    assert left == kept | {f".{each}.crc" for each in kept}, "no later snapshot"
    assert sorted(each.name for each in by_batch.iterdir()) == ["0", "6"]
    assert [each.name for each in (eager.place / "state" / "1" / "1").iterdir()] == ["7.snapshot"]


def test_readers_that_have_read_what_is_taken_back_are_named(query: Run) -> None:
    log_id = str(read_log_id(query.log))
    for name, batch in (("ahead", 7), ("behind", 5)):
        ReaderTrail(query.log, log_id, name).begin(batch)
    code, said, _ = rollback(query, "--to", "5", "--yes")
    words = "reader      ahead has read batch 7, perhaps more: take it back, too, or begin it anew"
    assert code == 0 and words in said.splitlines() and "behind" not in said


def test_what_was_decided_for_a_later_batch_is_forgotten(query: Run) -> None:
    save_fallback(open_storage(f"{query.path}/cec"), Fallback(4, LAST, 1))
    assert rollback(query, "--to", "5", "--yes")[0] == 0
    committed, found = query.start()
    assert committed == 5 and query.has_state_of(5, found)


def recipe(query: Run, to: int) -> None:
    """What people do by hand."""
    query.forget("offsets", *range(to + 1, LAST + 2))
    query.forget("commits", *range(to + 1, LAST + 1))


@pytest.mark.parametrize("has_output", [True, False])
@pytest.mark.parametrize("runs_since", [0, 1])
def test_who_has_deleted_the_newest_batches_by_hand_is_told_what_does_the_rest(
    query: Run, has_output: bool, runs_since: int
) -> None:
    if not has_output:
        for batch in query.output:
            query.log.delete(manifest_path(batch))
    for _ in range(runs_since):
        query.start()
    recipe(query, 6)
    with pytest.raises(Refused, match=f"run `cec rollback {query.path} --to 6`; or restore") as error:
        query.start()
    assert error.value.kind == "UnsuitableCheckpoint"
    assert rollback(query, "--to", "6", "--yes")[0] == 0
    committed, found = query.start()
    assert committed == 6 and query.has_state_of(6, found)
    assert run("verify", query.path).exit_code == 0


@pytest.mark.parametrize(("name", "by_hand"), [("query", False), ("eager", True)])
def test_the_old_or_the_new_state_wherever_it_is_killed(
    name: str, by_hand: bool, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A start then finds the one or the other, or says what does the rest; the same command does it."""
    whole: Run = request.getfixturevalue(name)
    if by_hand:
        recipe(whole, 5)
    ReaderTrail(whole.log, str(read_log_id(whole.log)), "reader").begin(7)
    budget = [1_000]

    def crashing(url: str) -> Any:
        return Crashing(open_storage(url), budget)

    outcomes = dict.fromkeys(("old", "refused", "new"), 0)
    for crash in itertools.count():
        query = copied(whole, tmp_path / f"crash {crash}")
        budget[0] = crash
        with monkeypatch.context() as patch:
            patch.setattr(roll_back, "open_storage", crashing)
            is_over = rollback(query, "--to", "5", "--yes")[0] == 0
        under_way = (query.place / "cec" / ROLLBACK.name).exists()
        if not by_hand or under_way:  # else the log is ahead of what Spark knows
            assert run("verify", query.path).exit_code == 0, run("verify", query.path).output
        outcomes[outcome(query, by_hand)] += 1
        if under_way:
            refused(query, 4, 2, "being taken back to the end of batch 5, which was not finished: .* --to 5`$")
            assert "a try before was cut short" in rollback(query, "--to", "5", "--dry-run")[1]
            elsewhere = ("--from", query.path, "--to", f"{query.path} elsewhere")
            others = (("flush", query.path), ("export", *elsewhere), ("rescale", *elsewhere, "--partitions", "3"))
            for command in others:
                result = run(*command)
                assert result.exit_code == 2 and f"run `cec rollback {query.path} --to 5`" in result.stderr, command
            shown = run("inspect", query.path)
            assert shown.exit_code == 0 and "rollback    to batch 5, not finished: `cec rollback`" in shown.stdout
            assert answer(run("inspect", query.path, "--json"))["rollback"] == 5
        assert rollback(query, "--to", "5", "--yes")[0] == 0
        committed, found = query.start()
        assert committed == 5 and query.has_state_of(5, found), f"crash {crash}"
        assert query.output == list(range(6))
        if is_over:
            break
    assert outcomes["refused"] > 8 and outcomes["new"] and (by_hand or outcomes["old"]), outcomes


def copied(query: Run, place: Path) -> Run:
    """The same query, in a copy of its checkpoint."""
    shutil.copytree(query.place, place)
    copy = object.__new__(Run)
    copy.place, copy.eager, copy.states, copy.agent = place, query.eager, query.states, query.agent
    return copy


def outcome(query: Run, by_hand: bool) -> str:
    """What a start finds."""
    try:
        committed, found = query.start()
    except Refused as error:
        assert f"run `cec rollback {query.path} --to 5`" in str(error)
        return "refused"
    assert query.has_state_of(committed, found), "a mix"
    assert committed in ((5,) if by_hand else (5, LAST))
    assert query.output == list(range(committed + 1))
    return "new" if committed == 5 else "old"
