"""Which logs an agent has open: closed when nobody needs them, never under a call, each with its own fate."""

from __future__ import annotations

import errno
import fcntl
import os
import random
import shutil
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from spark_cec.adapters.fsspec_storage import open_storage
from spark_cec.adapters.rocksdict_index import RocksDictIndex
from spark_cec.agent.calls import Calls
from spark_cec.agent.logs import IDLE_S, OpenLog, OpenLogs, UnknownLog
from spark_cec.ids import StoreId
from spark_cec.log.catalog import Catalog
from spark_cec.log.frame import FrameKind, LoadedMeta
from spark_cec.log.home import join_log
from spark_cec.log.storage import Appender, Storage
from spark_cec.settings import PREFIX, Settings, parse_settings
from tests.agent.support import WITH_STATE, Agent, Refused, window
from tests.checkpoint.support import Tip

STORE = StoreId(0, 0)
KEY = [0, 0, "default"]


@pytest.fixture
def agent(tmp_path: Path) -> Iterator[Agent]:
    made = Agent(tmp_path)
    yield made
    made.calls.close()


def open_files(below: Path) -> list[str]:
    """What this process has open below a directory."""
    found = []
    for entry in Path("/proc/self/fd").iterdir():
        try:
            found.append(str(entry.readlink()))
        except OSError:
            continue
    return [path for path in found if path.startswith(str(below))]


def test_a_closed_log_is_let_go_of_and_can_be_opened_again(agent: Agent, tmp_path: Path) -> None:
    agent.ask("open_log")
    tip, _ = agent.append(STORE, Tip(), window(b"a"))
    assert open_files(tmp_path / "checkpoint")
    assert open_files(tmp_path / "index")
    assert agent.ask("close_log") == {"closed": True}
    assert not open_files(tmp_path / "checkpoint") + open_files(tmp_path / "index")
    assert agent.ask("close_log") == {"closed": False}
    with pytest.raises(Refused, match="is not open in this agent") as refused:
        agent.append(STORE, tip, window(b"b"))
    assert refused.value.kind == "UnknownLog"
    agent.ask("open_log", again=True)
    tip, _ = agent.append(STORE, tip, window(b"b"))
    assert set(tip.state) == {b"a", b"b"}


def test_a_log_that_is_gone_is_not_begun_anew(agent: Agent, tmp_path: Path) -> None:
    """As after its file system was unmounted: another log in its place would take commits that nobody finds again."""
    agent.ask("open_log")
    agent.ask("close_log")
    shutil.rmtree(tmp_path / "checkpoint")
    with pytest.raises(Refused, match=r"checkpoint/cec/log.*the log is gone") as refused:
        agent.ask("open_log", again=True)
    assert refused.value.kind == "LogLocationError"
    assert not (tmp_path / "checkpoint").exists()


@pytest.mark.parametrize("instead", ["nothing", "an empty directory", "another log"])
@pytest.mark.parametrize("is_open", [True, False])
def test_a_log_that_goes_while_it_is_written_is_not_begun_anew(
    agent: Agent, tmp_path: Path, instead: str, is_open: bool
) -> None:
    """No commit goes to another place, and the log goes on when it is given back.

    `is_open`: the agent has a segment open. An agent that has none is new, and gets the whole ledger.
    """
    agent.begin_run()
    tip, _ = agent.append(STORE, Tip(), window(b"a"))
    if not is_open:
        agent.calls.close()
        agent.calls = Calls(str(agent.scratch / "spool"))
        agent.ask("open_log")
    home, away = Path(agent.home), tmp_path / "away"
    home.rename(away)
    if instead != "nothing":
        home.mkdir()
    if instead == "another log":
        join_log(open_storage(agent.home))
    before = sorted(home.rglob("*"))
    with pytest.raises(Refused, match="the log is gone") as refused:
        agent.append(STORE, tip, window(b"b"), whole=not is_open)
    assert refused.value.kind == "LogLocationError"
    with pytest.raises(Refused, match="the log is gone"):
        agent.ask("publish", batch=1, frames=[], rows=0, schema="{}", truncate=False, generation=1, sources=[])
    assert (sorted(home.rglob("*")), home.exists()) == (before, instead != "nothing")
    shutil.rmtree(home, ignore_errors=True)
    away.rename(home)
    tip, _ = agent.append(STORE, tip, window(b"b"))
    agent.ask("publish", batch=1, frames=[], rows=0, schema="{}", truncate=False, generation=1, sources=[])
    found = agent.rows(agent.ask("load", store=KEY, version=2, checkpoint_id=None, retained=9))
    assert sorted(row["window"] for row in found) == [b"a", b"b"]


