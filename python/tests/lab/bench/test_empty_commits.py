"""Commits in which nothing happens, measured in this process."""

from __future__ import annotations

from pathlib import Path

from spark_cec_lab.bench.empty_commits import empty_commits
from spark_cec_lab.bench.job import JobSpec
from spark_cec_lab.bench.measure import Schedule
from spark_cec_lab.bench.providers import Provider
from spark_cec_lab.bench.workloads import DEFAULTS, Shape


def test_each_batch_commits_each_store(tmp_path: Path) -> None:
    spec = JobSpec(
        provider=Provider.CEC, workload=DEFAULTS[Shape.UNIFORM], checkpoint="", scratch="", jar="", memory="1g",
        java_options="", conf=(), last_batch=None,
    )  # fmt: skip
    said: list[str] = []
    measured = empty_commits(spec, Schedule(fill=7, warm_up=2, timed=3), tmp_path, said.append)
    assert measured.values["empty_commit_ms"] > 0
    assert measured.values["disk_ms"] > 0
    assert measured.details == {"commits": 150}
    assert said == ["150 commits"]
