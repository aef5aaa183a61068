"""What waits for a flow is bounded: it holds those that write it, or goes on without the input that is away."""

from __future__ import annotations

import json
import os
import random
import shutil
import sys
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.streaming.readwriter import DataStreamWriter

from cec_it.feed import NOON, WATERMARKS, Feed, Windows, windows
from cec_it.local import eventually
from cec_it.pipelines import CASES, KEPT, Rows
from cec_it.running import flow_of, running
from spark_cec.pipeline import Pipeline
from spark_cec.pipeline.running import RunningPipeline
from spark_cec.pipeline.status import State
from testbed.processes import Child

KEEP = 40_000
FILES, ROWS = 40, 150
SECONDS = 10
"""A file has the rows of so many seconds."""

Row = tuple[float, str, float]


def per_page(root: Path, **how: Any) -> Pipeline:
    """web and app -> counts and sums by page and window of 10 seconds. web reads a file in each batch."""
    made = Pipeline("shop", f"{root}/home")

    def declare(name: str) -> None:
        @made.flow(name=name, kept=True)
        def rows(spark: SparkSession) -> DataFrame:
            stream = spark.readStream.schema("time TIMESTAMP, page STRING, price DOUBLE")
            return stream.option("maxFilesPerTrigger", "1").json(f"{root}/{name}/*")

    for each in ("web", "app"):
        declare(each)

    @made.flow(kept=True, partitions=2, bucket="1s", watermarks=WATERMARKS, **how)
    def totals(web: DataFrame, app: DataFrame) -> DataFrame:
        grouped = web.unionByName(app).groupBy(f.window("time", "10 seconds").alias("w"), "page")
        found = grouped.agg(f.count("*").alias("n"), f.sum("price").alias("price"))
        return found.select(f.col("w.start").alias("time"), "page", "n", "price")

    @made.sink(tentative="within" in how)
    def board(totals: DataFrame) -> DataStreamWriter:
        return totals.writeStream.format("noop")

    return made


def files_of(seed: int) -> list[list[Row]]:
    """Files of rows in the order of their time; the prices are exact in any order of a sum."""
    chance = random.Random(seed)
    return [
        sorted(
            (SECONDS * (number + chance.random()), chance.choice("abc"), chance.randrange(1 << 20) / 64)
            for _ in range(ROWS)
        )
        for number in range(FILES)
    ]


def put_all(feed: Feed, name: str, files: list[list[Row]]) -> None:
    """All these files at one moment. Spark reads them in the order of the times at which they were changed."""
    apart = Feed(feed.root / f".{name}")
    for number, rows in enumerate(files):
        apart.put(name, *rows)
        at = NOON.timestamp() + number
        os.utime(apart.root / name / f"{number + 1:04d}.json", (at, at))
    (apart.root / name).rename(feed.root / name / f"first-{len(files)}")


def expected(until_s: float, *files: list[list[Row]]) -> Windows:
    """The windows that end by then."""
    sums: dict[tuple[int, str], list[float]] = defaultdict(lambda: [0, 0.0])
    for second, page, price in (row for each in files for rows in each for row in rows):
        begin = int(second) // 10 * 10
        if begin + 10 <= until_s:
            sums[begin, page][0] += 1
            sums[begin, page][1] += price
    return Counter((begin, page, int(n), price) for (begin, page), (n, price) in sums.items())


def stored(root: Path, flow: str) -> int:
    """The bytes of a channel's segments."""
    segments = (root / "home/flows" / flow / "cec/log/segments").rglob("*")
    return sum(path.stat().st_size for path in segments if path.is_file())


def becomes(spark: SparkSession, run: RunningPipeline, root: Path, right: Windows) -> None:
    """Waits for these windows; there may be no others."""

    def look() -> bool | None:
        assert (flow := flow_of(run, "totals")).error is None, flow.error
        found = windows(spark, root)
        assert found <= right, f"a row that is wrong, or comes twice: {found - right}"
        return found == right or None

    eventually(look, lambda: f"{right - windows(spark, root)} missing, {run.status()}", 180)


def is_held(run: RunningPipeline) -> bool | None:
    """Whether web waits, because too much of it waits for totals."""
    flow = flow_of(run, "web")
    return (flow.state is State.WAITING and [each.flow for each in flow.held_for] == ["totals"]) or None


@pytest.mark.parametrize("how", [{}, {"within": "6s", "alpha": 0.5}], ids=["waits", "answers tentatively"])
def test_the_input_whose_rows_wait_is_held_until_the_other_one_is_back(
    how: dict[str, Any], spark: SparkSession, tmp_path: Path
) -> None:
    feed, web, app = Feed(tmp_path), files_of(1), files_of(2)
    with running(per_page(tmp_path, keep=KEEP, **how), spark) as run:
        feed.put("app", *app[0])
        put_all(feed, "web", web)
        eventually(lambda: is_held(run), "web is held")
        assert flow_of(run, "totals").state is State.RUNNING and not flow_of(run, "app").held_for
        batch = flow_of(run, "web").batch
        assert batch is not None and batch < FILES - 1, "its source keeps the rest"
        assert KEEP < flow_of(run, "web").held_for[0].bytes < 2 * KEEP
        assert stored(tmp_path, "web") < 2 * KEEP
        eventually(lambda: flow_of(run, "totals").waits_for == ("app",) or None, "totals waits")
        if how:
            eventually(lambda: flow_of(run, "totals").absent == ("app",) or None, "totals answers without app")
        put_all(feed, "app", app[1:])
        waited = [0]

        def has_read_all() -> bool | None:
            waited.extend(each.bytes for name in ("web", "app") for each in flow_of(run, name).held_for)
            return flow_of(run, "web").batch == FILES - 1 or None

        eventually(has_read_all, "web reads all", 180)
        assert max(waited) < 2 * KEEP
        feed.put("web", (FILES * SECONDS + 30, "z", 1.0))
        feed.put("app", (FILES * SECONDS + 30, "z", 1.0))
        becomes(spark, run, tmp_path, expected(FILES * SECONDS, web, app))
        assert flow_of(run, "web").restarts == 0 and not flow_of(run, "web").held_for
        eventually(lambda: flow_of(run, "totals").epoch is None or None, "no tentative row is left")
    assert stored(tmp_path, "web") > 2 * KEEP, "all of it would be too much"


