"""Whether the bound is met: which commits count, and how runs are summed up."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from spark_cec.ids import StoreId
from spark_cec.log.meta import CommitFlags, CommitMeta
from spark_cec.settings import ExtentBound
from spark_cec_lab.bench import bound, command
from spark_cec_lab.bench.bound import EXTENTS, REPLAYS, Grid, Points, crash_points, grids, summed_up
from spark_cec_lab.bench.job import JobSpec
from spark_cec_lab.bench.measure import Measured, Say, Schedule

GRID = Grid(ExtentBound(per_window=2.0), 1000, seed=5, any_time=False)


def commit(version: int, extent: int, replay: int, partition: int = 0, open_windows: int = 100) -> CommitMeta:
    return CommitMeta(
        store=StoreId(0, partition), version=version, checkpoint_id=b"", base_checkpoint_id=b"",
        generation=1, open_windows=open_windows, dirty_from=0, oldest_footprint=0, opened=0, checked=0, closed=0,
        records=0, inputs=0, dirty_windows=0, wall_ms=0, watermark_ms=-1, extent=extent, replay=replay,
    )  # fmt: skip


def test_every_commit_of_every_store_is_a_point_and_of_two_attempts_the_later_one() -> None:
    commits = [commit(1, 900, 0), commit(2, 300, 0), commit(2, 200, 500), commit(2, 100, 2000, partition=1)]
    points = crash_points(commits, GRID, first_version=2)
    assert sorted(points.over) == [(0.5, 2.0), (1.0, 0.5)]
    assert (points.met, points.worst) == (0.5, (1.0, 2.0))


def test_what_is_written_as_a_query_stops_is_no_point() -> None:
    """It has the version of the last commit, and counts for neither bound."""
    flush = dataclasses.replace(commit(2, 900, 0), flags=CommitFlags.FLUSH)
    assert crash_points([commit(2, 300, 0), flush], GRID, 2).over == ((1.5, 0.0),)


def test_a_bound_below_the_open_windows_is_theirs() -> None:
    grid = Grid(ExtentBound(records=10), 1000, seed=5, any_time=False)
    assert crash_points([commit(1, 100, 0)], grid, 1).over == ((1.0, 0.0),)


def test_attainable_is_what_is_met_with_all_the_time() -> None:
    both = [Grid(GRID.q, u, 5, any_time) for u in (1, 2) for any_time in (False, True)]
    met, missed = Points(((1.0, 1.0), (0.5, 0.5))), Points(((1.5, 0.2), (1.0, 3.0)))
    line = summed_up(list(zip(both, [missed, met, met, missed], strict=True)))
    assert line["all"] == {"runs": 2, "crash_points": 4, "met": 0.5, "worst_q": 1.5, "worst_u": 3}
    assert line["attainable"] == {"runs": 1, "crash_points": 2, "met": 0, "worst_q": 1.5, "worst_u": 3}
    assert line["any_time"]["met"] == 0.5
    assert summed_up([])["attainable"] == {"runs": 0, "crash_points": 0}


def test_each_q_is_run_with_each_u_and_each_seed() -> None:
    todo = grids(2)
    assert len(todo) == len({(str(each.q), each.u, each.seed, each.any_time) for each in todo})
    assert len(todo) == 2 * len(EXTENTS) * len(REPLAYS) * 2
    confs = [dict(each.conf) for each in todo]
    assert {conf["spark.sql.streaming.stateStore.cec.Q"] for conf in confs} == {"1.5x", "2x", "4x"}


def test_the_command(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    jar = tmp_path / "spark-cec.jar"
    jar.write_text("jar")
    told: list[JobSpec] = []

    def measure(spec: JobSpec, schedule: Schedule, home: Path, say: Say) -> Measured:
        told.append(spec)
        say("batch 1/1")
        return Measured({}, {})

    monkeypatch.setattr(bound, "jar_path", lambda: str(jar))
    monkeypatch.setattr(bound, "steady", measure)
    monkeypatch.setattr(bound, "commits_of", lambda checkpoint: [commit(60, 100, 10_000)])
    monkeypatch.setattr("signal.signal", lambda *_: None)
    options = ["bound", "--rounds", "1", "--keys", "500", "--output", str(tmp_path / "out")]
    result = CliRunner().invoke(command.app, options)
    assert result.exit_code == 0, result.stderr
    lines: list[dict[str, Any]] = [json.loads(line) for line in result.stdout.splitlines()]
    assert len(lines) == 2 * len(EXTENTS) * len(REPLAYS) + 1
    assert {spec.workload.keys for spec in told} == {500}
    assert lines[-1]["all"]["crash_points"] == len(EXTENTS) * len(REPLAYS)
    assert "18/18, Q=4x, U=100000, CI/CP 1: batch 1/1" in result.stderr
    assert not list((tmp_path / "out").iterdir())
