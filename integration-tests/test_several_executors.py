"""A query whose stores live in two executors, each with its own agent and its own segments."""

from __future__ import annotations

from pathlib import Path

import pytest

from cec_it import feeds, local, results
from cec_it.crashes import KillPoint, run_with_kills
from cec_it.driver import CEC, FOREACH, Job, Query
from cec_it.references import References

QUERY = Query("long-window-updates", feeds.RATE, FOREACH)


@pytest.mark.long
def test_a_killed_cluster_recovers(references: References, tmp_path: Path) -> None:
    # A store that moves to the other executor would make the query fail, and ask for a restart.
    conf = {
        CEC + "CI": "0ms",
        "spark.locality.wait": "60s",
        "spark.executor.extraJavaOptions": "-XX:TieredStopAtLevel=1",
    }
    job = Job(str(tmp_path), (QUERY,), local.BATCHES, local.ROWS, master="local-cluster[2,1,1024]", conf=conf)
    history = run_with_kills(job, [KillPoint(QUERY, 5, "committed")])
    assert not any(life.failed for life in history.lives), [life.failed for life in history.lives]
    segments = list((job.checkpoint(QUERY) / "cec" / "log" / "segments").glob("*.cec"))
    assert len({path.name.split("-")[1] for path in segments}) >= 4, (
        "two executors, two lives: each writes segments of its own"
    )
    (report,) = history.reports(QUERY)
    assert report["digest_ok"] is True, f"{history}: {report}"
    assert history.replayed(QUERY)[0] > 1, f"{history}: {report}"
    assert results.last_recorded(job.out(QUERY)) == references.get(QUERY, job), str(history)
