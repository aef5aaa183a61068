"""The keeper of a flow's epochs, with queries that are not Spark's: what it opens, stops, closes and deletes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from spark_cec.adapters.fsspec_storage import open_storage
from spark_cec.agent.logs import cec_directory, home_of
from spark_cec.availability.epochs import Epoch, epoch_checkpoint, list_numbers, newest_epoch, open_epoch
from spark_cec.availability.failure import Progress
from spark_cec.availability.union import EpochReads
from spark_cec.errors import Fenced
from spark_cec.pipeline import epoch_files, epoch_keeper
from spark_cec.pipeline.epoch_files import close_left_epochs, delete_epoch, read_until
from spark_cec.pipeline.epoch_keeper import EpochKeeper, TentativeStatus
from spark_cec.pipeline.options import Pace, Within
from spark_cec.pipeline.query_progress import Wait
from spark_cec.recovery.query_files import FLUSH, QUERY
from spark_cec.recovery.requests import answer_flush
from spark_cec.settings import PREFIX, parse_settings
from tests.pipeline.support import EpochQuery, eventually


class Flow:
    """A flow with a keeper. `started`: the queries of its epochs, each with what it was started with.

    `ahead`: for each start, whether no note said that the rows count.
    """

    def __init__(self, root: Path, **within: Any) -> None:
        self.own, self.inputs, self.clock = EpochQuery(10_000), frozenset[tuple[str, int]](), 0.0
        self.started: list[tuple[EpochQuery, tuple[Any, ...]]] = []
        self.pauses: list[int] = []
        self.ahead: list[bool] = []
        self.fails = self.over = self.fenced = False
        self.checkpoint = str(root / "flow")
        self.storage = open_storage(self.checkpoint)
        bound = Within(2_000, 1_000, **within)
        self.keeper = EpochKeeper(
            "totals", self.checkpoint, bound, self.find, lambda: self.over, lambda: self.inputs, self.start,
            lambda: None, self.confirm,
        )  # fmt: skip

    def find(self) -> Any:
        return None if self.over else self.own

    def start(self, name: str, checkpoint: str, reads: EpochReads) -> Any:
        self.pauses.append(reads.pause_ms)
        self.ahead.append(int(checkpoint.rpartition("/")[2]) not in list_numbers(self.storage))
        Path(checkpoint).mkdir(parents=True, exist_ok=True)
        if self.fails:
            raise RuntimeError("no session")
        how = (name, checkpoint.rpartition("/")[2], tuple(sorted(reads.absent)), dict(reads.epochs))
        self.started.append((EpochQuery(), how))
        return self.started[-1][0]

    def confirm(self) -> None:
        if self.fenced:
            raise Fenced("another driver runs the pipeline")

    def waits_for(self, *channels: str, held_s: float = 1.5) -> None:
        self.own.wait = Wait(dict.fromkeys(channels, held_s))

    @property
    def newest(self) -> Epoch:
        found = newest_epoch(self.storage)
        assert found is not None
        return found

    @property
    def standing(self) -> TentativeStatus:
        return self.keeper.standing

    @property
    def query(self) -> EpochQuery:
        return self.started[-1][0]


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The time in seconds, which stands still."""
    now = [1_000.0]
    monkeypatch.setattr("spark_cec.pipeline.epoch_keeper.time.monotonic", lambda: now[0])
    monkeypatch.setattr(epoch_keeper, "read_progress", lambda query: Progress(query.until_ms, query.until_ms))
    monkeypatch.setattr(epoch_keeper, "read_wait", lambda query: query.wait)
    monkeypatch.setattr(epoch_keeper, "last_batch", lambda query: query.until_ms)
    monkeypatch.setattr(epoch_keeper, "has_run_batch", lambda query: query.until_ms is not None)
    monkeypatch.setattr(epoch_keeper, "batch_ms", lambda query: query.batch_ms)
    monkeypatch.setattr(epoch_keeper, "count_left", lambda query: query.left)
    monkeypatch.setattr(epoch_keeper, "leave_out", lambda query, channels: query.left_out.append(set(channels)))
    return now


def test_an_epoch_from_its_begin_to_the_end_of_its_files(clock: list[float], tmp_path: Path) -> None:
    flow = Flow(tmp_path)
    flow.keeper.look()
    assert not flow.started
    flow.waits_for("app")
    flow.keeper.look()
    assert [how for _, how in flow.started] == [("totals epoch 1", "1", ("app",), {})]
    assert flow.newest.is_open and flow.standing.state.value == "up-failure"
    flow.query.until_ms = 20_000
    flow.keeper.look()
    assert flow.standing.until_ms == 20_000 and flow.standing.absent == ("app",)
    flow.waits_for()
    flow.own.until_ms = 12_000
    flow.keeper.look()
    assert flow.standing.state.value == "stabilization" and flow.query.isActive
    flow.own.until_ms = 19_500
    flow.keeper.look()
    assert not flow.query.isActive and flow.newest.is_open, "it stops, and its rows count"
    assert flow.standing.absent == (), "app is back, and the query was not told"
    flow.own.until_ms = 20_000
    flow.keeper.look()
    assert not flow.newest.is_open and flow.standing.epoch is None
    assert (Path(flow.checkpoint) / "epochs/1").exists(), "a reader may be about to read it"
    clock[0] += epoch_keeper.KEPT_S
    flow.keeper.look()
    assert not (Path(flow.checkpoint) / "epochs/1").exists() and flow.newest.number == 1
    flow.waits_for("app")
    flow.keeper.look()
    assert flow.newest.number == 2 and list_numbers(flow.storage) == [1, 2]


def waits_ahead(flow: Flow, clock: list[float]) -> EpochQuery:
    """Rows wait, and the flow stands still, for as long as it takes until a fork starts ahead."""
    flow.keeper.look()
    clock[0] += 1
    flow.waits_for("app", held_s=0.8)
    flow.keeper.look()
    return flow.query