def test_a_log_that_cannot_be_opened_holds_no_index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else the next try would find it locked, and do with one in memory from then on."""
    logs, settings = OpenLogs(), parse_settings({PREFIX + "index.path": str(tmp_path / "index")})
    seen: list[BaseException] = []

    def fail(_: Catalog) -> None:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    with monkeypatch.context() as failing:
        failing.setattr(Catalog, "refresh", fail)
        with pytest.raises(OSError, match="Too many open files") as refused:
            logs.get(str(tmp_path / "log"), settings)
        seen.append(refused.value)  # whose traceback has all that was on the way
    assert not open_files(tmp_path / "index")
    assert isinstance(logs.get(str(tmp_path / "log"), settings).catalog._index, RocksDictIndex)
    logs.close()


def test_a_log_stays_open_under_a_call_that_has_it(tmp_path: Path) -> None:
    logs, settings = OpenLogs(), parse_settings({PREFIX + "index.path": str(tmp_path / "index")})
    home = str(tmp_path / "log")
    has_it, closed = threading.Event(), threading.Event()
    stores: list[object] = []

    def call() -> None:
        with logs.serving():
            log = logs.get(home, settings)
            has_it.set()
            assert closed.wait(60)
            stores.append(log.catalog.index.stores())
            assert open_files(tmp_path / "index")

    caller = threading.Thread(target=call)
    caller.start()
    assert has_it.wait(60)
    assert logs.close_log(home)
    closed.set()
    caller.join()
    assert stores == [[]]
    assert not open_files(tmp_path / "index")


def test_logs_that_were_only_read_are_closed_when_nobody_has_used_them_for_long(tmp_path: Path) -> None:
    now = [0.0]
    logs, settings = OpenLogs(lambda: now[0]), parse_settings({PREFIX + "index.path": str(tmp_path / "index")})
    homes = [str(tmp_path / name) for name in ("kept", "read", "used", "next")]
    for home in homes[:3]:
        logs.get(home, settings)
    logs.keep(homes[0])
    now[0] = IDLE_S
    logs.get(homes[2], settings)
    now[0] = IDLE_S + 1
    logs.get(homes[3], settings)
    assert [logs.close_log(home) for home in homes] == [True, False, True, True]


def test_what_a_log_keeps_is_not_said_by_who_reads_it(tmp_path: Path) -> None:
    """After the agent was started again, a reader may be the first to ask for the log, with settings of its own."""
    def readers(names: str) -> Settings:
        return parse_settings({PREFIX + "output.readers": names})

    home = str(tmp_path)
    OpenLogs().get(home, readers("fast,slow"))
    logs = OpenLogs()
    found = logs.existing(home, readers("sink"))
    assert found is not None
    with pytest.raises(UnknownLog):  # the JVM opens it then, with the settings of the query that writes it
        logs.get_known(home)
    assert logs.get(home, readers("fast,slow")) is found
    assert logs.existing(home, readers("sink")) is found
    assert logs.get_known(home).settings.output_readers == ("fast", "slow")


def test_the_loss_of_a_lease_concerns_its_own_query_alone(tmp_path: Path) -> None:
    """An agent that took over from one that died: meanwhile a later run of one of its queries ran elsewhere."""
    ours, other = (Agent(tmp_path, tmp_path / name) for name in ("ours", "other"))
    other.calls, calls = ours.calls, other.calls
    calls.close()
    for agent in (ours, other):
        agent.begin_run()
    ours.ask("hold", generation=1)
    ours.ask("release")  # as the death of its agent does
    elsewhere = Agent(tmp_path, tmp_path / "ours")
    generation = elsewhere.begin_run()
    elsewhere.ask("hold", generation=generation)
    elsewhere.ask("release")
    with pytest.raises(Refused, match=f"run {generation} of the query") as refused:
        ours.ask("hold", generation=1, had_lease=True)
    assert refused.value.kind == "Fenced"
    asks: dict[str, dict[str, Any]] = {"open_log": {}, "trim": {"version": 1}, "report": {"plan": {}, "started_ms": 1}}
    for call, arguments in asks.items():
        with pytest.raises(Refused, match=f"run {generation} of the query") as refused:
            ours.ask(call, **arguments)
        assert refused.value.kind == "Fenced", call
    other.ask("hold", generation=1)
    other.append(STORE, Tip(), window(b"a"))
    ours.ask("check", committed_batch=-1)
    ours.begin_run(decision=WITH_STATE)  # a new start in the application whose run has lost its lease
    ours.append(STORE, Tip(), window(b"a"))
    for agent in (ours, elsewhere):
        agent.calls.close()


def test_a_start_that_is_refused_the_lease_leaves_nothing_behind(agent: Agent, tmp_path: Path) -> None:
    agent.begin_run()
    with (Path(agent.checkpoint) / "cec" / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(Refused, match="is running already"):
            agent.begin(decision=WITH_STATE, wait_s=0.0)
    assert agent.begin_run(decision=WITH_STATE) == 2, "the refused start has taken no number"
    agent.append(STORE, Tip(), window(b"a"))


def test_a_run_that_is_fenced_does_not_fence_the_run_that_goes_on(agent: Agent) -> None:
    earlier, later = agent.begin_run(), agent.begin_run()
    agent.ask("hold", generation=earlier)
    agent.ask("hold", generation=later)
    with pytest.raises(Refused, match=f"run {later} of the query"):
        agent.ask("hold", generation=earlier)
    agent.append(STORE, Tip(), window(b"a"))


def test_a_home_is_one_however_it_is_written(tmp_path: Path) -> None:
    """Spark says where a checkpoint is as a URL, its user as a path: two catalogs of one log would be read twice."""
    logs = OpenLogs()
    settings = parse_settings({PREFIX + "index.path": str(tmp_path / "index")})
    spellings = [f"{tmp_path}/log", f"file:{tmp_path}/log", f"file://{tmp_path}/log/"]
    opened = [logs.get(home, settings) for home in spellings]
    assert opened[0] is opened[1] is opened[2]
    assert logs.existing(spellings[1], settings) is opened[0]
    assert logs.get_known(spellings[2]) is opened[0]
    assert logs.close_log(spellings[0])
    assert not logs.close_log(spellings[1])


def test_a_log_that_takes_long_to_open_concerns_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    logs = OpenLogs()
    settings = parse_settings({PREFIX + "index.path": str(tmp_path / "index")})
    logs.get(str(tmp_path / "quick"), settings)
    opening, may_go_on = threading.Event(), threading.Event()
    refresh = Catalog.refresh

    def slow(catalog: Catalog) -> None:
        opening.set()
        assert may_go_on.wait(30)
        refresh(catalog)

    with monkeypatch.context() as meanwhile:
        meanwhile.setattr(Catalog, "refresh", slow)
        thread = threading.Thread(target=lambda: logs.get(str(tmp_path / "slow"), settings))
        thread.start()
        assert opening.wait(30)
    assert logs.get_known(str(tmp_path / "quick")) is logs.existing(str(tmp_path / "quick"), settings)
    logs.get(str(tmp_path / "other"), settings)
    may_go_on.set()
    thread.join()
    assert logs.get_known(str(tmp_path / "slow"))
    logs.close()


class Stalls:
    """Holds the first call until it may go on, as a storage that hangs."""

    def __init__(self) -> None:
        self.began, self.may_go_on = threading.Event(), threading.Event()

    def __call__(self) -> None:
        if not self.began.is_set():
            self.began.set()
            assert self.may_go_on.wait(60)


def is_free(logs: OpenLogs, home: str) -> bool:
    """Whether a call finds another log at once."""
    asking = threading.Thread(target=logs.get_known, args=(home,), daemon=True)
    asking.start()
    asking.join(10)
    return not asking.is_alive()


def start(action: Callable[[], object]) -> threading.Thread:
    thread = threading.Thread(target=action, daemon=True)
    thread.start()
    return thread


def test_an_append_that_hangs_concerns_no_other_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The agent tidies its logs every minute, and an append to a hung mount may last for longer."""
    logs, settings = OpenLogs(), parse_settings({PREFIX + "index.path": str(tmp_path / "index")})
    hung, other = (logs.get(str(tmp_path / name), settings) for name in ("hung", "other"))
    stalls = Stalls()

    def append(_: Storage, path: str) -> Appender:
        stalls()
        return append_to_new(hung.storage, path)

    append_to_new = type(hung.storage).append_to_new
    with monkeypatch.context() as meanwhile:
        meanwhile.setattr(type(hung.storage), "append_to_new", append)
        meta = LoadedMeta(STORE, 1, 1, 1)
        appending = start(lambda: hung.writer.append(FrameKind.LOADED, meta, b"{}"))
        assert stalls.began.wait(30)
        tidying = start(logs.tidy)
        tidying.join(10)
        found = is_free(logs, other.home), tidying.is_alive()
        stalls.may_go_on.set()
        appending.join()
    tidying.join()
    assert found == (True, False)
    logs.close()


