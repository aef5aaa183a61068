"""Functions for `foreachBatch` that look at a batch in part, or more than once: the stores have it whole, once."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path

import pandas as pd
import pytest
from pyspark.errors import PythonException, StreamingQueryException
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.streaming.state import GroupState

from cec_it import feeds, local
from cec_it.plans import PLANS
from cec_it.references import PROVIDER_KEY, SPARKS_OWN

LAST = 4
FORMAT = "spark.sql.streaming.stateStore.checkpointFormatVersion"
VALIDATION = "spark.sql.streaming.stateStore.commitValidation.enabled"
TOGETHER = {"writeAt": "batch"}
Look = Callable[[DataFrame], object]
Seen = dict[int, list[tuple[object, ...]]]

KINDS = {
    "complete": ("totals", "complete"),
    "update": ("totals", "update"),
    "distinct": ("distinct", "append"),
    "doubles": ("doubles", "update"),
}
"""Plans and output modes. Deduplication passes rows on as it meets them: a look at one row ends before its commit."""

LOOKS: Mapping[str, Look] = {
    "one row twice": lambda frame: (frame.head(1), frame.head(1)),
    "whether it is empty, twice": lambda frame: (frame.isEmpty(), frame.isEmpty()),
    "all rows, then one": lambda frame: (frame.collect(), frame.head(1)),
    "all rows, twice": lambda frame: (frame.collect(), frame.count()),
    "nothing": lambda frame: None,
}


def run(spark: SparkSession, checkpoint: Path, kind: str, look: Look, conf: Mapping[str, str]) -> Seen:
    """`watch` over a feed."""
    plan, mode = KINDS[kind]
    own = local.session(spark, {**local.OPENINGS_ONLY, **conf})
    frame = PLANS[plan].build(lambda side: feeds.read_rate(own, side, local.BATCHES, local.ROWS))
    return watch(frame, mode, checkpoint, look)


def watch(frame: DataFrame, mode: str, checkpoint: Path, look: Look) -> Seen:
    """Runs a query, and gives batches with odd numbers to `look` only. Answers the rows of the others."""
    seen: Seen = {}

    def write(frame: DataFrame, batch: int) -> None:
        if batch % 2:
            look(frame)
        else:
            seen[batch] = sorted(tuple(row) for row in frame.collect())

    writer = frame.writeStream.outputMode(mode).option("checkpointLocation", str(checkpoint))
    streaming = writer.foreachBatch(write).start()
    try:
        local.wait_for(streaming, LAST)
    finally:
        streaming.stop()
    return {batch: rows for batch, rows in seen.items() if batch <= LAST}


@pytest.fixture(scope="module")
def whole(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Seen]:
    """What a function that takes all rows sees."""
    made = {kind: run(spark, tmp_path_factory.mktemp("whole") / kind, kind, DataFrame.collect, {}) for kind in KINDS}
    assert all(sorted(seen) == [0, 2, 4] and all(seen.values()) for seen in made.values())
    return made


@pytest.mark.parametrize(
    ("kind", "look"), [("complete", look) for look in LOOKS] + [("distinct", look) for look in LOOKS if "all" in look]
)
def test_the_stores_have_every_batch_whole(
    kind: str, look: str, spark: SparkSession, whole: Mapping[str, Seen], tmp_path: Path
) -> None:
    assert run(spark, tmp_path, kind, LOOKS[look], {}) == whole[kind]


@pytest.mark.parametrize(
    ("look", "conf"),
    [
        ("one row twice", {FORMAT: "2"}),
        ("all rows, twice", {FORMAT: "2"}),
        ("one row twice", {VALIDATION: "false"}),
        ("one row twice", TOGETHER),
        ("all rows, twice", TOGETHER),
        ("all rows, then one", {**TOGETHER, FORMAT: "2"}),
        ("all rows, twice", {**TOGETHER, "mode": "eager"}),
    ],
    ids=[
        *("format-2-part", "format-2-twice", "without-validation"),
        *("together-part", "together-twice", "together-format-2", "together-eager"),
    ],
)
def test_the_same_with_other_confs(
    look: str, conf: Mapping[str, str], spark: SparkSession, whole: Mapping[str, Seen], tmp_path: Path
) -> None:
    assert run(spark, tmp_path, "update", LOOKS[look], conf) == whole["update"]


def test_where_all_is_eager_a_batch_is_completed_that_was_passed_over(
    spark: SparkSession, whole: Mapping[str, Seen], tmp_path: Path
) -> None:
    assert run(spark, tmp_path, "complete", LOOKS["nothing"], {"mode": "eager"}) == whole["complete"]


def test_where_all_is_eager_a_look_at_a_part_is_sparks_own_error(spark: SparkSession, tmp_path: Path) -> None:
    said = []
    for name, conf in {"eager": {"mode": "eager"}, "spark": {PROVIDER_KEY: SPARKS_OWN}}.items():
        with pytest.raises(StreamingQueryException) as stopped:
            run(spark, tmp_path / name, "complete", LOOKS["one row twice"], conf)
        said.append(str(stopped.value).partition("terminated with exception")[2].partition("===")[0])
    assert said[0] == said[1] != ""


def twice_at_once(frame: DataFrame) -> list[tuple[object, ...]]:
    """Both rows of each pair, by tasks that read the batch twice, row by row in turn."""
    return sorted((*left, *right) for left, right in frame.rdd.zip(frame.rdd).collect())


@pytest.mark.parametrize("kind", KINDS)
def test_a_batch_that_one_task_reads_twice_at_once_is_refused_by_name(
    kind: str, spark: SparkSession, tmp_path: Path
) -> None:
    """The store has its windows once. Each read would see the changes of the other, and no error would say so."""
    with pytest.raises(StreamingQueryException, match=r"reads the same batch twice at once.*call persist\(\)"):
        run(spark, tmp_path, kind, twice_at_once, {})


@pytest.mark.parametrize("kind", KINDS)
def test_a_batch_that_is_persisted_is_read_twice_at_once(
    kind: str, spark: SparkSession, whole: Mapping[str, Seen], tmp_path: Path
) -> None:
    looked_at: list[bool] = []

    def look(frame: DataFrame) -> None:
        frame.persist()
        pairs, rows = twice_at_once(frame), sorted(tuple(row) for row in frame.collect())
        looked_at.append(pairs == [row * 2 for row in rows])
        frame.unpersist()

    assert run(spark, tmp_path, kind, look, {}) == whole[kind]
    assert looked_at and all(looked_at)


@pytest.mark.parametrize("kind", KINDS)
def test_a_task_may_read_a_batch_again_once_it_is_through_with_it(
    kind: str, spark: SparkSession, whole: Mapping[str, Seen], tmp_path: Path
) -> None:
    looked_at: list[bool] = []

    def look(frame: DataFrame) -> None:
        rows = sorted(tuple(row) for row in frame.union(frame).coalesce(1).collect())
        looked_at.append(rows == sorted(2 * [tuple(row) for row in frame.collect()]))

    assert run(spark, tmp_path, kind, look, {}) == whole[kind]
    assert looked_at and all(looked_at)


def fail_behind_commits(rows: Iterable[Row]) -> Iterator[Row]:
    """A function of a task that takes all its rows, so that the store commits, and fails then."""
    for _ in rows:
        pass
    raise OSError("this task fails behind its commit")


def then_fail(frame: DataFrame) -> None:
    """Take all rows, then run tasks that fail behind their commits, and hide that."""
    frame.collect()
    with pytest.raises(PythonException, match="this task fails behind its commit"):
        frame.rdd.mapPartitions(fail_behind_commits).count()


@pytest.mark.parametrize("mode", ["auto", "eager"])
@pytest.mark.parametrize("write_at", ["task", "batch", "async"])
@pytest.mark.parametrize("kind", ["update", "doubles"])
def test_a_task_that_fails_behind_its_second_commit_loses_nothing(
    kind: str, write_at: str, mode: str, spark: SparkSession, whole: Mapping[str, Seen], tmp_path: Path
) -> None:
    """Spark does not add up what a task that failed has counted: the driver knows the first commit alone."""
    assert run(spark, tmp_path, kind, then_fail, {"writeAt": write_at, "mode": mode}) == whole[kind]


@pytest.mark.parametrize("write_at", ["batch", "async"])
@pytest.mark.parametrize("mode", ["auto", "eager"])
def test_a_second_commit_with_another_result_counts_as_where_tasks_write(
    mode: str, write_at: str, spark: SparkSession, tmp_path: Path
) -> None:
    """The function of the state reads a file that changes between the two runs of a batch."""
    more = tmp_path / "more"

    def add(key: tuple[int], frames: Iterable[pd.DataFrame], state: GroupState) -> Iterator[pd.DataFrame]:
        total = (state.get[0] if state.exists else 0) + sum(len(frame) for frame in frames) + int(more.read_text())
        state.update((total,))
        yield pd.DataFrame({"key": [key[0]], "total": [total]})

    def look(frame: DataFrame) -> None:
        frame.collect()
        more.write_text("1000")
        with pytest.raises(PythonException, match="this task fails behind its commit"):
            frame.rdd.mapPartitions(fail_behind_commits).count()
        more.write_text("0")

    def seen(name: str, conf: Mapping[str, str]) -> Seen:
        more.write_text("0")
        own = local.session(spark, {**local.OPENINGS_ONLY, **conf}, **{"spark.sql.shuffle.partitions": "1"})
        keys = feeds.read_rate(own, "left", local.BATCHES, local.ROWS).select(f.pmod("key", f.lit(5)).alias("key"))
        rows = keys.groupBy("key").applyInPandasWithState(
            add, "key LONG, total LONG", "total LONG", "update", "NoTimeout"
        )
        return watch(rows, "update", tmp_path / name, look)

    by_tasks = seen("task", {"writeAt": "task", "mode": mode})
    assert seen("together", {"writeAt": write_at, "mode": mode}) == by_tasks
    assert all(total > 2000 for _, total in by_tasks[LAST])
