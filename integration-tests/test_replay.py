"""What a replay must get right: batches without data, windows that close and open again, queries that lie."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.state import GroupState

from cec_it import feeds, local, results
from cec_it.driver import FOREACH, Job, Query, last_batch, start
from cec_it.plans import close_full
from cec_it.references import PROVIDER_KEY, SPARKS_OWN, References
from cec_it.tables import Rows, Table, run, run_totals, step_by_step


def remember_timeouts(key: tuple[int], chunks: Iterable[pd.DataFrame], state: GroupState) -> Iterator[pd.DataFrame]:
    """Counts rows, and timeouts by thousands: a timeout changes a window that stays open."""
    (n,) = state.getOption or (0,)
    n += 1000 if state.hasTimedOut else sum(len(rows) for rows in chunks)
    state.update((n,))
    state.setTimeoutTimestamp(state.getCurrentWatermarkMs() + 5_000)
    yield pd.DataFrame([(key[0], n)], columns=["key", "n"])


def timeouts(events: DataFrame) -> DataFrame:
    groups = events.withWatermark("ts", "0 seconds").groupBy("key")
    return groups.applyInPandasWithState(remember_timeouts, "key LONG, n LONG", "n LONG", "update", "EventTimeTimeout")


def offsets(checkpoint: Path, batch: int) -> str:
    return (checkpoint / "offsets" / str(batch)).read_text().splitlines()[2]


def test_a_replay_may_begin_with_a_batch_without_data(spark: SparkSession, tmp_path: Path) -> None:
    files = [[(1, 1, 0), (2, 1, 0)], [(3, 1, 20)], [(4, 1, 21)], [(3, 1, 22)]]
    more = [[(1, 1, 40)], [(5, 1, 60)]]
    found: dict[str, Rows] = {"cec": {}, "undisturbed": {}}
    for name in found:
        own = local.session(spark, local.OPENINGS_ONLY)
        checkpoint = tmp_path / name / "checkpoint"
        table = Table(tmp_path / name / "events")
        if name == "undisturbed":
            own.conf.set(PROVIDER_KEY, SPARKS_OWN)
            step_by_step(table, run(timeouts(table.read(own)), "update", checkpoint, found[name]), [*files, *more])
            continue
        step_by_step(table, run(timeouts(table.read(own)), "update", checkpoint, found[name]), files)
        before = {
            int(path.name): offsets(checkpoint, int(path.name)) for path in (checkpoint / "offsets").glob("[0-9]*")
        }
        step_by_step(table, run(timeouts(table.read(own)), "update", checkpoint, found[name]), more)
        report = local.reports(checkpoint, 1)[0]
        first = int(str(report["rewound_to"])) + 1
        assert before[first] == before[first - 1], f"batch {first} has data: this test proves nothing; {before}"
        assert int(str(report["replayed_batches"])) > 1
        assert report["digest_ok"] is True
    assert found["cec"] == found["undisturbed"]


def count_windows(events: DataFrame) -> DataFrame:
    schema = "key LONG, first LONG, last LONG, total LONG"
    return events.groupBy("key").applyInPandasWithState(
        close_full, schema, "n LONG, total LONG, first LONG", "append", "NoTimeout"
    )


def test_windows_that_close_and_open_again_in_the_replayed_span(spark: SparkSession, tmp_path: Path) -> None:
    # Key 9 is dirty from batch 1 on. Key 1 closes full in batch 2, opens in batch 3, is dirty in batch 4. Key 2 opens
    # and closes within the span. Key 3 is open at the start of the span and gone at its end.
    files = [
        [(9, 1, 0)] + [(1, 10, 0)] * 3 + [(3, 5, 0)] * 4,
        [(9, 2, 0), (3, 5, 0)],
        [(1, 20, 0)] * 4 + [(2, 7, 0)],
        [(1, 30, 0), (9, 3, 0)] + [(2, 7, 0)] * 6 + [(3, 5, 0)] * 2,
        [(1, 40, 0)] * 2,
    ]
    more = [[(1, 50, 0)] * 4 + [(9, 4, 0)] * 3, [(1, 60, 0)] * 7 + [(2, 8, 0)] * 7 + [(3, 9, 0)] * 7 + [(9, 1, 0)] * 2]
    found: dict[str, Rows] = {"cec": {}, "undisturbed": {}}
    for name in found:
        own = local.session(spark, local.OPENINGS_ONLY)
        if name == "undisturbed":
            own.conf.set(PROVIDER_KEY, SPARKS_OWN)
        checkpoint = tmp_path / name / "checkpoint"
        table = Table(tmp_path / name / "events")
        for part in (files, more):
            step_by_step(table, run(count_windows(table.read(own)), "append", checkpoint, found[name]), part)
    report = local.reports(tmp_path / "cec" / "checkpoint", 1)[0]
    assert (report["rewound_to"], report["replayed_batches"], report["digest_ok"]) == (0, 4, True)
    assert sum(store["held"] for store in report["stores"]) > 0, "nothing was held back: the hold rule was not needed"
    assert found["cec"] == found["undisturbed"]
    assert sum(len(rows) for rows in found["cec"].values()) == 8


@pytest.fixture
def moody(tmp_path: Path) -> Path:
    """A file whose number a query adds to every amount: nothing in its plan shows that."""
    path = tmp_path / "mood"
    path.write_text("1")
    return path


def test_a_query_that_lies_is_stopped_and_recovers_once_it_tells_the_truth(
    spark: SparkSession, moody: Path, tmp_path: Path
) -> None:
    mood = str(moody)

    @f.udf("long")
    def lie(amount: int) -> int:
        return amount + int(Path(mood).read_text())

    own = local.session(spark, local.OPENINGS_ONLY)
    table = Table(tmp_path / "events")
    checkpoint = tmp_path / "checkpoint"
    rows: Rows = {}

    def lying() -> StreamingQuery:
        return run_totals(own, table, lie("amount"), checkpoint, rows)

    step_by_step(table, lying(), [[(1, 1, 0)], [(1, 1, 0)], [(1, 1, 0)]])
    moody.write_text("100")
    with pytest.raises(StreamingQueryException, match="differs from what was committed at version 3"):
        step_by_step(table, lying(), [[(2, 1, 0)]])
    assert local.query_json(checkpoint)["mode"] == "deferred"
    assert sorted(rows) == [0, 1, 2], "a replay that went wrong has written"
    moody.write_text("1")
    step_by_step(table, lying(), [[(1, 1, 0)]])
    report = local.reports(checkpoint, 1)[-1]
    assert (report["replayed_batches"], report["digest_ok"]) == (2, True)
    totals = {key: total for batch in sorted(rows) for key, total in rows[batch]}
    assert totals == {1: 8, 2: 2}


def test_an_input_file_that_is_gone_stops_the_replay(spark: SparkSession, tmp_path: Path) -> None:
    own = local.session(spark, local.OPENINGS_ONLY)
    table = Table(tmp_path / "events")
    rows: Rows = {}

    def totals() -> StreamingQuery:
        return run_totals(own, table, f.col("amount"), tmp_path / "checkpoint", rows)

    step_by_step(table, totals(), [[(1, 1, 0)], [(1, 10, 0)], [(1, 100, 0)]])
    gone = (table.root / "00001.json").rename(tmp_path / "kept.json")
    with pytest.raises(StreamingQueryException, match=r"differs from what was committed|FILE_NOT_EXIST"):
        step_by_step(table, totals(), [[(1, 1_000, 0)]])
    gone.rename(table.root / "00001.json")
    step_by_step(table, totals(), [[(1, 10_000, 0)]])
    assert rows[max(rows)][-1][-1] == 11_111


DOUBLES = {
    # name: the numbers of key 1 in three batches as they were first and as a replay finds them, and whether it is the
    # same state; the first batch opens the window, and is not replayed
    "another zero": ("-1 0 0", "-1 -0.0 0", True),
    "another NaN": ("1 nan 2", "1 -nan 2", True),
    "infinity": ("1 inf 2", "1 inf 2", True),
    "subnormal": ("0 5e-324 0", "0 1e-323 0", False),
    "the last bit": ("1 2 3", "1 2 3.0000000000000004", False),
    "large": ("1 1e308 1", "1 -1e308 1", False),
    "no NaN": ("1 nan 2", "1 7 2", False),
    "no infinity": ("1 inf 2", "1 1.7976931348623157e308 2", False),
}


@pytest.mark.parametrize("name", DOUBLES)
def test_of_doubles_only_those_that_are_equal_pass_for_each_other(
    name: str, spark: SparkSession, tmp_path: Path
) -> None:
    """Extremes keep a number as it came: the digest finds each other one, and no false one."""
    first, then, same = DOUBLES[name]
    mood = tmp_path / "mood"
    mood.write_text(first)

    @f.udf("double")
    def number(amount: int) -> float:
        return float(mood.read_text().split()[amount])

    own = local.session(spark, {**local.OPENINGS_ONLY, "effort": "0"})
    table, checkpoint, rows = Table(tmp_path / "events"), tmp_path / "checkpoint", Rows()

    def extremes() -> StreamingQuery:
        numbers = table.read(own).select("key", number("amount").alias("x"))
        return run(numbers.groupBy("key").agg(f.max("x"), f.min("x")), "update", checkpoint, rows)

    step_by_step(table, extremes(), [[(1, 0, 0)], [(1, 1, 0)], [(1, 2, 0)]])
    mood.write_text(then)
    if same:
        step_by_step(table, extremes(), [[(2, 1, 0)]])
        report = local.reports(checkpoint, 1)[0]
        assert (report["replayed_batches"], report["digest_ok"]) == (2, True)
    else:
        with pytest.raises(StreamingQueryException, match=r"differs from what was committed at version 3: digest"):
            step_by_step(table, extremes(), [[(2, 1, 0)]])
        assert sorted(rows) == [0, 1, 2], "a replay that went wrong has written"


def test_a_lie_that_would_close_a_window_stops_the_query(spark: SparkSession, moody: Path, tmp_path: Path) -> None:
    mood = str(moody)

    def vanish(key: tuple[int], chunks: Iterable[pd.DataFrame], state: GroupState) -> Iterator[pd.DataFrame]:
        for _ in chunks:
            pass
        if Path(mood).read_text() == "1":
            state.update(((state.getOption or (0,))[0] + 1,))
        else:
            state.remove()
        yield pd.DataFrame([(key[0],)], columns=["key"])

    own = local.session(spark, local.OPENINGS_ONLY)
    table = Table(tmp_path / "events")
    checkpoint = tmp_path / "checkpoint"

    def lying() -> StreamingQuery:
        groups = table.read(own).groupBy("key")
        frame = groups.applyInPandasWithState(vanish, "key LONG", "n LONG", "append", "NoTimeout")
        return run(frame, "append", checkpoint, {})

    step_by_step(table, lying(), [[(1, 1, 0)], [(1, 1, 0)], [(1, 1, 0)]])
    moody.write_text("gone")
    with pytest.raises(
        StreamingQueryException, match=r"(?s)the replay of batch \d+ would close 1 .*cec\.onDivergence=accept"
    ):
        step_by_step(table, lying(), [[(2, 1, 0)]])


@pytest.mark.parametrize("left", [0, 6])
def test_input_that_is_gone_is_named(spark: SparkSession, tmp_path: Path, left: int) -> None:
    own = local.session(spark, local.OPENINGS_ONLY)
    table, checkpoint = Table(tmp_path / "events"), tmp_path / "checkpoint"
    files = [[(key, 1, 0) for key in range(16)]] * 3
    step_by_step(table, run_totals(own, table, f.col("amount"), checkpoint, {}), files)
    lost = table.root / "00001.json"
    kept = lost.read_text().splitlines(keepends=True)[:left]
    lost.unlink()
    if kept:
        lost.write_text("".join(kept))
    source = r"FileStreamSource\[file:\S*events\] from {\"logOffset\":0} to {\"logOffset\":2}"
    gone = "" if kept else r"\S*00001.json, which batch 1 has read, is gone; .*"
    words = rf"(?s){gone}differs from what .*\(batches 1 to 2 read {source}; batch 1 had {left} rows in this replay\)"
    with pytest.raises(StreamingQueryException, match=words):
        step_by_step(table, run_totals(own, table, f.col("amount"), checkpoint, {}), [[(1, 1, 0)]])


def test_input_that_is_gone_is_named_where_another_source_is_read_twice(spark: SparkSession, tmp_path: Path) -> None:
    """Spark has a folder for each source, and an offset for each place where one is read."""
    own = local.session(spark, local.OPENINGS_ONLY)
    twice, once = Table(tmp_path / "twice"), Table(tmp_path / "once")
    checkpoint = tmp_path / "checkpoint"

    def totals() -> StreamingQuery:
        first = twice.read(own)
        parts = first.filter("key < 8").unionAll(first.filter("key >= 8")).unionAll(once.read(own))
        return run(parts.groupBy("key").agg(f.sum("amount").alias("total")), "update", checkpoint, {})

    twice.add(*((key, 1, 0) for key in range(16)))
    step_by_step(once, totals(), [[(key, 1, 0) for key in range(16)]] * 3)
    assert len(list((checkpoint / "sources").iterdir())) == 2
    assert len((checkpoint / "offsets" / "0").read_text().splitlines()) == 2 + 3
    (once.root / "00001.json").unlink()
    with pytest.raises(StreamingQueryException, match=r"once/00001.json, which batch 1 has read, is gone; "):
        step_by_step(once, totals(), [[(1, 1, 0)]])


def test_available_now_replays_and_ends(spark: SparkSession, references: References, tmp_path: Path) -> None:
    query = Query("count-windows", feeds.FILES, FOREACH)
    job = Job(str(tmp_path), (query,), local.BATCHES, local.ROWS)
    own = local.session(spark, local.OPENINGS_ONLY)
    for side, number in itertools.product(feeds.SALTS, range(4)):
        feeds.write_file(job.events / side, side, number, job.rows)
    first = start(own, job, query)
    first.processAllAvailable()
    first.stop()
    for life in (1, 2):
        if life == 2:
            for number in range(4, 8):
                feeds.write_file(job.events / "left", "left", number, job.rows)
        restarted = start(own, replace(job, life=life), query, availableNow=True)
        assert restarted.awaitTermination(60), "availableNow does not end"
        assert restarted.exception() is None
    assert results.calls_of(job.out(query), 1) == [], "the sink is called for replayed batches"
    assert results.calls_of(job.out(query), 2) == [4, 5, 6, 7]
    assert results.union(results.last_recorded(job.out(query))) == results.union(references.get(query, job))
    idle, busy = local.reports(job.checkpoint(query), 2)
    assert (idle["committed_batch"], busy["committed_batch"]) == (3, 3)
    assert int(str(idle["replayed_batches"])) > 1
    assert busy["replayed_batches"] == 0, "a replay ends by writing what is dirty"
    assert (idle["digest_ok"], busy["digest_ok"]) == (True, True)


@pytest.mark.parametrize("plan", ["long-windows", "sessions"])
def test_state_store_checkpoint_format_2(
    plan: str, spark: SparkSession, references: References, tmp_path: Path
) -> None:
    query = Query(plan, feeds.RATE, FOREACH)
    job = Job(str(tmp_path), (query,), local.BATCHES, local.ROWS)
    own = local.session(spark, local.OPENINGS_ONLY, **{"spark.sql.streaming.stateStore.checkpointFormatVersion": "2"})
    for life, batch in enumerate((2, 5, last_batch(job))):
        local.run_to(own, replace(job, life=life), query, batch)
    assert "stateUniqueIds" in (job.checkpoint(query) / "commits" / "3").read_text()
    reports = local.reports(job.checkpoint(query), 2)
    assert max(int(str(report["replayed_batches"])) for report in reports) > 1
    assert {report["digest_ok"] for report in reports} == {True}
    assert results.last_recorded(job.out(query)) == references.get(query, job)
