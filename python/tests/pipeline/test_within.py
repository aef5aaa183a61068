"""Bounds of answers are declared where they can be kept, and tentative rows are read where they can be corrected."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from spark_cec.availability.failure import FailureState, Orders
from spark_cec.availability.keep import AtKeep
from spark_cec.pipeline.declare import Declaration, Flow
from spark_cec.pipeline.graph import GraphError
from spark_cec.pipeline.input_checks import find_pause_ms, list_slow_inputs
from spark_cec.pipeline.options import Keep, Pace, Step, Within
from spark_cec.settings import PREFIX


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


@pytest.mark.parametrize(
    ("options", "keep"),
    [
        ({}, None), ({"keep": "10g"}, Keep(10 << 30)), ({"keep": "64MiB"}, Keep(64 << 20)),
        ({"keep": 4_096, "at_keep": "block"}, Keep(4_096)),
        ({"keep": " 2 TB ", "at_keep": "go on"}, Keep(2 << 40, AtKeep.GO_ON)),
    ],
)  # fmt: skip
def test_what_waits_may_have_a_bound(options: dict[str, Any], keep: Keep | None, tmp_path: Path) -> None:
    for kind in ("bucket", "within"):
        totals = declare(tmp_path, **{kind: "30s", **options})["totals"]
        assert totals.keep == keep and totals.blocks is bool(keep and keep.at_keep is AtKeep.BLOCK)


def branches(home: Path, second: str, loop: bool = False, **totals: Any) -> Declaration:
    """totals reads web and a second flow, by buckets. raw feeds web, and a flow that reads web; loop may feed itself.
    """
    made = Declaration("shop", str(home))
    for name in ("raw", "app"):
        made.flow(name=name)(lambda spark: spark)
    functions: dict[str, Any] = {
        "web": (lambda raw, web: raw) if loop else (lambda raw: raw), "hours": lambda web: web,
        "other": lambda raw: raw, "half": lambda app: app,
    }  # fmt: skip
    for name, function in functions.items():
        made.flow(name=name, schema="time TIMESTAMP")(function)
    marks = dict.fromkeys(("web", second), ("time", "2 seconds"))
    read: dict[str, Any] = {
        "app": lambda web, app: web, "hours": lambda web, hours: web, "other": lambda web, other: web,
        "half": lambda web, half: web,
    }  # fmt: skip
    made.flow(**{"name": "totals", "bucket": "1s", "watermarks": marks, "keep": "1g", **totals})(read[second])
    made.sink(name="out")(lambda totals, hours, other, half, app: totals)
    return made


def test_a_flow_holds_no_flow_for_which_it_may_wait(tmp_path: Path) -> None:
    for second in ("app", "half"):
        branches(tmp_path, second).graph()
    mend = r": give at_keep='go on', or leave keep out"
    with pytest.raises(GraphError, match=rf"totals has at_keep='block', and web feeds web and hours, so .*{mend}"):
        branches(tmp_path, "hours").graph()
    with pytest.raises(GraphError, match=rf"totals has at_keep='block', and raw feeds web and other, so .*{mend}"):
        branches(tmp_path, "other").graph()
    with pytest.raises(GraphError, match=rf"at_keep='block', and web, which it would hold, feeds itself{mend}"):
        branches(tmp_path, "app", loop=True).graph()
    for second in ("hours", "other"):
        branches(tmp_path, second, at_keep="go on").graph()
    branches(tmp_path, "app", loop=True, at_keep="go on").graph()


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
        ({}, {"keep": "10g"}, r"totals has keep='10g', but does not wait for its inputs: give bucket or within, too"),
        ({}, {"bucket": "1s", "at_keep": "block"}, r"totals has at_keep='block', but no keep: give keep, too"),
        ({}, {"bucket": "1s", "keep": "0"}, r"totals has keep='0': give a size above 0, such as 64MiB or 10g"),
        ({}, {"keep": True}, r"totals has keep=True: give a size such as 10g; for readers outside .* give kept"),
        ({}, {"bucket": "1s", "keep": -5}, r"totals has keep=-5: give a size above 0"),
        ({}, {"bucket": "1s", "keep": "10 bananas"}, r"keep='10 bananas': give a size above 0"),
        (
            {}, {"bucket": "1s", "keep": "1g", "at_keep": "blok"},
            r"at_keep='blok': give 'block' or 'go on'; did you mean block\?",
        ),
        ({}, {"bucket": "1s", "keep": "1g", "at_keep": 5}, r"at_keep=5: give 'block' or 'go on'; there are block and"),
        ({"tentative": True, "keep": "1g"}, {}, r"out has keep='1g', but does not wait for its inputs"),
        ({"within": "30s"}, {}, r"@sink\(within=\.\.\.\): there is no such option"),
        ({"tentative": "yes"}, {}, r"out has tentative='yes': give True or False"),
        (
            {"tentative": True, "watermarks": {"totals": ("time", "1 second")}}, {},
            r"out reads tentative rows, and has watermarks without a bucket: aggregate in a flow",
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


def graph_of(home: Path, rows: dict[str, Any], inputs: tuple[str, ...] = ("rows", "web"), **totals: Any) -> Declaration:
    """The flow `rows` and another input -> `totals`."""
    made = Declaration("shop", str(home))
    made.flow(name="rows", **rows)(lambda spark: spark)
    watermarks = dict.fromkeys(inputs, ("time", "10 seconds"))

    def one(rows: Any) -> Any: ...

    def two(rows: Any, web: Any) -> Any: ...

    if len(inputs) == 2:
        made.flow(name="web")(lambda spark: spark)
    made.flow(**{"name": "totals", "watermarks": watermarks, **totals})(one if len(inputs) == 1 else two)
    made.sink(name="out", tentative="within" in totals)(lambda totals: totals)
    return made


EVERY_30_S = {"trigger": {"processingTime": "30 seconds"}}
QUIET_30_S = {"conf": {PREFIX + "sources.quiet": "30s"}}


@pytest.mark.parametrize(
    ("rows", "totals", "why"),
    [
        (EVERY_30_S, {"within": "30s"}, r"rows has trigger=.*30 seconds'}, and totals takes .* rows at most 27000 ms"),
        ({"trigger": {"availableNow": True}}, {"within": "30s"}, r"rows has trigger=.*and ends, so totals would take"),
        ({"output_mode": "complete"}, {"within": "30s"}, r"totals reads rows by buckets, .* has output_mode='comp"),
        ({"output_mode": "complete"}, {"bucket": "1s"}, r"totals reads rows by buckets, .* has output_mode='comp"),
    ],
)
def test_inputs_that_would_seem_away_or_have_no_buckets_are_refused(
    rows: dict[str, Any], totals: dict[str, Any], why: str, tmp_path: Path
) -> None:
    with pytest.raises(GraphError, match=why):
        graph_of(tmp_path, rows, **totals).graph()
    if "output_mode" not in rows:
        graph_of(tmp_path, rows, ("rows",), **totals).graph()  # it waits for no other input


@pytest.mark.parametrize(("bucket", "is_refused"), [("14s", True), ("13s", False)])
@pytest.mark.parametrize("far", [False, True])
def test_the_buckets_upstream_are_short_enough(far: bool, bucket: str, is_refused: bool, tmp_path: Path) -> None:
    """Also those of an input's input. A flow with one input waits for no other one."""
    made, start = graph_of(tmp_path, {}, bucket=bucket), ("time", "0 seconds")

    def between(totals: Any) -> Any: ...

    def later(web: Any, totals: Any) -> Any: ...

    def later_of_between(web: Any, between: Any) -> Any: ...

    if far:
        made.flow(bucket="1s", watermarks={"totals": start})(between)
    reads = {"web": start, "between" if far else "totals": start}
    made.flow(name="later", within="30s", watermarks=reads)(later_of_between if far else later)
    made.sink(name="shown", tentative=True)(lambda later: later)
    made.flow(name="last", within="30s", watermarks={"later": start})(lambda later: later)
    made.sink(name="shown_last", tentative=True)(lambda last: last)
    if is_refused:
        with pytest.raises(GraphError, match=r"totals has buckets of 14000 ms, and later .* at most 13500 ms") as error:
            made.graph()
        assert len(error.value.complaints) == 1
    else:
        made.graph()


