"""Functions for `foreachBatch` that look at a batch in part, or more than once: the stores have it whole, once."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession

from cec_it import feeds, local
from cec_it.plans import PLANS
from cec_it.references import PROVIDER_KEY, SPARKS_OWN

LAST = 4
FORMAT = "spark.sql.streaming.stateStore.checkpointFormatVersion"
VALIDATION = "spark.sql.streaming.stateStore.commitValidation.enabled"
TOGETHER = {"writeAt": "batch"}
Look = Callable[[DataFrame], object]
Seen = dict[int, list[tuple[object, ...]]]

KINDS = {"complete": ("totals", "complete"), "update": ("totals", "update"), "distinct": ("distinct", "append")}
"""Plans and output modes. Deduplication passes rows on as it meets them: a look at one row ends before its commit."""

LOOKS: Mapping[str, Look] = {
    "one row twice": lambda frame: (frame.head(1), frame.head(1)),
    "whether it is empty, twice": lambda frame: (frame.isEmpty(), frame.isEmpty()),
    "all rows, then one": lambda frame: (frame.collect(), frame.head(1)),
    "all rows, twice": lambda frame: (frame.collect(), frame.count()),
    "nothing": lambda frame: None,
}


def run(spark: SparkSession, checkpoint: Path, kind: str, look: Look, conf: Mapping[str, str]) -> Seen:
    """A query over a feed; batches with odd numbers are given to `look` only. Answers the rows of the others."""
    plan, mode = KINDS[kind]
    seen: Seen = {}

    def write(frame: DataFrame, batch: int) -> None:
        if batch % 2:
            look(frame)
        else:
            seen[batch] = sorted(tuple(row) for row in frame.collect())

    own = local.session(spark, {**local.OPENINGS_ONLY, **conf})
    frame = PLANS[plan].build(lambda side: feeds.read_rate(own, side, local.BATCHES, local.ROWS))
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
