"""A standalone cluster whose parts are killed while a query runs: every row is as in an undisturbed run."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from cec_it import cluster, faults, feeds
from cec_it.cluster import Cluster
from cec_it.driver import CEC, FOREACH, Job, Query
from cec_it.references import References

BATCHES, ROWS = 16, 90
QUERY = Query("long-window-updates", feeds.RATE, FOREACH)
SEED = 71


@pytest.fixture(scope="module")
def spark_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with cluster.running(tmp_path_factory.mktemp("cluster")) as running:
        yield running


def test_every_row_is_exact_whatever_part_of_the_cluster_is_killed(
    spark_cluster: Cluster, references: References, tmp_path: Path
) -> None:
    conf = spark_cluster.conf() | {CEC + "CI": "0ms"}
    job = Job(str(tmp_path), (QUERY,), BATCHES, ROWS, master=spark_cluster.url, conf=conf)
    drawn = faults.draw(SEED, ["executor", "agent", "driver", "all-machines"], BATCHES)
    course = faults.run(spark_cluster, job, drawn, SEED)
    verdict = faults.judge(course, references.get(QUERY, job))
    assert verdict.rows > 0 and verdict.exact, f"{verdict}: {course}; {course.errors}"
    assert all(report["digest_ok"] for report in course.reports()), str(course)
    assert max(int(str(report["replayed_batches"])) for report in course.reports()) > 1, str(course)
