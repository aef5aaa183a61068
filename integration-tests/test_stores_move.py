"""Spark moves stores between executors as a matter of course: the query goes on, and every row is exact."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from cec_it import cluster, faults, feeds, scenarios
from cec_it.cluster import Cluster
from cec_it.driver import CEC, FOREACH, Job, Query
from cec_it.references import References

BATCHES, ROWS = 12, 90
QUERY = Query("long-window-updates", feeds.RATE, FOREACH)
SEED = 72


@pytest.fixture(scope="module")
def spark_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with cluster.running(tmp_path_factory.mktemp("cluster"), conf=scenarios.DECOMMISSION) as running:
        yield running


SHORT = ("more-stores-than-cores", "looks-again", "looks-again-together")
NAMES = [
    name if name in SHORT else pytest.param(name, marks=pytest.mark.long)
    for name in (scenario.name for scenario in scenarios.MOVES)
]


@pytest.mark.parametrize("name", NAMES)
def test_the_query_does_not_notice(name: str, spark_cluster: Cluster, references: References, tmp_path: Path) -> None:
    scenario = scenarios.SCENARIOS[name]
    conf = {**spark_cluster.conf(), CEC + "CI": "0ms", **scenario.conf}
    job = Job(str(tmp_path), (QUERY,), BATCHES, ROWS, master=spark_cluster.url, conf=conf)
    course = faults.run(spark_cluster, job, faults.draw(SEED, scenario.kinds, BATCHES), SEED)
    verdict = faults.judge(course, references.get(QUERY, job))
    assert verdict.rows > 0 and verdict.exact, f"{verdict}: {course}; {course.errors}"
    assert not scenarios.objection(scenario, course), f"{scenarios.objection(scenario, course)}: {course}"
