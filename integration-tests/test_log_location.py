"""A log's place that is another one on each machine: the query stops at its first commit and says so."""

from __future__ import annotations

from pathlib import Path

import pytest

from cec_it import cluster, feeds, local
from cec_it.crashes import driver
from cec_it.driver import CEC, FOREACH, Job, Query
from testbed.spark_logs import newest

DEADLINE_S = 120.0


# A query without state has no store that would notice: its sink must.
@pytest.mark.parametrize(
    ("plan", "sink"), [("window-update", FOREACH), pytest.param("rows", "cec", marks=pytest.mark.long)]
)
def test_a_log_that_is_not_shared_is_refused_at_the_first_commit(
    plan: str, sink: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    # The working directory is another one for each process: like a disk that each machine has.
    query = Query(plan, feeds.RATE, sink)
    with cluster.running(tmp_path / "cluster", workers=2) as running:
        conf = running.conf() | {CEC + "log.path": "/proc/self/cwd/own-disk"}
        job = Job(str(tmp_path / "job"), (query,), local.BATCHES, local.ROWS, master=running.url, conf=conf)
        with driver(job) as child:
            events = []
            while (heard := child.next_event(DEADLINE_S)) is not None:
                events.append(heard[1])
    failed = next(event for event in events if event["event"] == "failed")
    said = str(failed["error"])
    assert "own-disk" in said and "no log" in said and "cec.log.path" in said, said
    assert newest(job.checkpoint(query) / "commits") == -1
    assert [path for path in local.files_in(tmp_path / "cluster") if path.name == "log.json"] == []
