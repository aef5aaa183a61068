"""A function that depends on the order of its rows gets them in one order, whatever order they come in."""

from __future__ import annotations

import json
import os
import random
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from pyspark.sql import SparkSession
from pyspark.sql.streaming.state import GroupState

from cec_it import feeds, local, results
from cec_it.crashes import KillPoint, run_with_kills
from cec_it.driver import CEC, FOREACH, Job, Query
from cec_it.references import PROVIDER_KEY, SPARKS_OWN, References

QUERY = Query("last-value", feeds.RATE, FOREACH)
SORTED = Query("last-value-sorted", feeds.RATE, FOREACH)
SCHEMA = (
    "key LONG, x DOUBLE, words MAP<STRING, LONG>, all ARRAY<DOUBLE>, word STRING COLLATE UTF8_LCASE, seq LONG, "
    "nested STRUCT<x: FLOAT, n: DECIMAL(30, 3)>, raw BINARY, at TIMESTAMP_NTZ"
)
SEED = int(os.environ.get("CEC_TEST_SEED", "20261"))


@pytest.mark.long
def test_two_executors_killed(references: References, tmp_path: Path) -> None:
    """Rows of six tasks on two executors come in any order; the reference sorts them in the function."""
    conf = {
        CEC + "CI": "0ms",
        "spark.locality.wait": "60s",
        "spark.executor.extraJavaOptions": "-XX:TieredStopAtLevel=1",
    }
    job = Job(str(tmp_path), (QUERY,), local.BATCHES, local.ROWS, master="local-cluster[2,1,1024]", conf=conf)
    history = run_with_kills(job, [KillPoint(QUERY, 5, "committed")])
    assert not any(life.failed for life in history.lives), [life.failed for life in history.lives]
    assert local.query_json(job.checkpoint(QUERY))["mode"] == "deferred"
    (report,) = history.reports(QUERY)
    assert report["digest_ok"] is True, f"{history}: {report}"
    assert history.replayed(QUERY)[0] > 1, f"{history}: {report}"
    assert results.last_recorded(job.out(QUERY)) == references.get(SORTED, job), str(history)


def events(dice: random.Random, number: int) -> list[str]:
    """Rows of which many are equal in Spark's order, and not the same."""
    return [
        json.dumps(
            {
                "key": dice.randrange(3),
                "x": dice.choice([0.0, -0.0, 1.5, None]),
                "words": {letter: dice.randrange(2) for letter in dice.sample("ab", dice.randrange(3))},
                "all": [dice.choice([0.0, -0.0]) for _ in range(dice.randrange(3))],
                "word": dice.choice(["one", "One", "ONE", None]),
                "seq": number,
                "nested": dice.choice([None, {"x": dice.choice([-0.0, 0.0]), "n": 1.5}]),
                "raw": dice.choice(["YQ==", "Yg==", None]),
                "at": f"2024-01-01T00:00:0{dice.randrange(3)}",
            }
        )
        for _ in range(60)
    ]


def follow(key: tuple[int], chunks: Iterable[pd.DataFrame], state: GroupState) -> Iterator[pd.DataFrame]:
    """A trail of all rows as they are seen, to the sign of a zero."""
    (trail,) = state.getOption or ("",)
    for rows in chunks:
        for row in rows.itertuples(index=False):
            trail = f"{hash_of(trail + repr([_plain(value) for value in row]))}"
    state.update((trail,))
    yield pd.DataFrame([(key[0], trail)], columns=["key", "trail"])


def hash_of(text: str) -> int:
    """The same in all processes, unlike `hash`."""
    result = 7
    for letter in text:
        result = (1000003 * result + ord(letter)) % (2**61 - 1)
    return result


def _plain(value: Any) -> str:
    if isinstance(value, dict):
        return repr([(key, _plain(each)) for key, each in value.items()])
    return repr([float(each) for each in value]) if hasattr(value, "tolist") else repr(value)


def trails(spark: SparkSession, root: Path, shuffle: int, provider: str | None, parts: int) -> list[tuple[object, ...]]:
    """The rows of two batches, in an order that `shuffle` says, from so many tasks; what the function made of them."""
    (root / "in").mkdir(parents=True)
    for number in range(2):
        lines = events(random.Random(SEED + number), number)
        random.Random(shuffle + number).shuffle(lines)
        (root / "in" / f"{number}.json").write_text("\n".join(lines))
        os.utime(root / "in" / f"{number}.json", (1_600_000_000 + number, 1_600_000_000 + number))
    own = local.session(spark, {PROVIDER_KEY: provider} if provider else {})
    rows = own.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1).json(str(root / "in")).repartition(parts)
    followed = rows.groupBy("key").applyInPandasWithState(
        follow, "key LONG, trail STRING", "trail STRING", "update", "NoTimeout"
    )
    seen: dict[int, list[tuple[object, ...]]] = {}
    writer = followed.writeStream.outputMode("update").option("checkpointLocation", str(root / "checkpoint"))
    streaming = writer.foreachBatch(local.in_memory(seen)).start()
    try:
        streaming.processAllAvailable()
    finally:
        streaming.stop()
    if provider is None:
        assert local.query_json(root / "checkpoint")["mode"] == "deferred"
    return [row for batch in sorted(seen) for row in seen[batch]]


def test_rows_equal_in_order_are_told_apart_by_their_bytes(spark: SparkSession, tmp_path: Path) -> None:
    first = trails(spark, tmp_path / "first", 1, None, 2)
    assert first == trails(spark, tmp_path / "second", 2, None, 3), f"seed {SEED}"
    assert len(first) == 6
    as_they_come = trails(spark, tmp_path / "third", 1, SPARKS_OWN, 2)
    assert as_they_come != trails(spark, tmp_path / "fourth", 2, SPARKS_OWN, 3), "the function does not depend on order"