def test_more_than_may_wait_goes_in_without_the_input_that_is_away(spark: SparkSession, tmp_path: Path) -> None:
    """What it brings later is kept aside, until it is back."""
    feed, web = Feed(tmp_path), files_of(3)
    with running(per_page(tmp_path, keep=KEEP, at_keep="go on"), spark) as run:
        feed.put("app", (1, "a", 0.5), (12.5, "a", 0.25))
        first = [[(1.0, "a", 0.5)]]
        eventually(lambda: flow_of(run, "app").batch is not None or None, "app has begun")
        put_all(feed, "web", web[:5])
        becomes(spark, run, tmp_path, expected(10, web, first))
        eventually(lambda: flow_of(run, "totals").waits_for == ("app",) or None, "less waits than may")
        eventually(lambda: flow_of(run, "web").batch == 4 or None, "it reads them")
        shutil.rmtree(tmp_path / ".web")
        put_all(feed, "web", web[5:])
        eventually(lambda: flow_of(run, "web").batch == FILES - 1 or None, "it reads all", 180)
        feed.put("web", (FILES * SECONDS + 5, "y", 1.0))
        eventually(lambda: flow_of(run, "totals").given_up == ("app",) or None, "the status says so")
        there = [*first, [(12.5, "a", 0.25)]]
        becomes(spark, run, tmp_path, expected(FILES * SECONDS, web, there))
        assert not flow_of(run, "web").held_for
        feed.put("app", (16, "late", 1.0))
        far = FILES * SECONDS + 60
        feed.put("app", (far, "z", 1.0))
        feed.put("web", (far - 20, "x", 2.0), (far, "z", 1.0))
        more = [(FILES * SECONDS + 5, "y", 1.0), (far - 20, "x", 2.0)]
        becomes(spark, run, tmp_path, expected(far - 10, web, there, [more]))
        eventually(lambda: not flow_of(run, "totals").given_up or None, "app is back")
        # No batch need have read what came too late before app was back. The next one has.
        feed.put("web", (far + 20, "last", 1.0))
        feed.put("app", (far + 20, "last", 1.0))
        becomes(spark, run, tmp_path, expected(far + 10, web, there, [[*more, (far, "z", 1.0), (far, "z", 1.0)]]))
    late = spark.read.format("cec").option("view", "late").option("reader", "totals").load(f"{tmp_path}/home/flows/app")
    assert [row.page for row in late.collect()] == ["late"]


ROOT = Path(__file__).resolve().parents[1]
LIFE_S = 240.0


def live_until_held(root: Path, master: str, *, is_last: bool) -> int:
    """One life of the driver of the pipeline `kept`, which is killed when it holds a flow, unless it is the last one.

    Answers the most bytes for which a flow was held: 0 for a last life that held none.
    """
    CASES["kept"].go_on(root / "in")
    paths = os.pathsep.join(str(ROOT / each) for each in ("python", "integration-tests", "support"))
    command = [sys.executable, "-m", "cec_it.pipeline_driver", "kept", str(root), master]
    child = Child(command, root / "driver.log", {"PYTHONPATH": paths, "PYSPARK_PYTHON": sys.executable})
    most = 0
    try:
        while (event := child.next_event(LIFE_S)) is not None:
            told: dict[str, Any] = event[1]
            if "done" in told:
                assert told["done"] and is_last, json.dumps(told) + (root / "driver.log").read_text()[-3000:]
                return most
            most = max([most, *(each["bytes"] for flow in told["flows"] for each in flow["held_for"])])
            if most and not is_last:
                return most
        raise AssertionError(f"the driver ended without a word: {(root / 'driver.log').read_text()[-3000:]}")
    finally:
        child.kill()


def rows_in(out: Path) -> Rows:
    """The rows of the sink's files that its log names."""
    logs = [log for log in sorted((out / "_spark_metadata").iterdir()) if log.name.isdigit()]
    named = [json.loads(line)["path"] for log in logs for line in log.read_text().splitlines()[1:]]
    rows = pq.ParquetDataset([path.removeprefix("file:") for path in named]).read().to_pylist()
    return Counter(tuple(row.values()) for row in rows)


@pytest.mark.parametrize("master", [
    pytest.param("local[2]", id="local"),
    pytest.param("local-cluster[2,1,1024]", id="two executors", marks=pytest.mark.long),
])  # fmt: skip
def test_a_driver_that_is_killed_while_flows_are_held_loses_no_row(master: str, tmp_path: Path) -> None:
    case = CASES["kept"]
    case.feed(tmp_path / "in", 20_261_129)
    for _ in range(2):
        assert live_until_held(tmp_path, master, is_last=False) > KEPT
    # How much more than the bound waits is a matter of time here: sources run before the first look after a start.
    live_until_held(tmp_path, master, is_last=True)
    assert rows_in(tmp_path / "out") == case.expected(tmp_path / "in")
