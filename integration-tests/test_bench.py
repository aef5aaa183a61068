"""The benchmark as a program, on Spark, in small."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from spark_cec.bench.providers import PEERS, Provider

CEC = str(Path(sys.executable).with_name("cec"))
SMALL = ["--rounds", "1", "--keys", "2000", "--updates", "1000", "--warm-up", "2", "--batches", "2"]


def test_every_peer_runs(tmp_path: Path) -> None:
    command = [CEC, "bench", "uniform", *SMALL, "--output", str(tmp_path / "work")]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    *lines, summary, verdict = map(json.loads, ran.stdout.splitlines())
    assert {line["provider"] for line in lines} == {each.value for each in PEERS}
    assert all(line["state_rows"] == 2000 for line in lines)
    written = {line["provider"]: line["bytes_per_batch"] for line in lines}
    assert written[Provider.FLOOR.value] == 0 < written[Provider.CEC.value]
    assert summary["kind"] == "summary"
    assert verdict["kind"] == "verdict"
    assert not list((tmp_path / "work").iterdir())


@pytest.mark.long
def test_protocols_are_compared_in_small(tmp_path: Path) -> None:
    lines = tmp_path / "lines.jsonl"
    command = [CEC, "bench", "protocols", "--quick", "--output", str(tmp_path / "work"), "--json-out", str(lines)]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    for title in ("Fig. 7", "Table II", "Fig. 8", "Figs. 9, 10", "Fig. 11", "Table III", "Table IV", "Where both are"):
        assert f"**{title}" in ran.stdout
    runs = [json.loads(line) for line in lines.read_text().splitlines()]
    assert len([run for run in runs if run["kind"] in ("full", "failing")]) == 16
    assert all(run["recovery"] for run in runs if run["kind"] == "failing")
    assert not list((tmp_path / "work").iterdir())
