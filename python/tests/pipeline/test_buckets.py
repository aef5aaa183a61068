"""Reads by buckets are declared with a watermark of each input, and where they can work."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from spark_cec.pipeline.declare import Declaration as Pipeline
from spark_cec.pipeline.graph import GraphError
from spark_cec.pipeline.options import parse_interval_ms


@pytest.mark.parametrize(
    ("text", "ms"),
    [
        ("10 seconds", 10_000), ("1 minute 30 seconds", 90_000), ("interval 2 hours", 7_200_000),
        ("1.5 DAYS", 129_600_000), ("1 microsecond", 1), ("0 seconds", 0), ("10s", None), ("2 months", None),
        ("soon", None),
    ],
)  # fmt: skip
def test_an_interval_of_spark_in_ms(text: str, ms: int | None) -> None:
    assert parse_interval_ms(text) == ms


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"bucket": "soon"}, r"totals has bucket='soon': give a duration such as 1s"),
        ({"bucket": "0.5ms"}, r"totals has bucket='0.5ms': give whole milliseconds"),
        ({"bucket": "1s", "watermarks": {}}, r"no watermark of rows: give the column and the delay, watermarks="),
        ({"bucket": "1s", "watermarks": {"rows": ("time", "soon")}}, r"has the delay 'soon' .*: give an interval"),
        ({"bucket": "1s", "reads": {"maxBatchesPerTrigger": "5"}}, r"have no maxBatchesPerTrigger: bound the rows"),
        ({"bucket": "1s", "trigger": {"availableNow": True}}, r"reads by buckets and has trigger={'availableNow'"),
    ],
)
def test_options_that_cannot_be_are_named(options: dict[str, Any], why: str, tmp_path: Path) -> None:
    made = Pipeline("shop", f"{tmp_path}/home")
    with pytest.raises(GraphError, match=why):
        made.flow(**{"watermarks": {"rows": ("time", "2 seconds")}, **options}, name="totals")(lambda rows: rows)


@pytest.mark.parametrize(
    ("how", "own", "why"),
    [
        ({"protocol": "coordinated"}, "spark", r"totals reads by buckets, under protocol='coordinated'"),
        ({}, "totals", r"totals reads by buckets and feeds itself"),
    ],
)
def test_pipelines_that_cannot_have_buckets(how: dict[str, Any], own: str, why: str, tmp_path: Path) -> None:
    made = Pipeline("shop", f"{tmp_path}/home", **how)
    made.flow(name="rows")(lambda spark: spark)
    watermarks = {"rows": ("time", "2 seconds"), **({} if own == "spark" else {"totals": ("time", "2 seconds")})}
    function = (lambda rows, spark: rows) if own == "spark" else (lambda rows, totals: rows)
    made.flow(name="totals", bucket="1s", watermarks=watermarks, schema="time TIMESTAMP")(function)
    made.sink(name="out")(lambda totals: totals)
    with pytest.raises(GraphError, match=why):
        made.graph()
