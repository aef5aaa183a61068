"""Flows that answer within X: tentative rows while an input is away, and the right ones when it is back."""

from __future__ import annotations

import contextlib
import json
import shutil
import sqlite3
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.streaming.readwriter import DataStreamWriter

from cec_it.board import Board
from cec_it.feed import NOON, WATERMARKS, Feed, Windows, rows_of, windows
from cec_it.local import eventually
from cec_it.running import flow_of, running
from spark_cec.adapters.fsspec_storage import open_storage
from spark_cec.admin.find_log import find_log
from spark_cec.admin.recoveries import read_recoveries
from spark_cec.availability.epochs import list_numbers, newest_epoch
from spark_cec.availability.failure import Progress
from spark_cec.pipeline import Pipeline, apply_changes, epoch_files
from spark_cec.pipeline.declare import FlowError
from spark_cec.pipeline.epoch_keeper import EpochKeeper
from spark_cec.pipeline.flows import Flows
from spark_cec.pipeline.query_progress import has_run_batch, is_of_batch, read_progress
from spark_cec.pipeline.running import RunningPipeline
from spark_cec.settings import PREFIX

DIRTY = {PREFIX + "CI": "0ms", PREFIX + "effort": "0", PREFIX + "stop.flush": "off"}
"""Windows are written at their opening alone, so that a recovery replays."""


def window_board() -> Board:
    """A board of the windows of `totals`."""
    begin = int(NOON.timestamp())
    return Board(lambda row: (int(row.time.timestamp()) - begin, row.page, row.n, row.price))


def per_page(
    root: Path, board: Board, inputs: tuple[str, ...] = ("web", "app"), price: str = "DOUBLE", **how: Any
) -> Pipeline:
    """The inputs -> counts and sums by page and window of 10 seconds, within X, on a board of tentative rows, too."""
    made = Pipeline("shop", f"{root}/home")

    def declare(name: str) -> None:
        @made.flow(name=name, kept=True)
        def rows(spark: SparkSession) -> DataFrame:
            return spark.readStream.schema(f"time TIMESTAMP, page STRING, price {price}").json(f"{root}/{name}")

    for name in inputs:
        declare(name)

    def totals(web: DataFrame, app: DataFrame) -> DataFrame:
        grouped = web.unionByName(app).groupBy(f.window("time", "10 seconds").alias("w"), "page")
        found = grouped.agg(f.count("*").alias("n"), f.sum("price").alias("price"))
        return found.select(f.col("w.start").alias("time"), "page", "n", "price")

    def totals_of_three(web: DataFrame, app: DataFrame, tel: DataFrame) -> DataFrame:
        return totals(web.unionByName(tel), app)

    watermarks = dict.fromkeys(inputs, WATERMARKS["web"])
    bound = {"within": "6s", "alpha": 0.8}  # longer than the flows take with little input on a busy machine
    options = {"name": "totals", "kept": True, "partitions": 2, "watermarks": watermarks, **bound, **how}
    made.flow(**options)(totals if len(inputs) == 2 else totals_of_three)

    @made.sink(tentative=True)
    def shown(totals: DataFrame) -> DataStreamWriter:
        return totals.writeStream.foreachBatch(board.take)

    return made


def has_epoch(run: RunningPipeline, number: int, *absent: str) -> None:
    """Waits for the epoch of that number, without these inputs."""

    def look() -> bool | None:
        flow = flow_of(run, "totals")
        return (flow.epoch == number and flow.absent == absent) or None

    eventually(look, f"epoch {number} without {absent}")


def reaches(run: RunningPipeline, second: int, flow: str = "totals") -> None:
    """Waits until the flow's watermark is this second after noon."""
    at_ms = int(NOON.timestamp() + second) * 1000
    eventually(lambda: (flow_of(run, flow).complete_to_ms or 0) >= at_ms or None, f"{second} s after noon")


def has_row(spark: SparkSession, root: Path, flow: str, second: float) -> None:
    """Waits until the channel of a flow has a row of this second after noon."""
    at = NOON.timestamp() + second

    def look() -> bool | None:
        return any(row.time.timestamp() == at for row in rows_of(spark, root, flow)) or None

    eventually(look, f"a row of {flow} at {second} s")


def has_none(run: RunningPipeline, board: Board) -> None:
    """Waits until no epoch is open, and no tentative row is left."""
    eventually(lambda: (not board.tentative and flow_of(run, "totals").epoch is None) or None, "all is stable")


def replayed_batches(root: Path, epoch: int) -> int:
    """How many batches the recovery of an epoch has replayed."""
    place = find_log(f"{root}/home/flows/totals/epochs/{epoch}")
    return sum(each.replayed_batches for each in read_recoveries(place, 10))


CONFS = {
    "doubles": {},
    "dirty windows": DIRTY,
    "with ids": {**DIRTY, "spark.sql.streaming.stateStore.checkpointFormatVersion": "2"},
    "log elsewhere": {**DIRTY, PREFIX + "log.path": "{}/logs"},
}


