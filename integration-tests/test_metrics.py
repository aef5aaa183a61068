"""Spark's metrics system has each query's numbers and the agents' health, and gives them to Prometheus."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

PROGRAM = Path(__file__).with_name("cec_it") / "prometheus_job.py"


def test_prometheus_is_told_of_a_running_query_and_of_a_replay(tmp_path: Path) -> None:
    """In a process of its own: only a session with a user interface has the page for Prometheus."""
    done = subprocess.run([sys.executable, str(PROGRAM), str(tmp_path)], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-4000:]
    told = json.loads(done.stdout.splitlines()[-1])
    running, replaying, ended = (values(told[when]) for when in ("running", "replaying", "ended"))
    assert running["query_clicks_batch"] == 4
    assert running["query_clicks_openWindows"] == 7
    assert running["query_clicks_dirty"] == 7
    assert running["query_clicks_replay"] > 0
    assert running["query_clicks_recoveryEstimateMs"] > 0
    assert running["query_clicks_replayBatchesLeft"] == 0
    assert (running["agent_alive"], running["agent_starts"]) == (1, 1)
    assert running["agent_residentBytes"] > 50e6
    assert 0 < replaying["query_clicks_replayBatchesLeft"] <= 4
    assert not any(name.startswith("query_") for name in ended)
    assert ended["agent_alive"] == 1


def values(page: str) -> dict[str, float]:
    """What the page says of us, without the name of the application."""
    found = re.findall(r'^metrics_\w+?_driver_cec_(\w+)_Value\{type="gauges"\} (\S+)$', page, flags=re.MULTILINE)
    return {name: float(value) for name, value in found}
