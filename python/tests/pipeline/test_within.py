"""Bounds of answers are declared where they can be kept, and tentative rows are read where they can be corrected."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from spark_cec.availability.failure import FailureState, Orders
from spark_cec.pipeline.declare import Declaration, Flow
from spark_cec.pipeline.graph import GraphError
from spark_cec.pipeline.options import Pace, Step, Within


def declare(home: Path, sink: dict[str, Any] | None = None, **flow: Any) -> dict[str, Flow]:
    made = Declaration("shop", str(home))
    made.flow(name="rows")(lambda spark: spark)
    made.flow(**{"name": "totals", "watermarks": {"rows": ("time", "10 seconds")}, **flow})(lambda rows: rows)
    made.sink(**{"name": "out", **(sink or {})})(lambda totals: totals)
    return dict(made.flows)


@pytest.mark.parametrize(
    ("options", "bound", "bucket_ms"),
    [
        ({"within": "30s"}, Within(30_000, 27_000), 1_000),
        ({"within": "3s", "alpha": 0.5, "bucket": "200ms"}, Within(3_000, 1_500), 200),
        (
            {"within": "3s", "while_correcting": "suspend", "trigger": {"processingTime": "200 milliseconds"}},
            Within(3_000, 2_700, while_correcting=Pace.SUSPEND), 1_000,
        ),
        (
            {"within": "3s", "while_away": "delay", "while_correcting": "delay"},
            Within(3_000, 2_700, Pace.DELAY, Pace.DELAY), 1_000,
        ),
        ({"bucket": "1s"}, None, 1_000),
        ({}, None, None),
    ],
)  # fmt: skip
def test_a_bound_has_buckets(
    options: dict[str, Any], bound: Within | None, bucket_ms: int | None, tmp_path: Path
) -> None:
    totals = declare(tmp_path, **options)["totals"]
    assert totals.within == bound and totals.bucket_ms == bucket_ms and not totals.tentative


def test_a_flow_by_buckets_may_wait_for_so_long_and_no_longer(tmp_path: Path) -> None:
    assert declare(tmp_path, bucket="1s", waits_at_most="6h")["totals"].most_wait_ms == 6 * 3600 * 1000
    assert declare(tmp_path, bucket="1s")["totals"].most_wait_ms is None


def test_a_sink_reads_tentative_rows_if_it_says_so(tmp_path: Path) -> None:
    assert declare(tmp_path, {"tentative": True}, within="30s")["out"].tentative


@pytest.mark.parametrize(
    ("sink", "options", "why"),
    [
        ({}, {"within": "soon"}, r"totals has within='soon': give a duration such as 30s"),
        ({}, {"within": "30s", "alpha": 1}, r"totals has alpha=1: give a number between 0 and 1"),
        ({}, {"within": "30s", "alpha": True}, r"totals has alpha=True: give a number between 0 and 1"),
        ({}, {"within": "30s", "alpha": "x"}, r"totals has alpha='x': give a number between 0 and 1"),
        ({}, {"alpha": 0.5}, r"totals has alpha=0\.5, but no within: give within, too, or leave alpha out"),
        ({}, {"while_correcting": "process"}, r"while_correcting='process', but no within: give within, too"),
        ({}, {"within": "3s", "while_correcting": "no"}, r"while_correcting='no': give 'process', 'delay' or"),
        ({}, {"within": "3s", "while_away": "suspend"}, r"while_away='suspend': give 'process' or 'delay'"),
        ({}, {"while_away": "delay"}, r"while_away='delay', but no within: give within, too"),
        (
            {}, {"within": "30s", "trigger": {"processingTime": "10 seconds"}},
            r"trigger={'processingTime': '10 seconds'} and within='30s': give a trigger of at most 3000 ms",
        ),
        ({}, {"within": "100ms"}, r"totals has within='100ms', of which alpha leaves no 100 ms: give more"),
        ({}, {"within": "30s", "output_mode": "update"}, r"output_mode='update': let it answer in append mode"),
        ({}, {"within": "30s", "watermarks": {}}, r"no watermark of rows: give the column and the delay"),
        ({}, {"within": "30s", "watermarks": {}}, r"totals has within='30s', but no watermark of rows"),
        ({}, {"waits_at_most": "6h"}, r"waits_at_most='6h', but does not wait for its inputs: give bucket or within"),
        ({}, {"bucket": "1s", "waits_at_most": "long"}, r"waits_at_most='long': give a duration such as 6h"),
        ({}, {"bucket": "1s", "waits_at_most": "1s"}, r"waits_at_most='1s': give more than 1000 ms, the bucket or"),
        ({}, {"within": "30s", "waits_at_most": "20s"}, r"waits_at_most='20s': give more than 30000 ms, the bucket"),
        ({"within": "30s"}, {}, r"@sink\(within=\.\.\.\): there is no such option"),
        ({"tentative": "yes"}, {}, r"out has tentative='yes': give True or False"),
        (
            {"tentative": True, "watermarks": {"totals": ("time", "1 second")}}, {},
            r"out reads tentative rows, and has a bucket or watermarks: aggregate in a flow",
        ),
    ],
)  # fmt: skip
def test_wrong_options_are_named(sink: dict[str, Any], options: dict[str, Any], why: str, tmp_path: Path) -> None:
    with pytest.raises(GraphError, match=why):
        declare(tmp_path, sink, **options)


def test_tentative_rows_that_nobody_reads_are_refused(tmp_path: Path) -> None:
    made = Declaration("shop", str(tmp_path))
    made.flow(name="rows")(lambda spark: spark)
    made.flow(name="totals", within="30s", watermarks={"rows": ("time", "10 seconds")})(lambda rows: rows)
    made.sink(name="out")(lambda totals: totals)
    with pytest.raises(GraphError, match=r"totals has within, and nobody reads its tentative rows: declare a sink"):
        made.graph()
    made.sink(name="board", tentative=True)(lambda totals: totals)
    made.graph()


AWAY, CORRECTING = Orders(FailureState.UP_FAILURE), Orders(FailureState.STABILIZATION)


@pytest.mark.parametrize(
    ("orders", "correcting", "step"),
    [
        (AWAY, Pace.SUSPEND, Step.KEEP),
        (CORRECTING, Pace.SUSPEND, Step.SUSPEND),
        (CORRECTING, Pace.PROCESS, Step.KEEP),
        (CORRECTING, Pace.DELAY, Step.START_AGAIN),
        (Orders(FailureState.STABILIZATION, suspends=True), Pace.PROCESS, Step.SUSPEND),
    ],
)
def test_the_pace_of_an_epoch_follows_its_state(orders: Orders, correcting: Pace, step: Step) -> None:
    within = Within(3_000, 2_700, Pace.PROCESS, correcting)
    assert within.find_step(orders, Pace.PROCESS) is step
    if step is Step.START_AGAIN:
        assert within.find_step(orders, correcting) is Step.KEEP, "once"
        assert within.find_step(AWAY, Pace.PROCESS, changes_pace=True) is step, "the start has failed"
