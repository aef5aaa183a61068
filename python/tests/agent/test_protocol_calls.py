"""The agent's part in a protocol: what a checkpoint rests on is durable before it counts, and what none needs goes."""

from __future__ import annotations

import json
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from spark_cec.adapters.fsspec_storage import open_storage
from spark_cec.agent import protocols
from spark_cec.agent.messages import CheckpointDueRequest, CheckpointTakenRequest
from spark_cec.agent.protocols import ProtocolCalls
from spark_cec.errors import CheckpointFailed, RestartNeeded, Unsupported
from spark_cec.ids import StoreId
from spark_cec.log.home import join_log
from spark_cec.log.readers import IN_FLIGHT, ReaderTrail, slowest_reader
from spark_cec.protocols.choose import Protocol
from spark_cec.protocols.records import read_records
from spark_cec.protocols.spec import Spec, write_spec
from spark_cec.recovery.spark_logs import committed_batch, planned_batches
from spark_cec.settings import PREFIX, ProtocolSettings, Settings, parse_settings
from tests.agent.support import Agent, window
from tests.checkpoint.support import Tip

VERIFY_READS = protocols._verify_reads
INPUTS = {"a": (), "b": ("a",)}


class NoLogs:
    """No flow here has a store, but for what a test says of them."""

    def get_known(self, home: str) -> str:
        return home