def test_a_fork_works_ahead_of_its_epoch(clock: list[float], tmp_path: Path) -> None:
    """No note says that its rows count before rows have waited for long enough. Then those count that it has."""
    flow = Flow(tmp_path)
    flow.keeper.look()
    clock[0] += 1
    flow.waits_for("app", held_s=0.7)
    flow.keeper.look()
    assert not flow.started
    waits_ahead(flow, clock)
    flow.query.until_ms = 20_000
    for _ in range(3):
        flow.keeper.look()
    assert [how for _, how in flow.started] == [("totals epoch 1", "1", ("app",), {})] and flow.ahead == [True]
    assert not list_numbers(flow.storage) and flow.standing.epoch is None
    flow.waits_for("app")
    flow.keeper.look()
    assert len(flow.started) == 1 and not flow.query.left_out and flow.query.isActive
    assert flow.newest.is_open and flow.newest.absent == ("app",) and flow.standing.absent == ("app",)
    flow.keeper.look()
    assert flow.standing.until_ms == 20_000
    flow.waits_for()
    flow.own.until_ms = 20_000
    flow.keeper.look()
    flow.keeper.look()
    assert not flow.newest.is_open and not flow.query.isActive


@pytest.mark.parametrize("failed", [(), ("store 0/1 is not written",)])
def test_a_fork_works_ahead_as_soon_as_the_flow_has_written_its_stores(
    failed: tuple[str, ...], clock: list[float], tmp_path: Path
) -> None:
    flow = Flow(tmp_path)
    flow.keeper.look()
    clock[0] += 1
    flow.waits_for("app", held_s=0.65)
    flow.keeper.look()
    flow.keeper.look()
    assert not flow.started, "it would have batches to replay"
    own = cec_directory(flow.checkpoint)
    request = FLUSH.read_if_sound(own)
    assert request is not None
    answer_flush(own, request, 1, failed)
    flow.keeper.look()
    assert flow.ahead == ([] if failed else [True])


def test_a_fork_that_works_ahead_waits_for_the_inputs_that_are_there(clock: list[float], tmp_path: Path) -> None:
    """Another one may go away until the epoch begins. If one is back, its rows belong into the answer."""
    flow = Flow(tmp_path)
    fork = waits_ahead(flow, clock)
    flow.own.wait = Wait({"app": 1.2, "web": 0.6, "short": 0.3})
    flow.keeper.look()
    assert fork.left_out == [{"app", "web"}] and flow.newest.absent == ("app", "web") and flow.ahead == [True]
    other = Flow(tmp_path / "other")
    other.keeper.look()
    clock[0] += 1
    other.own.wait = Wait({"app": 0.8, "web": 0.8})
    other.keeper.look()
    fork, how = other.started[-1]
    assert how[2] == ("app", "web") and other.ahead == [True]
    other.waits_for("app")
    other.keeper.look()
    assert not fork.isActive and other.ahead == [True, False] and other.newest.absent == ("app",)


def test_a_flow_that_waits_for_one_which_is_about_to_answer_does_not_fork_ahead(
    clock: list[float], tmp_path: Path
) -> None:
    """Its fork must read the epoch of that one."""
    flow = Flow(tmp_path)
    flow.keeper._answering = frozenset({"app"})
    flow.keeper.look()
    clock[0] += 1
    flow.waits_for("app", held_s=0.8)
    flow.keeper.look()
    assert not flow.started
    flow.inputs = frozenset({("app", 3)})
    flow.keeper.look()
    assert flow.ahead == [False] and flow.newest.is_open and flow.newest.number == 1


@pytest.mark.parametrize("why", ["it is back", "the flow has gone on", "the flow is over", "the keeper ends"])
def test_a_fork_that_is_not_needed_goes(why: str, clock: list[float], tmp_path: Path) -> None:
    """Its number is not used again, and for a while no other one starts ahead."""
    flow = Flow(tmp_path)
    fork = waits_ahead(flow, clock)
    if why == "the keeper ends":
        flow.keeper.end()
        flow.keeper.run()
    else:
        flow.over = why == "the flow is over"
        if why == "it is back":
            flow.waits_for()
        if why == "the flow has gone on":
            flow.own.until_ms = 11_000
        flow.keeper.look()
    assert not fork.isActive and flow.newest.number == 1 and not flow.newest.is_open and flow.standing.epoch is None
    if why == "the keeper ends":
        return
    clock[0] += epoch_keeper.KEPT_S
    flow.over, flow.own.until_ms = False, 12_000
    flow.keeper.look()
    assert not (Path(flow.checkpoint) / "epochs/1").exists()
    flow.waits_for("app")
    flow.keeper.look()
    assert flow.ahead == [True, False] and flow.newest.number == 2 and flow.newest.is_open


def test_an_input_that_comes_shortly_before_each_epoch_costs_few_starts(clock: list[float], tmp_path: Path) -> None:
    flow = Flow(tmp_path)
    for minute in range(20):
        flow.own.until_ms = 20_000 + minute
        flow.waits_for()
        waits_ahead(flow, clock)
        clock[0] += 1
    assert flow.ahead == [True] * 4, "one in ten seconds"