@pytest.mark.parametrize("how", ["close_log", "the end of a call", "tidy", "another log opens"])
def test_a_log_that_takes_long_to_close_concerns_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    """Its index is closed before the log is opened again: else the agent would do with an index in memory."""
    now = [0.0]
    logs, settings = OpenLogs(lambda: now[0]), parse_settings({PREFIX + "index.path": str(tmp_path / "index")})
    slow, other = (str(tmp_path / name) for name in ("slow", "other"))
    logs.get(other, settings)
    logs.keep(other)
    stalls, close = Stalls(), RocksDictIndex.close

    def stall(index: RocksDictIndex) -> None:
        stalls()
        close(index)

    def end_a_call() -> None:
        with logs.serving():
            logs.get(slow, settings)
            logs.close_log(slow)

    def open_another() -> None:
        now[0] = 2 * IDLE_S
        logs.get(str(tmp_path / "new"), settings)

    def tidy() -> None:
        now[0] = 2 * IDLE_S
        logs.tidy()

    ways: dict[str, Callable[[], object]] = {
        "close_log": lambda: logs.close_log(slow),
        "the end of a call": end_a_call,
        "tidy": tidy,
        "another log opens": open_another,
    }
    logs.get(slow, settings)
    reopened: list[OpenLog] = []
    with monkeypatch.context() as meanwhile:
        meanwhile.setattr(RocksDictIndex, "close", stall)
        closing = start(ways[how])
        assert stalls.began.wait(30)
        opening = start(lambda: reopened.append(logs.get(slow, settings)))
        found = is_free(logs, other)
        opening.join(0.5)
        stalls.may_go_on.set()
        closing.join()
        opening.join()
    assert found
    assert isinstance(reopened[0].catalog._index, RocksDictIndex)
    logs.close()


@pytest.mark.parametrize("seed", range(5))
def test_who_has_a_log_has_it_open(tmp_path: Path, seed: int) -> None:
    """Threads that open, read and close three logs: under no call is one closed, and each is one at a time."""
    print(f"seed {seed}")
    logs = OpenLogs()
    settings = parse_settings({PREFIX + "index.path": str(tmp_path / "index")})
    failures: list[BaseException] = []

    def work(number: int) -> None:
        rng = random.Random(seed * 100 + number)
        try:
            for _ in range(60):
                home = str(tmp_path / f"log{rng.randrange(3)}")
                with logs.serving():
                    log = logs.get(home, settings) if rng.random() < 0.5 else logs.existing(home, settings)
                    if rng.random() < 0.3:
                        logs.close_log(home)
                    if log is not None:
                        log.catalog.refresh()
                        log.catalog.index.stores()
        except BaseException as failure:
            failures.append(failure)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    logs.close()
