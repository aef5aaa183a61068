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
    [("one row twice", {FORMAT: "2"}), ("all rows, twice", {FORMAT: "2"}), ("one row twice", {VALIDATION: "false"})],
    ids=["format-2-part", "format-2-twice", "without-validation"],
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
