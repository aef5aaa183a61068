"""The experiment with pipelines: what its curves are, when its workers come, how its ways are compared."""

from __future__ import annotations

import pytest

from spark_cec.pipeline import RecoveryMode
from spark_cec_lab.bench.pipelines.chain import summary as chain_summary
from spark_cec_lab.bench.pipelines.chain_job import Joined
from spark_cec_lab.bench.pipelines.driver import DriverSpec, observed_latency
from spark_cec_lab.bench.pipelines.failover import SINKS, Batch, Course, Curve, Run, Way, curve, summary
from spark_cec_lab.bench.pipelines.topology import SUBSCRIBED, WINDOWS, Load, topology
from spark_cec_lab.bench.pipelines.way_job import WaySpec

COURSE = Course(steady_s=20.0, interval_s=10.0)


def test_the_topology_is_the_papers() -> None:
    graph = topology("/home/of/tags", Load()).graph()
    assert len(graph.queries()) == 15
    assert len(set(SUBSCRIBED)) == 15, "every set of windows is another query"
    assert graph.upstream("q1") == {"q1", "o1", "parser", "source"}
    assert graph.upstream("q15") == {"q15", *WINDOWS, "parser", "source"}


def test_specs_survive_json() -> None:
    driver = DriverSpec("spark://h:1", "/h", "/s", ("a.jar", "b.jar"), Load(tweets=7), RecoveryMode.BLOCKING)
    assert DriverSpec.from_json(driver.to_json()) == driver
    chain = WaySpec(Joined.PARQUET.value, "/h", "a.jar", "2g", None, 10)
    assert WaySpec.from_json(chain.to_json()) == chain


def test_latency_is_to_the_end_of_the_batch() -> None:
    progress = {"timestamp": "1970-01-01T00:01:40.000Z", "durationMs": {"triggerExecution": 2500},
                "observedMetrics": {"latency": {"created": 99_000.0, "rows": 4}}}  # fmt: skip
    assert observed_latency(progress) == {"at": 102.5, "latency_s": pytest.approx(3.5), "rows": 4}
    empty = {**progress, "observedMetrics": {"latency": {"created": None, "rows": 0}}}
    assert observed_latency(empty) is None
    assert observed_latency({**progress, "observedMetrics": {}}) is None


def test_nodes_come_at_the_same_times_for_all_but_the_best_case() -> None:
    course = Course(scale=0.5)
    progressive = course.arrivals(Way.PROGRESSIVE, 3)
    assert progressive == sorted(progressive) == course.arrivals(Way.BLOCKING, 3) == course.arrivals(Way.AT_ONCE, 3)
    assert all(60.0 <= at <= 180.0 for at in progressive)
    assert progressive != course.arrivals(Way.PROGRESSIVE, 4)
    assert set(course.arrivals(Way.BEST_CASE, 3)) == {90.0}


def test_a_curve_is_relative_to_the_time_before_the_failure() -> None:
    """Two sinks with latencies of 10 and 20 s; one is available throughout, the other from the fourth interval on."""
    before = [Batch("q1", -30.0, 99.0), Batch("q1", -15.0, 9.0), Batch("q1", -5.0, 11.0), Batch("q2", -5.0, 20.0)]
    after = [
        *(Batch("q1", 1.0, 11.0), Batch("q1", 9.0, 12.0)),
        *(Batch("q1", 12.0, 11.0), Batch("q2", 15.0, 50.0)),
        *(Batch("q1", 22.0, 11.0), Batch("q2", 29.0, 24.0), Batch("q2", 38.0, 22.0)),
    ]
    found = curve([*before, *after], COURSE, 45.0)
    assert found.at_s == (0.0, 10.0, 20.0, 30.0)
    assert found.available == (1, 1, 1, 2)
    means = [(11.5,), (34 / 3, 50.0), (11.0, 37.0), (11.0, 23.0)]
    relative = [sum(mean / l_s for mean, l_s in zip(each, (10.0, 20.0), strict=False)) / len(each) for each in means]
    assert list(found.relative) == pytest.approx(relative)
    assert found.area == pytest.approx(50.0)
    assert (found.reached_s(1), found.reached_s(2), found.reached_s(3)) == (0.0, 30.0, None)


def test_an_interval_without_output_has_no_latency_and_no_query() -> None:
    found = curve([Batch("q1", -1.0, 10.0), Batch("q1", 12.0, 10.0)], COURSE, 20.0)
    assert list(found.relative) == [None, 1.0]
    assert found.available == (0, 1)


def run(way: Way, seed: int, available: tuple[int, ...]) -> Run:
    times = tuple(10.0 * i for i in range(len(available)))
    return Run(way, seed, (1.0,), Curve(times, (1.0,) * len(times), available), dict.fromkeys(SINKS, 1.0), 5.0)


def test_ways_are_compared_within_a_round() -> None:
    runs = [
        *(run(Way.PROGRESSIVE, 1, (2, 4)), run(Way.BLOCKING, 1, (0, 3))),
        *(run(Way.BLOCKING, 2, (0, 1)), run(Way.PROGRESSIVE, 2, (0, 4))),
    ]
    told = summary(runs)
    assert told["area_over"] == {"blocking": {"median": 3.0, "low": 2.0, "high": 4.0}}
    assert told["medians"]["progressive"] == {"area": 50.0, "first_s": 5.0}
    assert told["medians"]["blocking"] == {"area": 20.0, "first_s": 10.0}


def test_a_chain_is_compared_with_the_other_ways() -> None:
    told = chain_summary("chain", Joined.PIPELINE, [
        {
            Joined.PIPELINE: {"latency_s": 2.0, "rows_per_s": 50.0},
            Joined.ONE_QUERY: {"latency_s": 1.0, "rows_per_s": 100.0},
            Joined.PARQUET: {"latency_s": 4.0, "rows_per_s": 25.0},
        }
    ])  # fmt: skip
    assert told["ratios"]["one-query"]["latency_s"]["median"] == 2.0
    assert told["ratios"]["parquet"]["rows_per_s"]["median"] == 2.0
