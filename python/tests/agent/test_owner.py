"""Whose log it is, where it lies outside of the checkpoint: a copy of the checkpoint is not its owner."""

from __future__ import annotations

import fcntl
import json
import shutil
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from spark_cec.agent import starts
from spark_cec.agent.owner import OWNER_FILE, claim_log, refuse_log_of_another
from spark_cec.errors import UnsuitableCheckpoint
from spark_cec.recovery import query_runs
from spark_cec.settings import PREFIX
from tests.agent.support import DECISION, Agent, Refused

WITH_STATE = {**DECISION, "provider": True}


class Query:
    """A query whose log is at the sink's path, or under `log.path`; each start has an agent of its own."""

    def __init__(self, root: Path, name: str, sink_path: str | None = None, **conf: str) -> None:
        (root / "scratch").mkdir(exist_ok=True)
        self.root, self.name, self.sink_path, self.conf = root, name, sink_path, conf
        self.agents: list[Agent] = []
        self.decision = WITH_STATE

    @property
    def checkpoint(self) -> Path:
        return self.root / self.name

    def start(self, committed: int = 0, spelled: str | None = None, hold: bool = False) -> list[dict[str, Any]]:
        """What the shim asks at a start; what there is to say. `hold`: the run goes on, and has the lease."""
        agent = Agent(self.root / "scratch", self.checkpoint)
        agent.checkpoint = spelled or agent.checkpoint
        agent.conf = {**agent.conf, **{PREFIX + key: value for key, value in self.conf.items()}}
        try:
            agent.home = agent.ask("check", sink_path=self.sink_path, committed_batch=committed)["home"]
            begun = agent.begin(committed, decision=self.decision, wait_s=0.0)
            if self.decision["provider"]:
                agent.ask("hold", wait_s=0.0, generation=begun["generation"])
        except Refused:
            agent.calls.close()
            raise
        if hold:
            self.agents.append(agent)
        else:
            agent.calls.close()
        return [word for word in begun["said"] if word["warns"]]

    def stop(self) -> None:
        while self.agents:
            self.agents.pop().calls.close()


@pytest.fixture
def query(tmp_path: Path) -> Iterator[Query]:
    """It has run once, and Spark has committed a batch."""
    made = Query(tmp_path, "ck", str(tmp_path / "log"))
    made.start(-1)
    yield made
    made.stop()


def copy_of(query: Query, name: str = "copy") -> Query:
    shutil.copytree(query.checkpoint, query.root / name)
    return Query(query.root, name, query.sink_path, **query.conf)


def files(directory: Path) -> dict[str, bytes]:
    found = {str(path): path.read_bytes() for path in directory.rglob("*") if path.is_file()}
    return {path: content for path, content in found.items() if not path.endswith("/lock")}


@pytest.mark.parametrize("running", [False, True])
def test_a_copy_is_refused_by_name_before_it_writes_and_the_original_goes_on(query: Query, running: bool) -> None:
    copy = copy_of(query)
    if running:
        query.start(hold=True)
    before = files(query.root)
    with pytest.raises(Refused) as refused:
        copy.start()
    assert refused.value.kind == "UnsuitableCheckpoint"
    said, log = str(refused.value), query.root / "log"
    assert said.startswith(f"the log at {log} belongs to the checkpoint {query.checkpoint}, of which {copy.checkpoint}")
    assert "give the copy a log of its own" in said and f"delete {log}/{OWNER_FILE}" in said
    assert files(query.root) == before
    query.stop()
    assert query.start() == []
    (log / OWNER_FILE).unlink()  # the remedy that it names
    assert copy.start() == []
    with pytest.raises(Refused, match=f"belongs to the checkpoint {copy.checkpoint}, of which {query.checkpoint}"):
        query.start()


def test_a_copy_of_a_query_that_runs_is_refused_where_no_owner_was_recorded(query: Query) -> None:
    """As an earlier release has begun it."""
    copy = copy_of(query)
    query.start(hold=True)
    (query.root / "log" / OWNER_FILE).unlink()
    with pytest.raises(Refused, match=f"a query with log {query.root}/log is running already") as refused:
        copy.start()
    assert refused.value.kind == "Fenced"
    with (copy.checkpoint / "cec" / "lock").open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)


def test_a_checkpoint_that_was_moved_takes_its_log_along_and_says_so_once(query: Query) -> None:
    query.checkpoint.rename(query.root / "new")
    moved = Query(query.root, "new", query.sink_path)
    (word,) = moved.start()
    assert word["line"] == (
        f"the log at {query.root}/log was that of the checkpoint {query.checkpoint}, which is gone or has another log: "
        f"it belongs to {moved.checkpoint} from now on"
    )
    assert moved.start() == []
    copy_of(moved, "ck")  # as somebody restores it where it was
    with pytest.raises(Refused, match=f"belongs to the checkpoint {moved.checkpoint}"):
        query.start()


def test_the_first_start_takes_a_log_without_an_owner(query: Query) -> None:
    (query.root / "log" / OWNER_FILE).unlink()
    assert query.start() == []
    assert json.loads((query.root / "log" / OWNER_FILE).read_text()) == {"checkpoint": str(query.checkpoint)}