def test_batches_without_rows_come_in_time_for_the_flows_after_it(tmp_path: Path) -> None:
    made = graph_of(tmp_path, {}, bucket="1s")
    made.flow(name="later", within="30s", watermarks={"totals": ("time", "0 seconds")})(lambda totals: totals)
    made.flow(name="last", within="3s", watermarks={"later": ("time", "0 seconds")})(lambda later: later)
    made.sink(name="shown", tentative=True)(lambda last: last)
    graph = made.graph()
    found = {name: find_pause_ms(graph, made.flows, name) for name in ("totals", "later", "last", "shown")}
    assert found == {"totals": 1_000, "later": 1_000, "last": None, "shown": None}
    alone = graph_of(tmp_path, {}, within="30s")
    assert find_pause_ms(alone.graph(), alone.flows, "rows") == 27_000 // 4


@pytest.mark.parametrize(
    ("rows", "totals", "warnings"),
    [
        (EVERY_30_S, {"within": "40s"}, ["trigger='30 seconds'"]),
        (QUIET_30_S, {"bucket": "1s"}, ["sources.quiet=30s"]), (QUIET_30_S, {"within": "30s"}, ["sources.quiet=30s"]),
        (EVERY_30_S, {"bucket": "30s"}, []), ({}, {"within": "30s"}, []), (EVERY_30_S, {}, []),
        ({"conf": {PREFIX + "sources.quiet": "hold"}}, {"within": "30s"}, []),
        ({"trigger": {"availableNow": True}}, {"bucket": "1s"}, []), ({"output_mode": "complete"}, {}, []),
    ],
)  # fmt: skip
def test_inputs_that_tell_less_often_than_buckets_begin_are_named(
    rows: dict[str, Any], totals: dict[str, Any], warnings: list[str], tmp_path: Path
) -> None:
    made = graph_of(tmp_path, rows, **totals)
    found = list_slow_inputs(made.graph(), made.flows)
    assert len(found) == len(warnings)
    for each, known in zip(found, warnings, strict=True):
        assert known in each and each.startswith("flow totals reads rows by buckets of 1000 ms")