def test_a_fork_whose_epoch_cannot_be_noted_is_stopped(
    clock: list[float], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The storage may have the note. The next epoch has a fork of its own."""
    flow, note, fails = Flow(tmp_path), epoch_files.note_epoch, [False, True]

    def note_once(*at: Any, **how: Any) -> Epoch:
        found = note(*at, **how)
        if fails.pop():
            raise OSError("503 Slow Down")
        return found

    monkeypatch.setattr(epoch_keeper, "note_epoch", note_once)
    fork = waits_ahead(flow, clock)
    flow.waits_for("app")
    flow.keeper.look()
    assert flow.newest.is_open and flow.standing.epoch is None and not fork.left_out
    clock[0] += epoch_keeper.RETRY_S
    flow.keeper.look()
    assert not fork.isActive and flow.ahead == [True, False]
    assert flow.newest.number == 2 and flow.newest.is_open and flow.standing.epoch == 2


@pytest.mark.parametrize("stops", [True, False])
def test_a_fork_whose_end_cannot_be_noted_is_given_up_later(
    stops: bool, clock: list[float], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The storage has the note, and says that it has not."""
    flow, note, fails = Flow(tmp_path), epoch_files.note_needless, [False, True]

    def note_once(*at: Any) -> None:
        note(*at)
        if fails.pop():
            raise OSError("503 Slow Down")

    monkeypatch.setattr(epoch_keeper, "note_needless", note_once)
    fork = waits_ahead(flow, clock)
    fork.fails_to_stop = not stops
    flow.waits_for()
    for _ in range(3):
        flow.keeper.look()
    assert fork.isActive is not stops and caplog.text.count("is not forked ahead") == 1
    flow.waits_for("app")
    flow.keeper.look()
    assert flow.newest.number == 2 and flow.newest.is_open and flow.ahead == [True, False]


@pytest.mark.parametrize("fails", ["the home is another driver's", "the storage"])
def test_no_fork_runs_on_when_its_keeper_ends(
    fails: str, clock: list[float], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flow = Flow(tmp_path)
    fork = waits_ahead(flow, clock)
    flow.fenced = fails != "the storage"

    def fail(*_: Any) -> None:
        raise OSError("503 Slow Down")

    monkeypatch.setattr(epoch_keeper, "note_needless", fail)
    flow.keeper.end()
    flow.keeper.run()
    assert not fork.isActive


def test_no_place_is_used_twice_when_a_keeper_looks_for_what_was_left(
    clock: list[float], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two minutes after its start, and when the note of an epoch has failed."""
    flow, note, fails = Flow(tmp_path), epoch_files.note_epoch, [False, True]

    def note_once(*at: Any, **how: Any) -> Epoch:
        if fails.pop():
            raise OSError("503 Slow Down")
        return note(*at, **how)

    monkeypatch.setattr(epoch_keeper, "note_epoch", note_once)
    waits_ahead(flow, clock)
    clock[0] += epoch_keeper.LATE_S
    flow.keeper.look()
    clock[0] += epoch_keeper.LATE_S
    waits_ahead(flow, clock)
    flow.waits_for("app")
    flow.keeper.look()
    clock[0] += epoch_keeper.RETRY_S
    flow.keeper.look()
    numbers = [how[1] for _, how in flow.started]
    assert len(set(numbers)) == len(numbers) >= 3, numbers
    assert flow.newest.is_open and [each.isActive for each, _ in flow.started] == [False] * (len(numbers) - 1) + [True]


def test_a_fork_that_was_not_needed_leaves_the_notes_of_others_alone(tmp_path: Path) -> None:
    """Of the epoch before, whose rows readers may show yet. And of another driver, which has taken the number."""
    checkpoint = str(tmp_path / "flow")
    flow, late = open_storage(checkpoint), epoch_files.Fork(2, 20, 20)
    open_epoch(flow, Epoch(1, 3, 3, ("app",), 0, closed_after=5))
    epoch_files.note_needless(checkpoint, late)
    newest = newest_epoch(flow)
    assert newest is not None and (newest.number, newest.closed_after) == (2, 5)
    open_epoch(flow, Epoch(3, 20, 20, ("app",), 0))
    epoch_files.note_needless(checkpoint, epoch_files.Fork(3, 20, 20))
    newest = newest_epoch(flow)
    assert newest is not None and newest.number == 3 and newest.is_open


def test_a_flow_whose_input_answers_tentatively_needs_another_fork(clock: list[float], tmp_path: Path) -> None:
    flow = Flow(tmp_path)
    fork = waits_ahead(flow, clock)
    flow.inputs = frozenset({("app", 3)})
    flow.keeper.look()
    assert not fork.isActive and flow.ahead == [True, False] and flow.started[-1][1][3] == {"app": 3}
    assert flow.newest.number == 2 and flow.newest.is_open


def test_a_fork_that_fails_ahead_delays_nothing(
    clock: list[float], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    flow = Flow(tmp_path)
    flow.fails = True
    flow.keeper.look()
    clock[0] += 1
    flow.waits_for("app", held_s=0.8)
    for _ in range(3):
        flow.keeper.look()
    assert flow.ahead == [True] and caplog.text.count("is not forked ahead") == 1
    flow.fails = False
    flow.waits_for("app")
    flow.keeper.look()
    assert flow.ahead == [True, False] and flow.newest.number == 2, "its place is not used again"
    assert flow.newest.is_open


def test_batches_that_leave_no_time_for_an_answer_are_named(
    clock: list[float], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Not the first one of a run alone, and one batch that is seen again and again is one."""
    flow = Flow(tmp_path)
    rest_ms = 1_000

    def has_batch(number: int, took_ms: float) -> bool:
        flow.own.until_ms, flow.own.batch_ms = number, took_ms
        for _ in range(4):
            flow.keeper.look()
        return "a batch takes" in caplog.text

    assert not has_batch(1, rest_ms + 1)
    assert not has_batch(2, rest_ms + 1)
    assert not has_batch(3, rest_ms)
    flow.own.left = 1
    assert not any(has_batch(number, rest_ms + 1) for number in range(4, 10)), "it catches up"
    flow.own.left = 0
    assert not has_batch(10, rest_ms + 100) and not has_batch(11, rest_ms + 200)
    assert has_batch(12, rest_ms + 300) and has_batch(13, rest_ms + 300)
    assert caplog.text.count("give a smaller alpha, or a larger within") == 1


def test_a_flow_writes_its_stores_before_it_is_forked(clock: list[float], tmp_path: Path) -> None:
    """Once for each batch, and a request without an answer does not stay."""
    flow = Flow(tmp_path)
    own = cec_directory(flow.checkpoint)
    flow.own.wait = Wait({"app": 0.6})
    flow.keeper.look()
    first = FLUSH.read_if_sound(own)
    assert first is not None and not flow.started
    answer_flush(own, first, 1, ())
    flow.keeper.look()
    assert FLUSH.read_if_sound(own) is None, "nothing is new"
    flow.own.until_ms = 11_000  # the input is slow, and rows wait for it still
    flow.keeper.look()
    second = FLUSH.read_if_sound(own)
    assert second not in (None, first)
    flow.own.until_ms = 12_000  # there was no answer
    flow.keeper.look()
    assert FLUSH.read_if_sound(own) not in (None, second)
    flow.waits_for("app")
    flow.keeper.look()
    assert flow.started and FLUSH.read_if_sound(own) is None


def test_an_epoch_stays_open_until_it_is_known_how_far_it_came(
    clock: list[float], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its query was stopped in a batch, and the storage does not answer for a moment."""
    flow = Flow(tmp_path)
    begin_correction(flow, 19_500)

    def fail(_: str) -> Progress:
        raise OSError("503 Slow Down")

    monkeypatch.setattr(epoch_keeper, "read_planned", fail)
    for until_ms in (19_500, 19_500, 20_000):
        flow.own.until_ms = until_ms
        flow.keeper.look()
        assert flow.newest.is_open and not flow.query.isActive
    monkeypatch.setattr(epoch_keeper, "read_planned", lambda _: Progress(21_000, 20_000))
    flow.keeper.look()
    assert flow.newest.is_open and flow.standing.until_ms == 21_000
    flow.own.until_ms = 21_000
    flow.keeper.look()
    assert not flow.newest.is_open


def test_readers_learn_that_an_epoch_delays_its_rows_no_more(clock: list[float], tmp_path: Path) -> None:
    flow = Flow(tmp_path, while_away=Pace.DELAY)
    flow.waits_for("app")
    flow.keeper.look()
    assert flow.newest.pause_ms == 1_000
    flow.query.until_ms = 20_000
    flow.waits_for()
    flow.own.until_ms = 12_000
    flow.keeper.look()
    assert flow.newest.pause_ms == 0 and flow.newest.is_open and flow.pauses == [1_000, 0]


def test_a_query_that_did_not_stop_is_stopped_again(clock: list[float], tmp_path: Path) -> None:
    flow = Flow(tmp_path)
    flow.waits_for("app")
    flow.keeper.look()
    flow.query.until_ms, flow.query.fails_to_stop = 12_500, True
    flow.waits_for()
    flow.own.until_ms = 12_000
    flow.keeper.look()
    assert flow.query.isActive
    clock[0] += epoch_keeper.RETRY_S
    flow.query.fails_to_stop = False
    flow.keeper.look()
    assert not flow.query.isActive


def test_an_epoch_that_does_not_start_is_tried_again_later(clock: list[float], tmp_path: Path) -> None:
    flow = Flow(tmp_path)
    flow.waits_for("app")
    flow.fails = True
    for _ in range(3):
        flow.keeper.look()
    assert flow.newest.number == 1 and not flow.newest.is_open, "it counts no more"
    flow.fails = False
    flow.keeper.look()
    assert not flow.started, "not at once"
    clock[0] += epoch_keeper.RETRY_S
    flow.keeper.look()
    assert flow.newest.number == 2 and flow.newest.is_open
    flow.query.isActive, flow.query.error = False, "lost"
    flow.keeper.look()
    assert not flow.newest.is_open
    clock[0] += epoch_keeper.RETRY_S
    flow.keeper.look()
    assert flow.newest.number == 3 and flow.newest.is_open


@pytest.mark.parametrize("step", ["open_epoch", "read_until"])
def test_an_epoch_whose_begin_fails_after_its_note_is_closed(
    step: str, clock: list[float], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Readers look at the newest note: an open one without rows would keep the rows of an earlier epoch for ever."""

    def fail(*arguments: Any) -> None:
        if step == "open_epoch":
            open_epoch(*arguments)  # its answer is lost
        raise OSError("503 Slow Down")

    flow = Flow(tmp_path)
    flow.waits_for("app")
    with monkeypatch.context() as storage:
        storage.setattr(epoch_files if step == "open_epoch" else epoch_keeper, step, fail)
        flow.keeper.look()
    assert flow.newest.number == 1 and flow.newest.is_open
    flow.waits_for()
    clock[0] += epoch_keeper.RETRY_S
    flow.keeper.look()
    assert not flow.newest.is_open and not flow.started
    clock[0] += epoch_keeper.KEPT_S
    flow.keeper.look()
    assert not (Path(flow.checkpoint) / "epochs/1").exists()


def test_an_epoch_whose_begin_has_failed_is_closed_at_the_end(
    clock: list[float], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*arguments: Any) -> None:
        open_epoch(*arguments)
        raise OSError("503 Slow Down")

    flow = Flow(tmp_path)
    flow.waits_for("app")
    with monkeypatch.context() as storage:
        storage.setattr(epoch_files, "open_epoch", fail)
        flow.keeper.look()
    assert flow.newest.is_open
    flow.keeper.end()
    flow.keeper.run()
    assert not flow.newest.is_open


def test_its_thread_ends_and_closes_the_epoch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(epoch_keeper, "read_progress", lambda _: Progress())
    monkeypatch.setattr(epoch_keeper, "read_wait", lambda query: query.wait)
    flow = Flow(tmp_path)
    flow.waits_for("app")
    flow.keeper.start()
    eventually(lambda: flow.standing.epoch == 1 and bool(flow.started))
    flow.keeper.end()
    flow.keeper.join(30.0)
    assert not flow.keeper.is_alive() and not flow.newest.is_open and not flow.query.isActive


def test_an_epoch_behind_a_newer_note_is_closed_however_often_the_storage_fails(
    clock: list[float], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its rows count no more, and its files go with those of the newer one, so its query must end before."""
    flow, close = Flow(tmp_path), epoch_files.end_epoch

    def fail(checkpoint: str, epoch: Epoch) -> None:
        if epoch.number == 1:
            raise OSError("503 Slow Down")
        close(checkpoint, epoch)

    flow.waits_for("app")
    flow.keeper.look()
    first = flow.query
    flow.inputs = frozenset({("short", 1)})
    with monkeypatch.context() as storage:
        storage.setattr(epoch_keeper, "end_epoch", fail)
        flow.keeper.look()  # the note of the second one is there, and the first one is not closed
        clock[0] += epoch_keeper.RETRY_S
        flow.keeper.look()
    assert flow.newest.number == 2 and first.isActive
    flow.own.until_ms = 10_500  # so that the flow does not stand still, which alone would close it
    clock[0] += epoch_keeper.RETRY_S
    flow.keeper.look()
    assert not first.isActive
    assert flow.newest.number == 3 and flow.newest.is_open and flow.standing.epoch == 3


@pytest.mark.parametrize("step", ["ask_flush", "withdraw_flush", "flush_answer"])
def test_a_flow_that_cannot_be_asked_to_write_is_forked_in_time(
    step: str, clock: list[float], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise OSError("403 Forbidden")

    flow = Flow(tmp_path)
    monkeypatch.setattr(epoch_keeper, step, fail)
    flow.own.wait = Wait({"app": 0.6})
    flow.keeper.look()
    flow.waits_for("app")
    flow.keeper.look()
    assert flow.newest.is_open and len(flow.started) == 1


def test_a_flow_that_stops_leaves_no_request(clock: list[float], tmp_path: Path) -> None:
    flow = Flow(tmp_path)
    flow.own.wait = Wait({"app": 0.6})
    flow.keeper.look()
    assert FLUSH.read_if_sound(cec_directory(flow.checkpoint)) is not None
    flow.over = True
    flow.keeper.look()
    assert FLUSH.read_if_sound(cec_directory(flow.checkpoint)) is None


def test_files_go_only_when_no_query_writes_them(clock: list[float], tmp_path: Path) -> None:
    flow = Flow(tmp_path)
    flow.waits_for("app")
    flow.keeper.look()
    flow.query.fails_to_stop = True
    flow.waits_for()
    flow.own.until_ms = flow.query.until_ms = 20_000
    flow.keeper.look()
    assert flow.newest.is_open, "it is stopped first"
    clock[0] += epoch_keeper.RETRY_S
    flow.keeper.look()
    assert not flow.newest.is_open and flow.query.isActive
    clock[0] += epoch_keeper.KEPT_S
    flow.keeper.look()
    assert (Path(flow.checkpoint) / "epochs/1").exists()
    flow.query.fails_to_stop = False
    clock[0] += epoch_keeper.RETRY_S
    flow.keeper.look()
    assert not flow.query.isActive and not (Path(flow.checkpoint) / "epochs/1").exists()


def test_files_that_cannot_be_deleted_delay_no_epoch(
    clock: list[float], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flow, asked = Flow(tmp_path), list[int]()

    def fail(_: str, number: int) -> None:
        asked.append(number)
        raise OSError("503 Slow Down")

    flow.waits_for("app")
    flow.keeper.look()
    flow.waits_for()
    flow.own.until_ms = flow.query.until_ms = 20_000
    for _ in range(2):
        flow.keeper.look()
    assert not flow.newest.is_open
    clock[0] += epoch_keeper.KEPT_S
    with monkeypatch.context() as storage:
        storage.setattr(epoch_keeper, "delete_epoch", fail)
        for _ in range(5):
            flow.keeper.look()
        assert asked == [1], "not at each look"
        flow.waits_for("app")
        flow.keeper.look()
        assert flow.newest.number == 2 and flow.newest.is_open
    clock[0] += epoch_keeper.RETRY_S
    flow.keeper.look()
    assert not (Path(flow.checkpoint) / "epochs/1").exists()


def test_no_more_tentative_rows_while_the_flow_catches_up(clock: list[float], tmp_path: Path) -> None:
    flow = Flow(tmp_path, while_correcting=Pace.SUSPEND)
    begin_correction(flow)
    flow.keeper.look()
    assert not flow.query.isActive and flow.newest.is_open and flow.standing.until_ms == 20_000


def begin_correction(flow: Flow, own_ms: int = 12_000) -> None:
    """Brings the flow to `own_ms`, where its input is back, and it is behind its epoch."""
    flow.waits_for("app")
    flow.keeper.look()
    flow.query.until_ms = 20_000
    flow.keeper.look()
    flow.waits_for()
    flow.own.until_ms = own_ms


@pytest.mark.parametrize("away", [Pace.PROCESS, Pace.DELAY])
@pytest.mark.parametrize("correcting", [Pace.PROCESS, Pace.DELAY])
def test_the_query_of_an_epoch_starts_again_if_its_pace_changes(
    away: Pace, correcting: Pace, clock: list[float], tmp_path: Path
) -> None:
    flow, wait_ms = Flow(tmp_path, while_away=away, while_correcting=correcting), {Pace.PROCESS: 0, Pace.DELAY: 1_000}
    flow.waits_for("app")
    flow.keeper.look()
    assert flow.pauses == [wait_ms[away]]
    flow.query.until_ms = 20_000
    flow.keeper.look()
    flow.waits_for()
    flow.own.until_ms = 12_000
    for _ in range(3):
        flow.keeper.look()
    changes = away is not correcting
    assert flow.pauses == [wait_ms[away], *([wait_ms[correcting]] if changes else [])]
    assert flow.started[0][0].isActive != changes and flow.query.isActive
    assert [how[:2] for _, how in flow.started] == [("totals epoch 1", "1")] * len(flow.pauses)
    assert flow.newest.is_open and flow.standing.until_ms == 20_000, "what it has given out counts"
    flow.own.until_ms = 19_500
    flow.keeper.look()
    assert flow.query.isActive == (correcting is Pace.DELAY), "one that delays is behind by as much as it may be"
    assert flow.newest.is_open
    flow.own.until_ms = 20_000
    for _ in range(2):
        flow.keeper.look()
    assert not flow.newest.is_open


def test_an_epoch_whose_query_cannot_start_in_its_new_pace_stays_until_the_flow_has_passed_it(
    clock: list[float], tmp_path: Path
) -> None:
    """Its rows count meanwhile, as those of a suspended one do."""
    flow = Flow(tmp_path, while_correcting=Pace.DELAY)
    begin_correction(flow)
    flow.fails = True
    flow.keeper.look()
    flow.keeper.look()
    assert flow.newest.is_open and not flow.query.isActive
    flow.own.until_ms = 20_000
    flow.keeper.look()
    assert not flow.newest.is_open


def test_an_epoch_whose_query_cannot_start_again_counts_with_its_last_batch(clock: list[float], tmp_path: Path) -> None:
    """The stop came between the rows of that batch and Spark's report of it."""
    flow = Flow(tmp_path, while_correcting=Pace.DELAY)
    begin_correction(flow)
    plan(flow, "1", 21_000)
    flow.fails = True
    flow.keeper.look()
    flow.own.until_ms = 20_000
    flow.keeper.look()
    assert flow.newest.is_open and not flow.query.isActive, "readers have rows up to 21 s, and the flow has not"
    flow.own.until_ms = 21_000
    flow.keeper.look()
    assert not flow.newest.is_open


def plan(flow: Flow, epoch: str, until_ms: int, text: str | None = None) -> None:
    """Spark's newest plan of an epoch's query: up to there, or another text."""
    offsets = Path(flow.checkpoint) / "epochs" / epoch / "offsets"
    offsets.mkdir(parents=True, exist_ok=True)
    metadata = json.dumps({"batchWatermarkMs": until_ms})
    end = json.dumps({"until": until_ms, "batch": 1, "first": 0, "by": "t"})
    (offsets / "7").write_text(f"v1\n{metadata}\n{end}" if text is None else text)


@pytest.mark.parametrize("text", ["", "\0\0\0", "v1\n{", "v1\n7\n{}", 'v1\n{}\n{"until": 1'])
def test_an_epoch_whose_plan_is_damaged_is_closed_and_another_one_comes(
    text: str, clock: list[float], tmp_path: Path
) -> None:
    """Nobody can tell how far it came. It must not hold up all later ones."""
    flow = Flow(tmp_path)
    begin_correction(flow, 19_500)
    flow.keeper.look()
    plan(flow, "1", 0, text)
    for _ in range(2):
        flow.keeper.look()
        assert flow.newest.is_open, "NFS may show a file before its bytes"
    clock[0] += epoch_keeper.RETRY_S
    flow.keeper.look()
    assert not flow.newest.is_open and flow.standing.epoch is None
    flow.waits_for("app")
    flow.keeper.look()
    assert flow.newest.number == 2 and flow.newest.is_open


@pytest.mark.parametrize("mends", [True, False])
def test_an_epoch_of_which_nobody_knows_how_far_it_came_has_not_been_passed(
    mends: bool, clock: list[float], tmp_path: Path
) -> None:
    """Readers keep its rows until the next epoch has some, or the flow is there."""
    flow = Flow(tmp_path)
    flow.waits_for("app")
    flow.keeper.look()
    flow.waits_for()
    flow.inputs = frozenset({("short", 1)})
    flow.keeper.look()
    assert flow.newest.number == 2
    plan(flow, "1", 0, "")
    flow.keeper.look()
    if mends:
        plan(flow, "1", 14_000)
    clock[0] += epoch_keeper.RETRY_S
    flow.query.until_ms = 15_000
    flow.keeper.look()
    flow.own.until_ms, flow.inputs = 14_500, frozenset()
    flow.keeper.look()
    assert flow.newest.number == 2 and not flow.query.isActive, "it is suspended"
    flow.own.until_ms, flow.inputs = 19_000, frozenset({("short", 2)})
    flow.keeper.look()
    assert flow.newest.number == 3 and flow.newest.has_passed == mends


def test_an_epoch_that_a_driver_without_a_home_notes_late_is_closed(clock: list[float], tmp_path: Path) -> None:
    """Its storage has repeated the creation, after the next driver had closed what it found."""
    flow = Flow(tmp_path)
    flow.keeper.look()
    open_epoch(flow.storage, Epoch(1, -1, -1, ("app",), 0))
    clock[0] += epoch_keeper.LATE_S
    flow.keeper.look()
    assert not flow.newest.is_open and flow.standing.epoch is None
    flow.waits_for("app")
    flow.keeper.look()
    assert flow.newest.number == 2 and flow.newest.is_open


def test_a_query_that_spark_fails_to_stop_is_started_again_later(
    clock: list[float], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The stop takes effect a little later. That is no failure of the epoch."""
    flow = Flow(tmp_path, while_correcting=Pace.DELAY)
    begin_correction(flow)
    first = flow.query

    def stop() -> None:
        raise TimeoutError("stopTimeout")

    with monkeypatch.context() as patch:
        patch.setattr(first, "stop", stop)
        flow.keeper.look()
        assert flow.newest.is_open and first.isActive and len(flow.started) == 1
    first.stop()
    flow.keeper.look()
    assert flow.newest.is_open and flow.pauses == [0, 1_000] and flow.query.isActive


def test_an_input_that_is_slow_changes_the_pace_once(clock: list[float], tmp_path: Path) -> None:
    flow = Flow(tmp_path, while_correcting=Pace.DELAY)
    begin_correction(flow)
    for number in range(6):
        flow.waits_for(*(["app"] if number % 2 else []))
        flow.own.until_ms = (flow.own.until_ms or 0) + 100
        flow.keeper.look()
    assert flow.pauses == [0, 1_000] and flow.newest.number == 1 and flow.query.isActive


def test_an_epoch_of_an_input_has_let_its_rows_wait_and_is_not_waited_for(clock: list[float], tmp_path: Path) -> None:
    """The flow reads the epoch of `short`, whose rows come later than those of its other inputs."""
    flow = Flow(tmp_path, while_away=Pace.DELAY)
    flow.inputs = frozenset({("short", 3)})
    flow.waits_for("short")
    flow.keeper.look()
    assert flow.pauses == [0]
    for _ in range(3):
        flow.query.until_ms = (flow.query.until_ms or 0) + 1_000
        flow.query.wait = Wait({"short": 5.0})
        flow.keeper.look()
    assert flow.newest.number == 1 and flow.query.isActive
    flow.query.wait = Wait({"short": 5.0, "app": 1.5})
    flow.waits_for("short", "app")
    flow.keeper.look()
    assert flow.newest.number == 1 and flow.query.left_out == [{"app"}]


def test_an_epoch_goes_on_without_another_input_that_goes_away(clock: list[float], tmp_path: Path) -> None:
    """Its query learns it once. If it is started again in another pace, it does not wait for that one either."""
    flow = Flow(tmp_path, while_correcting=Pace.DELAY)
    flow.waits_for("app")
    flow.keeper.look()
    flow.query.until_ms, flow.query.wait = 12_000, Wait({"web": 1.5})
    flow.waits_for("app", "web")
    for _ in range(3):
        flow.keeper.look()
    assert flow.query.left_out == [{"app", "web"}] and flow.newest.number == 1
    assert flow.standing.absent == ("app", "web")
    flow.query.until_ms, flow.query.wait = 20_000, Wait()
    flow.keeper.look()
    flow.waits_for()
    flow.own.until_ms = 12_000
    flow.keeper.look()
    assert [how[2] for _, how in flow.started] == [("app",), ("app", "web")]


def test_an_input_that_is_back_while_another_one_goes_away_counts_for_the_query_that_starts_again(
    clock: list[float], tmp_path: Path
) -> None:
    """Both come in one look. An order to the query that is stopped would end with it."""
    flow = Flow(tmp_path, while_correcting=Pace.DELAY)
    flow.waits_for("app")
    flow.keeper.look()
    first = flow.query
    first.until_ms, first.wait = 20_000, Wait({"web": 1.5}, frozenset({"app"}))
    flow.waits_for()
    flow.own.until_ms = 12_000
    flow.keeper.look()
    assert [how[2] for _, how in flow.started] == [("app",), ("web",)]
    assert not first.left_out and not flow.query.left_out and flow.standing.absent == ("web",)


@pytest.mark.parametrize("moment", ["opens", "closes", "deletes"])
def test_a_driver_whose_pipeline_another_one_runs_changes_no_epoch(
    moment: str, clock: list[float], tmp_path: Path
) -> None:
    """As after a pause, on an object store. The flow waits, so that it writes nothing that would be refused."""
    flow = Flow(tmp_path)
    if moment != "opens":
        flow.waits_for("app")
        flow.keeper.look()
        flow.query.until_ms = 20_000
    if moment == "deletes":
        flow.waits_for()
        flow.own.until_ms = 20_000
        for _ in range(2):
            flow.keeper.look()
        assert not flow.newest.is_open
    before = sorted(str(path) for path in Path(flow.checkpoint).rglob("*"))
    flow.fenced = True
    flow.waits_for(*(["app"] if moment == "opens" else []))
    flow.own.until_ms = 20_000
    for _ in range(2):
        clock[0] += epoch_keeper.KEPT_S
        flow.keeper.look()
    assert sorted(str(path) for path in Path(flow.checkpoint).rglob("*")) == before
    assert list_numbers(flow.storage) == ([] if moment == "opens" else [1])
    assert moment != "closes" or flow.newest.is_open


def test_a_session_that_ends_leaves_the_open_epoch_as_it_is(
    clock: list[float], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flow = Flow(tmp_path)
    flow.waits_for("app")
    flow.keeper.look()
    flow.query.until_ms, flow.query.wait = 12_000, Wait({"web": 1.5})

    def fail(*_: object) -> None:
        raise RuntimeError("no session")

    with monkeypatch.context() as session:
        session.setattr(epoch_keeper, "leave_out", fail)
        flow.keeper.look()
    assert flow.standing.absent == ("app",) and flow.query.isActive
    flow.keeper.look()
    assert flow.query.left_out == [{"app", "web"}], "it is tried again"


@pytest.mark.parametrize("passed", [True, False])
def test_a_note_says_whether_the_flow_had_passed_the_epochs_before(
    passed: bool, clock: list[float], tmp_path: Path
) -> None:
    flow = Flow(tmp_path)
    flow.waits_for("app")
    flow.keeper.look()
    assert flow.newest.has_passed, "there is none before"
    flow.query.until_ms = 14_000
    flow.keeper.look()
    flow.own.until_ms = 13_500
    flow.waits_for()
    flow.keeper.look()
    assert flow.standing.epoch == 1 and not flow.query.isActive, "it is suspended"
    flow.own.until_ms = 14_000 if passed else 13_900
    flow.inputs = frozenset({("short", 1)})
    flow.keeper.look()
    assert flow.newest.number == 2 and flow.newest.has_passed == passed


def test_a_query_that_runs_may_have_given_out_more_than_it_says(clock: list[float], tmp_path: Path) -> None:
    flow = Flow(tmp_path)
    flow.waits_for("app")
    flow.keeper.look()
    flow.own.until_ms = 14_000
    flow.inputs = frozenset({("short", 1)})
    flow.keeper.look()
    assert flow.newest.number == 2 and not flow.newest.has_passed


def test_the_query_of_an_epoch_ends_with_a_driver_whose_home_is_lost(clock: list[float], tmp_path: Path) -> None:
    """The note stays: another driver closes it, and may have another epoch of that number by now."""
    flow = Flow(tmp_path)
    flow.waits_for("app")
    flow.keeper.look()
    flow.fenced = True
    flow.keeper.end()
    flow.keeper.run()
    assert flow.newest.is_open and not flow.query.isActive


def test_a_flow_that_is_over_has_no_epoch(clock: list[float], tmp_path: Path) -> None:
    flow = Flow(tmp_path)
    flow.waits_for("app")
    flow.keeper.look()
    flow.over = True
    flow.keeper.look()
    assert not flow.newest.is_open and not flow.query.isActive


def test_an_epoch_stays_if_another_one_may_not_be_opened_yet(clock: list[float], tmp_path: Path) -> None:
    flow = Flow(tmp_path)
    flow.inputs = frozenset({("short", 3)})
    flow.keeper.look()
    flow.keeper._rests_until = clock[0] + 5
    flow.inputs = frozenset({("short", 4)})
    flow.keeper.look()
    assert flow.newest.is_open and flow.query.isActive
    clock[0] += 5
    flow.keeper.look()
    assert flow.newest.number == 2 and flow.newest.is_open


def test_a_flow_that_reads_one_with_an_epoch_has_one_too(clock: list[float], tmp_path: Path) -> None:
    flow = Flow(tmp_path)
    flow.inputs = frozenset({("short", 3)})
    flow.keeper.look()
    assert flow.started[0][1] == ("totals epoch 1", "1", (), {"short": 3})
    flow.query.until_ms = 20_000
    flow.inputs = frozenset({("short", 4)})
    flow.keeper.look()
    assert flow.started[1][1] == ("totals epoch 2", "2", (), {"short": 4}) and not flow.started[0][0].isActive
    flow.query.until_ms = 20_000
    flow.keeper.look()
    flow.inputs = frozenset()
    flow.own.until_ms = 15_000
    flow.keeper.look()
    assert not flow.query.isActive and flow.newest.is_open, "no more rows come to it"
    flow.own.until_ms = 20_000
    flow.keeper.look()
    assert not flow.newest.is_open and len(flow.started) == 2


def test_a_start_closes_what_is_left(tmp_path: Path) -> None:
    checkpoint = tmp_path / "flow"
    storage = open_storage(str(checkpoint))
    for number in (1, 2):
        open_epoch(storage, Epoch(number, -1, -1, ("app",), 1))
        (checkpoint / f"epochs/{number}").mkdir()
    note = checkpoint / "epochs/2.json"
    note.write_bytes(note.read_bytes()[:-5])  # a damaged note keeps no pipeline from its start
    close_left_epochs(str(checkpoint))
    assert list_numbers(storage) == [2] and (newest := newest_epoch(storage)) is not None and not newest.is_open
    assert not list((checkpoint / "epochs").glob("[0-9]"))
    close_left_epochs(str(tmp_path / "never began"))


def test_no_note_goes_before_the_files_of_its_epoch(tmp_path: Path) -> None:
    """The keeper may not know an epoch, because the answer to its note was lost."""
    storage = open_storage(str(tmp_path))
    for number in (1, 2, 3):
        open_epoch(storage, Epoch(number, -1, -1, (), 1))
        (tmp_path / f"epochs/{number}").mkdir()
    delete_epoch(str(tmp_path), 2)
    assert list_numbers(storage) == [3]
    assert [path.name for path in (tmp_path / "epochs").iterdir() if path.is_dir()] == ["3"]


def test_a_start_removes_a_fork_in_the_making(tmp_path: Path) -> None:
    """Its log lies elsewhere, and its own files do not say where yet."""
    checkpoint, conf = str(tmp_path / "flow"), {PREFIX + "log.path": str(tmp_path / "logs")}
    flow = {"log_home": str(tmp_path / "logs/own"), "log_id": "00", "settings_conf": conf}
    QUERY.write(cec_directory(checkpoint), flow)
    place = epoch_checkpoint(checkpoint, 1)
    log = home_of(place, parse_settings(conf), None)
    open_storage(place).create("offsets/0", b"")
    open_storage(log).create("cuts/00000000.json", b"")
    open_storage(str(tmp_path / "logs/own")).create("log.json", b"")
    close_left_epochs(checkpoint)
    assert not Path(place).exists() and [path.name for path in (tmp_path / "logs").iterdir()] == ["own"]


def test_where_a_flow_was_stands_in_its_offsets(tmp_path: Path) -> None:
    """After a restart no batch has run yet, and the flow has not gone on since the fork."""
    storage = open_storage(str(tmp_path))
    ends = ('{"by":"time","until":7000,"batch":3,"first":2}', "-", '{"by":"time","until":5000,"batch":5,"first":5}')
    storage.create("offsets/4", "\n".join(("v1", '{"batchWatermarkMs":6000}', *ends)).encode())
    assert read_until(str(tmp_path), 4) == 7_000 and read_until(str(tmp_path), -1) is None
    storage.create("offsets/5", b"v1\n{}\n-\n")
    assert read_until(str(tmp_path), 5) is None