def test_a_copy_with_a_log_of_its_own_is_a_query_of_its_own(query: Query) -> None:
    copy = copy_of(query)
    shutil.copytree(query.root / "log", query.root / "log2")
    copy.sink_path = str(query.root / "log2")
    assert len(copy.start()) == 1, "its log says that it was the original's"
    assert copy.start() == query.start() == []


def test_a_log_inside_the_checkpoint_needs_no_owner(tmp_path: Path) -> None:
    query = Query(tmp_path, "ck")
    query.start(-1)
    assert not (query.checkpoint / "cec" / "log" / OWNER_FILE).exists()
    assert not (query.checkpoint / "cec" / "log" / "lock").exists()
    assert copy_of(query).start() == query.start() == []


@pytest.mark.parametrize("damage", ["", "{", '{"log_id": "00"}'])
def test_an_owner_that_cannot_be_read_has_not_given_its_log_up(query: Query, damage: str) -> None:
    copy = copy_of(query)
    (query.checkpoint / "cec" / "query.json").write_text(damage)
    with pytest.raises(Refused, match="belongs to the checkpoint"):
        copy.start()


@pytest.mark.parametrize("given_up", ["gone", "another log", "another place"])
def test_an_owner_that_has_given_its_log_up_is_no_owner(query: Query, given_up: str) -> None:
    copy, own = copy_of(query), query.checkpoint / "cec" / "query.json"
    raw = json.loads(own.read_text())
    if given_up == "gone":
        own.unlink()
    else:
        other = {"log_id": "ab" * 16} if given_up == "another log" else {"log_home": str(query.root / "elsewhere")}
        own.write_text(json.dumps({**raw, **other}))
    assert [f"{query.checkpoint}, which is gone or has another log" in word["line"] for word in copy.start()] == [True]


@pytest.mark.parametrize("spelled", ["file:{}", "file://{}", "{}/", "{}/../ck"])
def test_an_owner_is_one_however_it_is_written(query: Query, spelled: str) -> None:
    assert query.start(spelled=spelled.format(query.checkpoint)) == []


@pytest.mark.parametrize("begun", ["by the path", "by the link"])
@pytest.mark.parametrize("home", ["the sink's path", "log.path", "log.path, and no owner"])
def test_a_checkpoint_that_is_reached_by_a_link_is_the_same(tmp_path: Path, home: str, begun: str) -> None:
    conf = {} if home == "the sink's path" else {"log.path": str(tmp_path / "logs")}
    sink_path = None if conf else str(tmp_path / "log")
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    names = ["real", "link"] if begun == "by the path" else ["link", "real"]
    first, other = (Query(tmp_path, name, sink_path, **conf) for name in names)
    first.start(-1)
    if home == "log.path, and no owner":
        next((tmp_path / "logs").glob(f"*/{OWNER_FILE}")).unlink()
        if begun == "by the link":  # nothing tells that it was by this one
            with pytest.raises(Refused, match="or give the path that it had, if that is a link"):
                other.start()
            return
    assert other.start() == first.start() == []
    assert len(list((tmp_path / "logs").iterdir() if conf else [1])) == 1
    other.start(hold=True)
    with pytest.raises(Refused, match="is running already"):
        first.start()
    other.stop()


def test_a_sinks_path_that_is_new_is_not_passed_over_for_the_log_that_was_there(tmp_path: Path) -> None:
    query = Query(tmp_path, "ck", **{"log.path": str(tmp_path / "logs")})
    query.start(-1)
    query.sink_path = f"{tmp_path}/out/"
    with pytest.raises(Refused, match=f"this query's settings place it at {tmp_path}/out: give back the sink's `path`"):
        query.start()


@pytest.fixture(params=[DECISION, WITH_STATE], ids=["without state", "with state"])
def new_query(request: pytest.FixtureRequest, tmp_path: Path) -> Query:
    """It has never run."""
    made = Query(tmp_path, "ck")
    made.decision = request.param
    return made


def start_at(query: Query, name: str, committed: int) -> None:
    query.sink_path = f"{query.root}/{name}"
    query.start(committed)


def log_ids(query: Query, *names: str) -> list[str]:
    return [json.loads((query.root / name / "log.json").read_text())["log_id"] for name in names]


def test_a_sinks_path_from_before_the_first_commit_is_not_gone_back_to_afterwards(new_query: Query) -> None:
    """Each of the two places has a log of this query's, and only one has what was committed."""
    for name, committed in (("a", -1), ("b", -1), ("b", 10)):
        start_at(new_query, name, committed)
    with pytest.raises(Refused, match=f"is at {new_query.root}/b, .* give back the sink's `path`"):
        start_at(new_query, "a", 10)
    start_at(new_query, "b", 10)


def test_before_the_first_commit_a_sinks_path_may_change_and_change_back(new_query: Query) -> None:
    for name in ("a", "b", "a", "b", "b", "a"):
        start_at(new_query, name, -1)
    assert len({*log_ids(new_query, "a", "b")}) == 2
    new_query.sink_path = None
    new_query.start(-1)
    start_at(new_query, "a", -1)
    new_query.sink_path = None
    new_query.start(-1)