class Flows:
    """Two flows of one run, a -> b, whose batches Spark has committed as far as a test says."""

    def __init__(self, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.home = home
        self.unwritten: list[str] = []
        self.is_sure = True
        self.newest = dict.fromkeys(INPUTS, -1)
        monkeypatch.setattr(protocols, "_find_stores_without", lambda *_: (self.unwritten, self.is_sure))
        monkeypatch.setattr(protocols, "_verify_reads", lambda *_: None)
        self.begin_run("run-1")
        self.calls = ProtocolCalls(NoLogs())  # type: ignore[arg-type]
        for name in INPUTS:
            self.calls.begin(self.settings(name), self.place(name), f"{self.place(name)}/cec/log", 1, -1)

    def begin_run(self, run: str) -> None:
        # An interval that is over whenever it is looked at.
        write_spec(open_storage(str(self.home)), Spec(Protocol.UNCOORDINATED, 0.0, INPUTS, 1, run))

    def place(self, name: str) -> str:
        return f"{self.home}/flows/{name}"

    def settings(self, name: str) -> Settings:
        own = {"protocol": "uncoordinated", "protocol.home": str(self.home), "protocol.flow": name}
        return parse_settings({PREFIX + key: value for key, value in {**own, "protocol.run": "run-1"}.items()})

    def run(self, name: str, batches: range, **taken: Any) -> None:
        """The flow runs these batches, each with a checkpoint behind it."""
        for batch in batches:
            self.calls.sends(self.place(name), batch)
            self.newest[name] = batch
            for log in ("offsets", "commits"):  # as Spark does it, which syncs nothing
                path = Path(self.place(name), log, str(batch))
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(f'v1\n{{}}\n{{"logOffset":{batch}}}')
            assert self.looks(name, **taken)

    def looks(self, name: str, **taken: Any) -> bool:
        """The flow plans its next batch: whether a checkpoint was due."""
        checkpoint, batch = self.place(name), self.newest[name]
        due = self.calls.due(CheckpointDueRequest(checkpoint=checkpoint, batch=batch, stopping=False)).due
        if due:
            known = {"checkpoint": checkpoint, "home": f"{checkpoint}/cec/log", "batch": batch, "failed": ()}
            self.calls.taken(CheckpointTakenRequest(**{**known, **taken}))
        return due

    def reads(self, name: str, after: int, last: int) -> None:
        """b's next batch reads that of a."""
        log = open_storage(self.place("a"))
        self.calls.will_read(self.settings(name), self.place("a"), log, after, last, None, "s")

    def numbers(self, name: str) -> list[int]:
        records = read_records(open_storage(f"{self.place(name)}/cec"), name, INPUTS[name])
        return [each.checkpoint.number for each in records.known]


@pytest.fixture
def flows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Flows:
    return Flows(tmp_path, monkeypatch)


def test_two_are_kept_of_a_flow_that_does_not_move(flows: Flows) -> None:
    flows.run("a", range(3))
    assert flows.numbers("a") == [0, 1, 2, 3][2:]
    flows.run("b", range(8))
    assert flows.numbers("a") == [2, 3]
    assert flows.numbers("b") == [7, 8]


def test_offsets_of_another_form_are_refused(tmp_path: Path) -> None:
    """What a flow has read would not be known, nor what its sources have noted."""
    checkpoint = open_storage(str(tmp_path))
    flow: Any = SimpleNamespace(name="a", reads={})
    checkpoint.replace("offsets/3", b'v1\n{}\n{"logOffset":3}')
    VERIFY_READS(checkpoint, 3, flow)
    checkpoint.replace("offsets/3", b'v2\n{}\n{"sources":{"a":"{}"}}')
    with pytest.raises(Unsupported, match=r"offsets/3 is not of version 1: leave .*offsetLog\.formatVersion"):
        VERIFY_READS(checkpoint, 3, flow)


def test_a_damaged_spec_ends_the_run_alone(flows: Flows) -> None:
    """Whoever takes all back writes it anew."""
    Path(flows.home, "protocol.json").write_text("")
    with pytest.raises(RestartNeeded, match=r"is of a run of the pipeline at .* that is over"):
        flows.run("a", range(1))


def test_a_flow_that_has_come_to_rest_keeps_nobody_back(flows: Flows) -> None:
    """Its last messages have been received: without a second checkpoint behind them, all that follows would be kept."""
    flows.run("a", range(2))
    flows.reads("b", -1, 1)
    flows.run("b", range(1))
    assert flows.looks("a") and not flows.looks("a"), "once more, and no more"
    for batch in range(1, 30):
        flows.reads("b", 1, 1)
        flows.run("b", range(batch, batch + 1))
        assert not flows.looks("a")
    assert len(flows.numbers("b")) == len(flows.numbers("a")) == 2
    flows.run("a", range(2, 3))
    assert flows.looks("a") and not flows.looks("a")


def test_a_flow_without_a_batch_has_no_checkpoint(flows: Flows) -> None:
    assert not flows.looks("a")


@pytest.mark.parametrize(("repairable", "oldest"), [(0, 8), (1, 8), (2, 8), (6, 4)])
def test_batches_of_spark_go_with_the_checkpoints(
    flows: Flows, repairable: int, oldest: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """But for those that a repair may want, and those that sources are told of as the next one is planned: they look
    up then what they have noted."""
    monkeypatch.setattr(protocols, "REPAIRABLE_BATCHES", repairable)
    flows.run("a", range(12))
    storage = open_storage(flows.place("a"))
    assert flows.numbers("a") == [11, 12]  # of batches 10 and 11; before the last one: of 9 on, which begins behind 8
    assert sorted(planned_batches(storage)) == list(range(oldest, 12))
    assert committed_batch(storage) == 11


def test_what_spark_has_written_is_durable_before_the_checkpoint_counts(
    flows: Flows, monkeypatch: pytest.MonkeyPatch
) -> None:
    order: list[str] = []
    real_sync, real_replace = os.fsync, os.replace

    def fsync(descriptor: int) -> None:
        order.append(str(Path(f"/proc/self/fd/{descriptor}").readlink()))
        real_sync(descriptor)

    def replace(source: str, target: str, **how: Any) -> None:
        order.append(str(target))
        real_replace(source, target, **how)

    monkeypatch.setattr(os, "fsync", fsync)
    monkeypatch.setattr(os, "replace", replace)
    begun = ("metadata", "sources/0/0", "state/0/_metadata/metadata", "state/1/_metadata/v2/0")
    for batch, beside in enumerate((begun, ("sources/0/1",), ("sources/0/2.compact",))):
        for name in (*beside, "sources/0/.0.crc"):
            path = Path(flows.place("a"), name)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text("v1\n{}")
        order.clear()
        flows.run("a", range(batch, batch + 1))
        names = [each.removeprefix(flows.place("a") + "/") for each in order]
        counts = max(at for at, name in enumerate(names) if name.startswith("cec/checkpoints"))
        synced = names[:counts]
        assert {f"offsets/{batch}", f"commits/{batch}", *beside} <= set(synced), names
        assert not batch or "metadata" not in synced, "once is enough"


def test_who_does_not_answer_does_not_matter_if_all_stores_have_written(flows: Flows) -> None:
    gone = ["executor 3 does not answer: Connection refused"]
    flows.run("a", range(1), failed=gone)
    flows.unwritten = ["store 0/1"]
    with pytest.raises(CheckpointFailed, match="after batch 1: executor 3 does not answer"):
        flows.run("a", range(1, 2), failed=gone)
    with pytest.raises(RestartNeeded, match="store 0/1 and 1 stores in all have not written"):
        flows.run("a", range(1, 2))


def test_who_does_not_answer_does_not_matter_if_nothing_has_run(flows: Flows) -> None:
    """An idle flow has nothing to write. An executor that ended in good order must not take all flows back."""
    flows.is_sure = False
    flows.run("a", range(2))
    flows.calls.begin(flows.settings("a"), flows.place("a"), f"{flows.place('a')}/cec/log", 2, 1)
    assert flows.looks("a", failed=["executor 3 does not answer: Connection refused"])


def test_it_matters_where_there_may_be_stores_that_nobody_knows_of(flows: Flows) -> None:
    """Those of the first checkpoint, of an executor that is gone."""
    flows.is_sure = False
    with pytest.raises(CheckpointFailed, match="executor 3 does not answer"):
        flows.run("a", range(1), failed=["executor 3 does not answer"])
    flows.run("a", range(1))


def test_a_run_that_is_over_takes_no_checkpoint(flows: Flows) -> None:
    """Where a storage has no locks, the driver that was thought dead may live."""
    flows.run("a", range(2))
    flows.begin_run("run-2")
    before = flows.numbers("a")
    with pytest.raises(RestartNeeded, match=r"of a run of the pipeline at .* that is over"):
        flows.run("a", range(2, 3))
    assert flows.numbers("a") == before


def test_what_a_flow_may_read_again_is_behind_its_older_checkpoint(flows: Flows) -> None:
    reads = [flows.calls.read_again_from(flows.settings(name), flows.place("a")) for name in INPUTS]
    assert reads == [-1, -1]
    own = flows.settings("b").protocol
    assert own is not None
    sink = parse_settings({
        PREFIX + "protocol.home": str(flows.home), PREFIX + "protocol.flow": "out", PREFIX + "protocol.run": "run-1",
    })  # fmt: skip
    assert flows.calls.read_again_from(sink, flows.place("b")) is None


def test_a_channel_of_another_query_lets_go_what_the_line_has_read(flows: Flows, tmp_path: Path) -> None:
    """The flow says of it only what no line needs, and Spark keeps all batches: the note must not wait for these."""
    log = open_storage(str(tmp_path / "other" / "log"))
    log_id = join_log(log, None)
    trail = ReaderTrail(log, log_id, "b")
    for batch in range(40):
        flows.run("b", range(batch, batch + 1))
        kept_from = flows.calls.kept_from(f"{flows.place('b')}/cec/log", flows.settings("b")) or 0
        for end in range(kept_from):  # Spark says so of each batch once, and the trail passes over the rest
            again = flows.calls.read_again_from(flows.settings("b"), str(tmp_path / "other"))
            trail.add(end, 1_000_000_000, again)
    trail.save()
    assert slowest_reader(log, log_id, ["b"]) == kept_from - IN_FLIGHT


def test_an_agent_that_does_not_know_the_checkpoints_lets_nothing_go(flows: Flows) -> None:
    """It came after one that died. A flow's batch may still end before all flows go back to their line."""
    flows.run("a", range(4))
    log = f"{flows.place('a')}/cec/log"
    assert flows.calls.kept_from(log, flows.settings("a")) == 3
    successor = ProtocolCalls(NoLogs())  # type: ignore[arg-type]
    assert successor.kept_from(log, flows.settings("a")) == -1
    assert successor.kept_from(log, parse_settings({})) is None


def test_stores_of_a_history_that_was_given_up_are_not_missed(tmp_path: Path) -> None:
    """It had more partitions. What is of the history that counts is missed, from its first checkpoint on."""
    agent = Agent(tmp_path)
    tips = {StoreId(0, partition): Tip() for partition in (0, 1, 5)}

    def missed(version: int, generation: int) -> tuple[list[str], bool]:
        settings = ProtocolSettings("", "f", "", True)
        run = protocols._Run(settings, agent.checkpoint, agent.home, generation, -1)
        with agent.calls._logs.serving():
            return protocols._find_stores_without(agent.calls._logs.get_known(agent.home), run, version)

    first = agent.run_once()
    for store, tip in tips.items():
        tips[store] = agent.append(store, tip, window(b"a", b"0"), generation=first)[0]
    assert missed(1, first) == ([], True)
    later = agent.run_once()  # after batch -1
    for store in (StoreId(0, 0), StoreId(0, 1)):
        tips[store] = agent.append(store, Tip(), window(b"a", b"1"), generation=later)[0]
    assert missed(1, later) == ([], True)
    agent.append(StoreId(0, 0), tips[StoreId(0, 0)], {}, generation=later)
    assert missed(2, later) == (["store 0/1/default"], True)
    agent.calls.close()


@pytest.mark.parametrize(("partitions", "is_sure"), [((0,), False), ((0, 1), True)])
def test_of_the_first_checkpoint_it_is_not_known_how_many_stores_there_are(
    partitions: tuple[int, ...], is_sure: bool, tmp_path: Path
) -> None:
    """Of an aggregation without keys Spark says that it has as many as others, and uses one."""
    agent = Agent(tmp_path)
    about = {"operatorInfo": {}, "stateStoreInfo": [{"storeName": "default", "numPartitions": 2}]}
    open_storage(agent.checkpoint).replace("state/0/_metadata/metadata", b"v1\n" + json.dumps(about).encode())
    generation = agent.begin_run()
    for partition in partitions:
        agent.append(StoreId(0, partition), Tip(), {}, generation=generation)
    run = protocols._Run(ProtocolSettings("", "f", "", True), agent.checkpoint, agent.home, generation, -1)
    with agent.calls._logs.serving():
        log = agent.calls._logs.get_known(agent.home)
        assert protocols._find_stores_without(log, run, 1) == ([], is_sure)
    agent.calls.close()