@pytest.mark.parametrize("case", CONFS)
def test_an_input_that_is_away_is_answered_without_and_corrected(
    case: str, spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In all cases but the first the flow does not get to write its stores before the fork, so the fork replays."""
    if CONFS[case]:
        monkeypatch.setattr(EpochKeeper, "_prepare", lambda *_: None)
    conf = {key: value.format(tmp_path) for key, value in CONFS[case].items()}
    feed, board, price = Feed(tmp_path), window_board(), "INT" if conf else "DOUBLE"
    stable: Windows = Counter([(0, "a", 2, 3), (0, "b", 1, 8)])
    bound = "6s" if conf else "15s"  # the first case of a session waits for Spark's compiler
    with running(per_page(tmp_path, board, price=price, conf=conf, within=bound), spark) as run:
        feed.put("web", (1, "a", 1), (15, "a", 1))
        feed.put("app", (2, "a", 2), (3, "b", 8), (14, "z", 5))
        eventually(lambda: board.stable == stable or None, "the first window is stable")
        feed.put("web", (16.5, "a", 1), (18, "a", 1))
        feed.put("app", (18, "z", 1))
        reaches(run, 16)
        feed.put("web", (19, "a", 1))
        feed.put("app", (19, "z", 1))
        reaches(run, 17)  # a window that was written at its opening has changed
        assert not board.tentative
        feed.put("web", (19.5, "a", 4), (25, "a", 1), (40, "z", 2))
        has_epoch(run, 1, "app")
        without: Windows = Counter([(10, "a", 5, 8), (10, "z", 3, 7), (20, "a", 1, 1)])
        eventually(lambda: board.shown() == without or None, f"{without}, not {board.shown()}")
        assert board.stable == stable, "none of them is stable"
        assert PREFIX + "log.path" in conf or windows(spark, tmp_path) == stable
        assert (replayed_batches(tmp_path, 1) > 0) is bool(conf)
        feed.put("app", (19.5, "a", 16), (24, "b", 2), (41, "z", 1))
        right = stable + Counter([(10, "a", 6, 24), (10, "z", 3, 7), (20, "a", 1, 1), (20, "b", 1, 2)])
        eventually(lambda: board.stable == right or None, f"{right}")
        has_none(run, board)
        assert PREFIX + "log.path" in conf or windows(spark, tmp_path) == right
    assert board.undone == ["totals/1"]


def test_a_fork_has_nothing_to_replay(spark: SparkSession, tmp_path: Path) -> None:
    """The flow writes its stores while it waits, and they would be dirty otherwise."""
    feed, board = Feed(tmp_path), window_board()
    with running(per_page(tmp_path, board, conf=DIRTY), spark) as run:
        for second in (15, 18):
            for name in ("web", "app"):
                feed.put(name, (second, "a", 1))
            reaches(run, second - 2)
        feed.put("web", (19, "a", 1), (31, "z", 1))
        has_epoch(run, 1, "app")
        eventually(lambda: board.shown() == Counter([(10, "a", 5, 5)]) or None, "without app")
        assert replayed_batches(tmp_path, 1) == 0
        feed.put("app", (32, "z", 1))
        has_none(run, board)
    assert windows(spark, tmp_path) == Counter([(10, "a", 5, 5)])


def test_inputs_come_and_go_one_after_the_other(spark: SparkSession, tmp_path: Path) -> None:
    feed, board = Feed(tmp_path), window_board()
    inputs = ("web", "app", "tel")
    (tmp_path / "tel").mkdir()
    with running(per_page(tmp_path, board, inputs), spark) as run:
        for name in inputs:
            feed.put(name, (1, "a", 1), (15, "a", 1))
        eventually(lambda: board.stable == Counter([(0, "a", 3, 3)]) or None, "the first window is stable")
        for name in ("web", "tel"):
            feed.put(name, (25, "b", 1), (27, "b", 1))
        has_epoch(run, 1, "app")
        eventually(lambda: board.shown() == Counter([(10, "a", 3, 3)]) or None, "without app")
        feed.put("web", (33, "c", 1))
        has_epoch(run, 1, "app", "tel")
        eventually(lambda: board.shown() == Counter([(10, "a", 3, 3), (20, "b", 4, 4)]) or None, "without both")
        assert not board.undone, "the epoch goes on"
        feed.put("app", (16, "a", 1), (26, "b", 1))  # it comes, and goes again: the rows that it brought count
        has_epoch(run, 2, "app", "tel")
        eventually(lambda: board.shown() == Counter([(20, "b", 5, 5)]) or None, f"with them, not {board.shown()}")
        right: Windows = Counter([(0, "a", 3, 3), (10, "a", 4, 4)])
        assert board.stable == right
        for name in ("app", "tel"):
            feed.put(name, (34, "d", 1))
        right += Counter([(20, "b", 5, 5)])
        eventually(lambda: board.stable == right or None, f"{right}")
        has_none(run, board)
    assert windows(spark, tmp_path) == right


def test_an_input_that_is_away_for_too_long_is_given_up_until_it_is_back(spark: SparkSession, tmp_path: Path) -> None:
    """On the first and on the second start. The tentative rows become stable, and what comes too late is kept aside."""
    feed, board = Feed(tmp_path), window_board()
    how = {"waits_at_most": "10s"}
    with running(per_page(tmp_path, board, **how), spark) as run:
        feed.put("app", (2, "a", 1), (12.5, "a", 1))
        has_row(spark, tmp_path, "app", 12.5)  # else web waits for it, on a busy machine for longer than 10 s
        feed.put("web", (1, "a", 1), (15, "a", 1), (31, "b", 1))
        right: Windows = Counter([(0, "a", 2, 2)])
        eventually(lambda: board.stable == right or None, "the first window is stable")
        has_epoch(run, 1, "app")
        right += Counter([(10, "a", 2, 2)])
        eventually(lambda: board.stable == right or None, f"{right} without app, not {board.stable}")
        has_none(run, board)
        feed.put("app", (16, "late", 1))
        feed.put("web", (45, "c", 1))
        right += Counter([(30, "b", 1, 1)])
        eventually(lambda: board.stable == right or None, f"{right} at once, not {board.stable}")
    with running(per_page(tmp_path, board, **how), spark) as run:
        feed.put("app", (46, "c", 1), (60, "d", 1))
        has_row(spark, tmp_path, "app", 60)
        feed.put("web", (60, "d", 1))
        right += Counter([(40, "c", 2, 2)])
        eventually(lambda: board.stable == right or None, f"{right}, not {board.stable}")
        has_none(run, board)
    assert windows(spark, tmp_path) == right
    late = spark.read.format("cec").option("view", "late").option("reader", "totals").load(f"{tmp_path}/home/flows/app")
    assert [row.page for row in late.collect()] == ["late"]


@pytest.mark.long
def test_an_input_comes_and_goes_fifty_times(spark: SparkSession, tmp_path: Path) -> None:
    """Each time an epoch opens, and goes. Nothing is left of them."""
    feed, board, times = Feed(tmp_path), window_board(), 50
    with running(per_page(tmp_path, board, within="2s", alpha=0.5), spark) as run:
        for name in ("web", "app"):
            feed.put(name, (1, "a", 1), (15, "a", 1))
        eventually(lambda: board.stable == Counter([(0, "a", 2, 2)]) or None, "the first window is stable")
        for second in range(25, 25 + 10 * times, 10):
            feed.put("web", (second, "a", 1))
            eventually(lambda: flow_of(run, "totals").epoch, f"an epoch at {second} s")
            feed.put("app", (second, "a", 2))
            has_none(run, board)
        right: Windows = Counter([(0, "a", 2, 2), (10, "a", 2, 2)])
        right += Counter((begin, "a", 2, 3) for begin in range(20, 10 + 10 * times, 10))
        eventually(lambda: board.stable == right or None, lambda: f"{right - board.stable}, {board.stable - right}")
        assert flow_of(run, "totals").restarts == 0
        epochs = tmp_path / "home/flows/totals/epochs"
        eventually(lambda: not [each for each in epochs.iterdir() if each.is_dir()] or None, "their files are gone", 90)
    assert windows(spark, tmp_path) == right and len(board.undone) == len(set(board.undone))
    assert len(list_numbers(open_storage(f"{tmp_path}/home/flows/totals"))) <= 2, "and their notes"


def test_inputs_that_go_away_together_cost_one_epoch(spark: SparkSession, tmp_path: Path) -> None:
    feed, board = Feed(tmp_path), window_board()
    inputs = ("web", "app", "tel")
    (tmp_path / "tel").mkdir()
    with running(per_page(tmp_path, board, inputs), spark) as run:
        feed.put("web", (1, "a", 1), (15, "a", 1))
        feed.put("app", (1, "a", 1), (13, "a", 1))
        feed.put("tel", (1, "a", 1), (16, "a", 1))
        eventually(lambda: board.stable == Counter([(0, "a", 3, 3)]) or None, "the first window is stable")
        feed.put("web", (25, "b", 1), (35, "b", 1))
        has_epoch(run, 1, "app", "tel")
        eventually(lambda: board.shown() == Counter([(10, "a", 3, 3), (20, "b", 1, 1)]) or None, "without both")
        for name in ("app", "tel"):
            feed.put(name, (26, "b", 1), (36, "d", 1))
        right: Windows = Counter([(0, "a", 3, 3), (10, "a", 3, 3), (20, "b", 3, 3)])
        eventually(lambda: board.stable == right or None, f"{right}, not {board.stable}")
        has_none(run, board)
    assert board.undone == ["totals/1"]


def test_restarts_take_tentative_rows_back(spark: SparkSession, tmp_path: Path) -> None:
    """On the first and on the second restart. The next epoch has another number."""
    feed, board = Feed(tmp_path), window_board()
    feed.put("web", (1, "a", 1), (15, "a", 1), (40, "z", 1))
    feed.put("app", (2, "a", 1))
    flow = open_storage(f"{tmp_path}/home/flows/totals")
    for restart in range(3):
        with running(per_page(tmp_path, board), spark) as run:
            has_epoch(run, restart + 1, "app")
            expected: Windows = Counter([(0, "a", 2, 2), (10, "a", 1, 1)])
            eventually(lambda expected=expected: board.shown() == expected or None, f"{expected}, not {board.shown()}")
            assert board.undone == [f"totals/{number + 1}" for number in range(restart)]
        assert (newest := newest_epoch(flow)) is not None and not newest.is_open, "a stop closes it"
    with running(per_page(tmp_path, board), spark) as run:
        feed.put("app", (41, "z", 1))
        eventually(lambda: board.stable == Counter([(0, "a", 2, 2), (10, "a", 1, 1)]) or None, "stable")
        has_none(run, board)
    assert list_numbers(flow)[0] >= 3, "notes are deleted"
    assert not list((tmp_path / "home/flows/totals/epochs").glob("[1-3]")), "and the files of epochs"


def test_a_run_without_a_batch_says_nothing_of_what_its_operators_hold(spark: SparkSession, tmp_path: Path) -> None:
    """Spark reports its offsets before its first batch. Windows below them may be open."""
    feed, board = Feed(tmp_path), window_board()
    for name in ("web", "app"):
        feed.put(name, *((float(second), "a", 1.0) for second in range(15)))
    with running(per_page(tmp_path, board), spark) as run:
        reaches(run, 10)
    with running(per_page(tmp_path, board), spark) as run:

        def find() -> Any:
            query = run.queries().get("totals")
            return query if query is not None and query.lastProgress is not None else None

        query = eventually(find, "a trigger")
        first = query._jsq.recentProgress()[0]
        assert json.loads(first.sources()[0].endOffset())["until"] > 1, "it has offsets"
        assert not is_of_batch(first)
        if query._jsq.lastProgress().timestamp() == first.timestamp():
            assert read_progress(query) == Progress() and not has_run_batch(query)
        for name in ("web", "app"):
            feed.put(name, *((float(second), "a", 1.0) for second in range(15, 25)))
        eventually(lambda: has_run_batch(query) or None, "a batch")
        reaches(run, 20)
        found = read_progress(query)
        assert found.until_ms is not None and found.answered_ms is not None and found.answered_ms <= found.until_ms


def test_an_epoch_that_fails_is_begun_anew_and_the_flow_goes_on(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its last epoch has no new rows while the flow catches up."""
    monkeypatch.setattr("spark_cec.pipeline.epoch_keeper.RETRY_S", 0.5)
    feed, board = Feed(tmp_path), window_board()
    with running(per_page(tmp_path, board, while_correcting="suspend"), spark) as run:
        feed.put("web", (1, "a", 1), (15, "a", 1))
        feed.put("app", (2, "a", 1))
        has_epoch(run, 1, "app")
        eventually(lambda: board.shown() == Counter([(0, "a", 2, 2)]) or None, "tentative rows")
        shutil.rmtree(tmp_path / "home/flows/totals/epochs/1")
        feed.put("web", (25, "b", 1))
        has_epoch(run, 2, "app")
        eventually(lambda: board.shown() == Counter([(0, "a", 2, 2), (10, "a", 1, 1)]) or None, "tentative rows")
        assert flow_of(run, "totals").restarts == 0
        feed.put("app", (26, "b", 1))
        eventually(lambda: board.stable == Counter([(0, "a", 2, 2), (10, "a", 1, 1)]) or None, "stable rows")
        has_none(run, board)


@pytest.mark.parametrize(("away", "correcting"), [("delay", "delay"), ("delay", "process"), ("process", "delay")])
def test_rows_of_an_epoch_that_delays_wait_and_all_is_right_in_the_end(
    away: str, correcting: str, spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The query of an epoch starts again if its pace changes. The flow catches up in steps, so that it is seen."""
    feed, board, pauses, start = Feed(tmp_path), window_board(), list[int](), Flows.start_epoch

    def note_pause(flows: Flows, *given: Any) -> Any:
        pauses.append(given[-1].pause_ms)
        return start(flows, *given)

    monkeypatch.setattr(Flows, "start_epoch", note_pause)
    paces = {"while_away": away, "while_correcting": correcting, "reads": {"maxRowsPerTrigger": "8"}}
    with running(per_page(tmp_path, board, within="6s", alpha=0.6, **paces), spark) as run:
        feed.put("web", (1, "a", 1), (15, "a", 1))
        feed.put("app", (2, "a", 1))
        has_epoch(run, 1, "app")
        eventually(lambda: board.shown() == Counter([(0, "a", 2, 2)]) or None, "the first tentative row")
        put_at = time.monotonic()
        feed.put("web", (25, "b", 1))
        expected: Windows = Counter([(0, "a", 2, 2), (10, "a", 1, 1)])
        eventually(lambda: board.shown() == expected or None, "the second one")
        assert away == "process" or time.monotonic() - put_at > 3.6, "alpha times X"
        feed.put("web", (35, "c", 1))
        expected += Counter([(20, "b", 1, 1)])
        eventually(lambda: board.shown() == expected or None, "the third one, so the epoch is far ahead")
        feed.put("app", (16, "a", 1), (24, "b", 1))
        queries = 1 + (away != correcting)
        eventually(lambda: len(pauses) == queries or None, "the flow corrects, at the other pace")
        feed.put("web", *((second, "c", 1) for second in range(40, 600, 5)))
        feed.put("app", *((second, "c", 1) for second in range(35, 600, 5)))
        right: Windows = Counter([(0, "a", 2, 2), (10, "a", 2, 2), (20, "b", 2, 2)])
        right += Counter([(30, "c", 2, 2), *((second, "c", 4, 4) for second in range(40, 590, 10))])
        eventually(lambda: board.stable == right or None, f"{right}, not {board.stable}")
        has_none(run, board)
    waits = {"process": 0, "delay": 3_600}
    assert pauses[:queries] == [waits[each] for each in dict.fromkeys((away, correcting))]


@pytest.mark.parametrize("trigger", [None, {"processingTime": "1 second"}], ids=["at once", "with a trigger"])
def test_stable_rows_come_before_the_tentative_ones_are_taken_back(
    trigger: dict[str, str] | None, spark: SparkSession, tmp_path: Path
) -> None:
    """A window comes one batch after its last bucket."""
    feed, kinds = Feed(tmp_path), list[str]()
    made = per_page(tmp_path, window_board(), trigger=trigger, within="4s", alpha=0.5)

    @made.sink(tentative=True)
    def order(totals: DataFrame) -> DataStreamWriter:
        return totals.writeStream.foreachBatch(lambda rows, _: kinds.extend(row["_kind"] for row in rows.collect()))

    with running(made, spark):
        feed.put("web", (1, "a", 1), (15, "a", 1))
        feed.put("app", (2, "a", 1))
        eventually(lambda: "tentative" in kinds or None, "a tentative row")
        feed.put("app", (3, "a", 1), (16, "a", 1))
        eventually(lambda: "undo" in kinds or None, "it is taken back")
        assert kinds == ["tentative", "stable", "undo"]


def test_a_sink_that_is_behind_keeps_an_epoch_until_it_has_what_replaces_it(
    spark: SparkSession, tmp_path: Path
) -> None:
    """There is another epoch by then. No window vanishes that the flow had given out before that one began."""
    feed, board, made = Feed(tmp_path), window_board(), per_page(tmp_path, window_board())
    go_on, lost = threading.Event(), list[Windows]()

    @made.sink(tentative=True, reads={"maxRowsPerTrigger": "1"})
    def slow(totals: DataFrame) -> DataStreamWriter:
        def take(rows: DataFrame, batch: int) -> None:
            before = {row[:2] for row in board.shown() + board.stable}
            board.take(rows, batch)
            lost.append(Counter(before - {row[:2] for row in board.shown() + board.stable}))
            if board.tentative:
                go_on.wait(60)

        return totals.writeStream.foreachBatch(take)

    with running(made, spark) as run:
        feed.put("web", *((second, "a", 1) for second in range(1, 62, 10)), (62.5, "z", 1))
        feed.put("app", (2, "a", 1))
        eventually(lambda: sum(board.shown().values()) == 6 or None, "tentative rows")
        for second in (13, 23, 33, 43, 53):
            feed.put("app", (second, "a", 1))
            reaches(run, second - 3)
        has_epoch(run, 2, "app")  # the flow stands still again, and is near
        go_on.set()
        feed.put("app", (63, "z", 1))
        has_none(run, board)
    # The second epoch gives the window of 50 out itself, which may take a batch.
    assert {window for each in lost for window in each} <= {(50, "a")} and board.undone[0] == "totals/1"


def test_an_input_that_is_slow_is_answered_without(spark: SparkSession, tmp_path: Path) -> None:
    """It moves all the time, but rows of the other one would wait for longer than X."""
    feed, board = Feed(tmp_path), window_board()
    with running(per_page(tmp_path, board), spark) as run:
        feed.put("web", *((second, "a", 1) for second in range(1, 100, 10)))
        for second in range(2, 30):
            feed.put("app", (second, "b", 1))
            if flow_of(run, "totals").epoch is not None:
                break
            reaches(run, second - 3)
        has_epoch(run, 1, "app")


def test_damage_to_an_epoch_stops_no_stable_row(spark: SparkSession, tmp_path: Path) -> None:
    feed, board = Feed(tmp_path), window_board()
    epochs = tmp_path / "home/flows/totals/epochs"
    with running(per_page(tmp_path, board), spark) as run:
        feed.put("web", (1, "a", 1), (15, "a", 1))
        feed.put("app", (2, "a", 1))
        has_epoch(run, 1, "app")
        eventually(lambda: board.shown() or None, "tentative rows")
        shutil.rmtree(epochs / "1/cec/log")
        (epochs / "1.json").write_bytes((epochs / "1.json").read_bytes()[:-5])
        eventually(lambda: not board.tentative or None, "its rows do not count")
        feed.put("app", (3, "a", 1), (16, "a", 1))
        eventually(lambda: board.stable == Counter([(0, "a", 3, 3)]) or None, "stable rows")
        has_none(run, board)
        assert flow_of(run, "shown").restarts == 0 == flow_of(run, "totals").restarts
    (epochs / "1.json").write_bytes((epochs / "1.json").read_bytes()[:-5])
    with running(per_page(tmp_path, board), spark) as run:
        eventually(lambda: flow_of(run, "totals").batch or None, "it starts")


@pytest.mark.parametrize(("ahead", "number"), [(True, 2), (False, 1)])
def test_what_a_killed_fork_has_left_is_no_obstacle(
    ahead: bool, number: int, spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its log lies outside of its checkpoint. A fork that has run ahead keeps its number."""
    monkeypatch.setattr(Flows, "has_trigger", lambda *_: not ahead)
    real, fails = epoch_files.open_epoch, [True]

    def open_epoch(*given: Any) -> None:
        if fails:
            fails.pop()
            raise OSError("as a kill between the fork and its note")
        real(*given)

    monkeypatch.setattr(epoch_files, "open_epoch", open_epoch)
    monkeypatch.setattr("spark_cec.pipeline.epoch_keeper.RETRY_S", 0.5)
    feed, board = Feed(tmp_path), window_board()
    with running(per_page(tmp_path, board, conf={PREFIX + "log.path": f"{tmp_path}/logs"}), spark) as run:
        feed.put("web", (1, "a", 1), (15, "a", 1))
        feed.put("app", (2, "a", 1), (15, "a", 1))
        eventually(lambda: board.stable or None, "the first window")
        feed.put("web", (25, "b", 1), (35, "b", 1))
        has_epoch(run, number, "app")
        assert not fails


def test_a_sink_that_takes_what_is_available(spark: SparkSession, tmp_path: Path) -> None:
    """It takes all, in batches with a bound."""
    feed, board, made = Feed(tmp_path), window_board(), per_page(tmp_path, window_board())

    @made.sink(tentative=True, trigger={"availableNow": True}, reads={"maxRowsPerTrigger": "1"})
    def available(totals: DataFrame) -> DataStreamWriter:
        return totals.writeStream.foreachBatch(board.take)

    expected: Windows = Counter((begin, "a", 1, 1) for begin in range(0, 50, 10))
    with running(made, spark, only=["web", "app", "totals"]) as run:
        for second in range(1, 62, 10):
            feed.put("web", (second, "a", 1))
            feed.put("app", (second + 0.5, "z", 1))
            reaches(run, second - 2)
    with running(made, spark, only=["available"]) as run:
        run.wait(60)
    assert Counter({row: n for row, n in board.stable.items() if row[1] == "a"}) == expected and not board.tentative


def test_a_flow_whose_columns_have_the_names_of_ours_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    made = Pipeline("shop", f"{tmp_path}/home")
    (tmp_path / "web").mkdir()

    @made.flow
    def web(spark: SparkSession) -> DataFrame:
        return spark.readStream.schema("time TIMESTAMP, _kind STRING").json(f"{tmp_path}/web")

    @made.sink(tentative=True)
    def shown(web: DataFrame) -> DataStreamWriter:
        return web.writeStream.format("noop")

    with pytest.raises(FlowError, match=r"flow web has the column _kind: give the column another name"):
        made.start(spark)


@pytest.mark.parametrize("sink", ["parquet", "kafka", "cec", None])
def test_a_sink_that_cannot_take_rows_back_is_refused(sink: str | None, spark: SparkSession, tmp_path: Path) -> None:
    made = Pipeline("shop", f"{tmp_path}/home")
    (tmp_path / "web").mkdir()

    @made.flow
    def web(spark: SparkSession) -> DataFrame:
        return spark.readStream.schema("time TIMESTAMP, page STRING").json(f"{tmp_path}/web")

    @made.sink(tentative=True)
    def shown(web: DataFrame) -> DataStreamWriter:
        return web.writeStream if sink is None else web.writeStream.format(sink)

    format_ = sink or "parquet"  # Spark's default
    with pytest.raises(FlowError, match=f"sink shown reads tentative rows, and writes to '{format_}', where no row"):
        made.start(spark)


def test_a_flow_without_a_bound_closes_what_is_left(spark: SparkSession, tmp_path: Path) -> None:
    feed, board = Feed(tmp_path), window_board()
    feed.put("web", (1, "a", 1), (15, "a", 1))
    feed.put("app", (2, "a", 1))
    with running(per_page(tmp_path, board), spark) as run:
        has_epoch(run, 1, "app")
        eventually(lambda: board.shown() or None, "tentative rows")
    with running(per_page(tmp_path, board, within=None, alpha=None, bucket="1s"), spark) as run:
        eventually(lambda: not board.tentative or None, "they are taken back")
        assert not board.stable
    rows = spark.read.format("cec").option("tentative", "true").load(f"{tmp_path}/home/flows/totals")
    with pytest.raises(Exception, match=r"is for readStream: a batch reads the stable rows"):
        rows.collect()


def chained(
    root: Path, first: Board, board: Board, length_s: int = 20, price: str = "DOUBLE", **how: Any
) -> Pipeline:
    """As `per_page`, then sums by page and a longer window on the second board.

    `price`: the type of those sums, and `how` their options. With doubles each change is written, and nothing replayed.
    """
    made = per_page(root, first)

    @made.flow(kept=True, partitions=2, within="6s", alpha=0.8, watermarks={"totals": ("time", "0 seconds")}, **how)
    def long(totals: DataFrame) -> DataFrame:
        grouped = totals.groupBy(f.window("time", f"{length_s} seconds").alias("w"), "page")
        found = grouped.agg(f.sum("n").alias("n"), f.sum(f.col("price").cast(price)).alias("price"))
        return found.select(f.col("w.start").alias("time"), "page", "n", "price")

    @made.sink(tentative=True)
    def shown_long(long: DataFrame) -> DataStreamWriter:
        return long.writeStream.foreachBatch(board.take)

    return made


def test_a_flow_after_it_answers_tentatively_too_and_corrects_itself(spark: SparkSession, tmp_path: Path) -> None:
    """Its epoch has the state of its own last batch, and reads the epoch of the flow before it."""
    feed, first, board = Feed(tmp_path), window_board(), window_board()
    with running(chained(tmp_path, first, board), spark) as run:
        feed.put("web", (1, "a", 1), (15, "a", 1), (16, "q", 1))
        feed.put("app", (2, "a", 1), (16, "q", 1))
        eventually(lambda: first.stable == Counter([(0, "a", 2, 2)]) or None, "the first window is stable")
        for second in (25, 35, 45, 55):
            feed.put("web", (second, "b", 1))
        has_epoch(run, 1, "app")
        early: Windows = Counter([(0, "a", 3, 3), (0, "q", 2, 2), (20, "b", 2, 2)])
        eventually(lambda: board.shown() == early or None, f"{early}, not {board.shown()}")
        assert flow_of(run, "long").epoch is not None and not board.stable
        feed.put("app", (17, "a", 8), (56, "c", 1))
        right: Windows = Counter([(0, "a", 4, 11), (0, "q", 2, 2), (20, "b", 2, 2)])
        feed.put("web", (66, "b", 1))
        feed.put("app", (66, "b", 1))
        eventually(lambda: board.stable == right or None, f"{right}, not {board.stable}")
        has_none(run, first)
        eventually(lambda: (not board.tentative and flow_of(run, "long").epoch is None) or None, "all is stable")
        assert board.stable == right


@pytest.mark.parametrize(("length_s", "conf", "until", "answers", "right"), [
    pytest.param(20, {}, 36, [(20, "b", 2, 2), (20, "b", 2, 2)], [(0, "a", 4, 4), (20, "b", 8, 8), (40, "b", 2, 2)],
                 id="clean"),
    pytest.param(60, DIRTY, 46, [(0, "b", 4, 4), (0, "b", 7, 7)], [(0, "a", 4, 4), (0, "b", 15, 15)],
                 id="dirty windows"),
])  # fmt: skip
def test_a_flow_after_it_is_forked_when_the_epoch_of_the_first_one_has_begun_long_ago(
    length_s: int, conf: dict[str, str], until: int, answers: list[tuple[int, str, int, float]],
    right: list[tuple[int, str, int, float]], spark: SparkSession, tmp_path: Path,
) -> None:  # fmt: skip
    """The input is slow, so the first flow has gone on since, and the flow after it has read those batches.

    If it has a dirty window of them, its fork replays them. They are in the flow's channel, and not in the epoch's.
    """
    feed, first, board, newest = Feed(tmp_path), window_board(), window_board(), length_s + 45
    with running(chained(tmp_path, first, board, length_s, "BIGINT" if conf else "DOUBLE", conf=conf), spark) as run:
        feed.put("web", (1, "a", 1), (15, "a", 1))
        feed.put("app", (2, "a", 1), (15, "a", 1))
        eventually(lambda: first.stable == Counter([(0, "a", 2, 2)]) or None, "the first window is stable")
        for second in range(25, newest + 1, 10):
            feed.put("web", (second, "b", 1))
        has_epoch(run, 1, "app")
        eventually(lambda: board.shown()[answers[0]] or None, lambda: f"{answers[0]}, not {board.shown()}")
        for second in range(24, until, 2):  # a batch of the first flow for each
            feed.put("app", (second, "b", 1))
            reaches(run, second - 2)

        def is_ahead() -> bool | None:
            totals, offset = run._epochs["totals"]._open, run.queries()["long"].lastProgress["sources"][0]["endOffset"]
            assert totals is not None and totals.query is not None
            return json.loads(offset)["batch"] > totals.query.lastProgress["batchId"] or None

        eventually(is_ahead, "the second flow has read batches that the epoch lacks")
        if conf:
            reaches(run, 30, "long")
        open_ = run._epochs["long"]._open
        assert open_ is not None and open_.query is not None
        open_.query.stop()
        before = {f"long/{open_.epoch.number}"}
        eventually(lambda: board.tentative.keys() - before or None, "rows of its next epoch", 60)
        eventually(lambda: board.shown()[answers[1]] or None, lambda: f"{answers[1]}, not {board.shown()}")
        feed.put("app", (newest + 1, "b", 1), (newest + 11, "b", 1))
        feed.put("web", (newest + 11, "b", 1))
        eventually(lambda: board.stable == Counter(right) or None, lambda: f"{right}, not {board.stable}")


def test_a_query_with_state_over_tentative_rows_is_eager(spark: SparkSession, tmp_path: Path) -> None:
    """A replay might not find them again. Over stable rows it is deferred."""
    feed = Feed(tmp_path)
    with running(per_page(tmp_path, window_board()), spark) as run:
        feed.put("web", (1, "a", 1), (15, "a", 1))
        feed.put("app", (2, "a", 1), (15, "a", 1))
        reaches(run, 13)
        modes = {}
        for tentative in ("true", "false"):
            checkpoint = tmp_path / f"counts-{tentative}"
            rows = spark.readStream.format("cec").option("tentative", tentative).load(f"{tmp_path}/home/flows/totals")
            writer = rows.groupBy("page").count().writeStream.outputMode("update").foreachBatch(lambda *_: None)
            query = writer.option("checkpointLocation", str(checkpoint)).start()
            query.processAllAvailable()
            query.stop()
            modes[tentative] = json.loads((checkpoint / "cec/query.json").read_text())["operators"][0]
        assert not modes["true"]["deferred"] and "it reads tentative rows" in modes["true"]["reason"]
        assert modes["false"]["deferred"]


def test_a_table_of_sqlite_corrects_itself(spark: SparkSession, tmp_path: Path) -> None:
    feed, made, database = Feed(tmp_path), per_page(tmp_path, window_board()), f"{tmp_path}/board.db"

    @made.sink(tentative=True)
    def table(totals: DataFrame) -> DataStreamWriter:
        return totals.writeStream.foreachBatch(apply_changes(database, "board", ["time", "page"], changes=True))

    def read(columns: str, table: str) -> list[tuple[object, ...]]:
        with contextlib.closing(sqlite3.connect(database)) as board:
            return board.execute(f"SELECT {columns} FROM {table}").fetchall()

    def shown() -> list[tuple[object, ...]]:
        return sorted(read("substr(time, 12, 8), page, n, tentative", "board"))

    with running(made, spark) as run:
        feed.put("web", (1, "a", 1), (15, "a", 1))
        feed.put("app", (2, "a", 1))
        has_epoch(run, 1, "app")
        eventually(lambda: shown() == [("12:00:00", "a", 2, 1)] or None, "a tentative row")
        feed.put("app", (3, "b", 1), (16, "a", 1))
        eventually(lambda: shown() == [("12:00:00", "a", 2, 0), ("12:00:00", "b", 1, 0)] or None, "stable rows")
    assert sorted(read("_change_type, page, n, tentative", "board_changes ORDER BY _change")[1:]) == [
        ("insert", "b", 1, 0), ("update_postimage", "a", 2, 0), ("update_preimage", "a", 2, 1),
    ]  # fmt: skip


def test_a_table_of_sqlite_whose_sink_was_taken_back(spark: SparkSession, tmp_path: Path) -> None:
    """No batch takes back the epochs that only the batches since have read. Spark's log says that none is planned."""
    database, checkpoint, feed = f"{tmp_path}/board.db", tmp_path / "checkpoint", tmp_path / "feed"
    feed.mkdir()

    def write(number: int, *rows: tuple[str, str | None, str | None, int | None]) -> None:
        lines = [json.dumps(dict(zip(("_kind", "_epoch", "page", "n"), row, strict=True))) for row in rows]
        (feed / f".{number}").write_text("\n".join(lines))
        (feed / f".{number}").rename(feed / f"{number}.json")

    def run_all() -> set[tuple[object, ...]]:
        stream = spark.readStream.schema("_kind STRING, _epoch STRING, page STRING, n LONG").json(str(feed))
        writer = stream.writeStream.foreachBatch(apply_changes(database, "board", ["page"]))
        query = writer.option("checkpointLocation", str(checkpoint)).start()
        try:
            query.processAllAvailable()
        finally:
            query.stop()
        with contextlib.closing(sqlite3.connect(database)) as board:
            return set(board.execute("SELECT page, n, tentative FROM board").fetchall())

    write(0, ("stable", None, "z", 9))
    assert run_all() == {("z", 9, 0)}
    write(1, ("stable", None, "y", 8), ("tentative", "f/2", "x", 1))
    assert run_all() == {("z", 9, 0), ("y", 8, 0), ("x", 1, 1)}
    write(2, ("tentative", "f/2", "w", 2))
    assert run_all() == {("z", 9, 0), ("y", 8, 0), ("x", 1, 1), ("w", 2, 1)}
    for log in ("offsets", "commits", "sources/0"):
        for number in (1, 2):
            (checkpoint / log / str(number)).unlink()
            (checkpoint / log / f".{number}.crc").unlink(missing_ok=True)
    for number in (1, 2):
        (feed / f"{number}.json").unlink()
    write(3, ("stable", None, "y", 8), ("tentative", "f/3", "c", 3))
    assert run_all() == {("z", 9, 0), ("y", 8, 0), ("c", 3, 1)}


def pairs_of(root: Path, board: Board, kind: str) -> Pipeline:
    """Each row of web with those of app that come within five seconds after it."""
    made = Pipeline("shop", f"{root}/home")

    def declare(name: str) -> None:
        @made.flow(name=name)
        def rows(spark: SparkSession) -> DataFrame:
            return spark.readStream.schema("time TIMESTAMP, page STRING, price INT").json(f"{root}/{name}")

    for name in ("web", "app"):
        declare(name)

    @made.flow(name="totals", partitions=2, watermarks=WATERMARKS, within="6s", alpha=0.8)
    def pairs(web: DataFrame, app: DataFrame) -> DataFrame:
        later = app.select(f.col("time").alias("then"), f.col("page").alias("other"), f.col("price").alias("n"))
        is_near = f.expr("page = other AND then >= time AND then <= time + INTERVAL 5 SECONDS")
        return web.join(later, is_near, kind).select("time", "page", "price", "n")

    @made.sink(tentative=True)
    def shown(totals: DataFrame) -> DataStreamWriter:
        return totals.writeStream.foreachBatch(board.take)

    return made


@pytest.mark.parametrize(("kind", "blocked"), [("inner", ("web",)), ("left_outer", ())])
def test_the_status_names_the_inputs_that_a_join_blocks(
    kind: str, blocked: tuple[str, ...], spark: SparkSession, tmp_path: Path
) -> None:
    feed, board = Feed(tmp_path), window_board()
    with running(pairs_of(tmp_path, board, kind), spark) as run:
        feed.put("web", (1, "a", 1), (15, "b", 2))
        feed.put("app", (2, "a", 7), (16, "b", 8))
        eventually(lambda: board.stable[1, "a", 7, 1] or None, "the first pair is stable")
        feed.put("web", (21, "c", 3), (60, "z", 1))
        has_epoch(run, 1, "app")
        assert flow_of(run, "totals").blocked == blocked
        if not blocked:
            eventually(lambda: board.shown()[21, "c", None, 3] or None, "the row without its pair, tentatively")
        feed.put("app", (22, "c", 9), (61, "y", 1))
        eventually(lambda: board.stable[21, "c", 9, 3] or None, "its pair is stable")
        has_none(run, board)
        assert not board.stable[21, "c", None, 3] and flow_of(run, "totals").blocked == ()