class Died(Exception):
    """The process has ended."""


@pytest.mark.parametrize("place", ["note_intent", "join_log", "_write_intent", "claim_log", "hold_run"])
@pytest.mark.parametrize("died_at", ["a", "b"])
@pytest.mark.parametrize("then", ["a", "b"])
def test_a_start_that_dies_on_the_way_blocks_neither_place(
    new_query: Query, monkeypatch: pytest.MonkeyPatch, place: str, died_at: str, then: str
) -> None:
    """`died_at`: the first start died, at a; or the second one, at b."""
    if died_at == "b":
        start_at(new_query, "a", -1)
    with monkeypatch.context() as dying:

        def die(*_: Any, **__: Any) -> None:
            raise Died

        dying.setattr(starts if place in ("claim_log", "hold_run") else query_runs, place, die)
        with suppress(Refused):  # a query without state has no `hold_run`
            start_at(new_query, died_at, -1)
    other = "b" if then == "a" else "a"
    for name in (other, then):
        start_at(new_query, name, -1)
    start_at(new_query, then, 10)
    with pytest.raises(Refused, match="give back the sink's `path`"):
        start_at(new_query, other, 10)


def test_under_log_path_a_copy_has_no_log(tmp_path: Path) -> None:
    query = Query(tmp_path, "ck", **{"log.path": str(tmp_path / "logs")})
    query.start(-1)
    with pytest.raises(Refused, match="move the log's directory there too"):
        copy_of(query).start()


def test_a_run_whose_log_was_taken_over_at_its_start_does_not_go_on(query: Query) -> None:
    """A copy on another machine, where the original's path leads nowhere, was started between its two steps."""
    agent = Agent(query.root / "scratch", query.checkpoint)
    agent.home = str(query.root / "log")
    begun = agent.begin(0, decision=WITH_STATE)
    (query.root / "log" / OWNER_FILE).write_text(json.dumps({"checkpoint": "/on/another/machine"}))
    with pytest.raises(Refused, match="belongs to the checkpoint /on/another/machine by now") as refused:
        agent.ask("hold", generation=begun["generation"])
    assert refused.value.kind == "Fenced"
    agent.calls.close()


@pytest.mark.parametrize("name", ["left.json", "rollback.json"])
def test_a_run_whose_query_went_elsewhere_at_its_start_does_not_go_on(query: Query, name: str) -> None:
    agent = Agent(query.root / "scratch", query.checkpoint)
    agent.home = str(query.root / "log")
    begun = agent.begin(0, decision=WITH_STATE)
    (query.checkpoint / "cec" / name).write_text('{"carried_to": "there", "batch": 0, "generation": 1}')
    with pytest.raises(Refused, match=name):
        agent.ask("hold", generation=begun["generation"])
    agent.calls.close()


def test_of_several_that_claim_a_log_at_once_one_has_it(query: Query) -> None:
    copies = [copy_of(query, f"copy{number}") for number in range(8)]
    log = query.root / "log"
    (log / OWNER_FILE).unlink()

    def claim(copy: Query) -> bool:
        try:
            claim_log(str(copy.checkpoint), str(log))
        except UnsuitableCheckpoint:
            return False
        return True

    with ThreadPoolExecutor(8) as pool:
        has_it = list(pool.map(claim, copies))
    assert has_it.count(True) == 1
    assert refuse_log_of_another(str(copies[has_it.index(True)].checkpoint), str(log)) is None


def test_who_claims_a_log_twice_changes_nothing(query: Query) -> None:
    before = (query.root / "log" / OWNER_FILE).stat().st_ino
    claim_log(f"file:{query.checkpoint}", str(query.root / "log"))
    assert (query.root / "log" / OWNER_FILE).stat().st_ino == before


def test_of_copies_without_state_that_start_at_once_one_has_the_log(tmp_path: Path) -> None:
    """The original is gone. Such a query takes no lease, so the log's own lock decides."""
    for round_ in range(10):
        root = tmp_path / str(round_)
        root.mkdir()
        log = str(root / "log")
        begin_without_state(root, "original", log)
        for name in ("one", "two"):
            shutil.copytree(root / "original", root / name)
        shutil.rmtree(root / "original")
        together = threading.Barrier(2)

        def start(name: str, root: Path = root, log: str = log, together: threading.Barrier = together) -> str:
            try:
                begin_without_state(root, name, log, together)
            except Refused as refused:
                return str(refused)
            return ""

        with ThreadPoolExecutor(2) as pool:
            ends = sorted(pool.map(start, ("one", "two")))
        assert ends[0] == "" and "belongs to the checkpoint" in ends[1], ends


def begin_without_state(root: Path, name: str, log: str, together: threading.Barrier | None = None) -> None:
    """A start, by an agent of its own."""
    (root / f"scratch of {name}").mkdir()
    agent = Agent(root / f"scratch of {name}", root / name)
    try:
        agent.home = agent.ask("check", sink_path=log, committed_batch=-1)["home"]
        if together is not None:
            together.wait(30)
        agent.begin(-1)
    finally:
        agent.calls.close()
