"""The demo of answers while an input is away. X is longer here, and no delay counts, for a machine with much to do."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from cec_it.cluster import LOOPBACK

DEMO = Path(__file__).resolve().parents[1] / "examples/sensors.py"
WITHIN_S = 8


def test_the_demo_shows_tentative_rows_and_no_wrong_one(tmp_path: Path) -> None:
    command = [sys.executable, str(DEMO), "--within", str(WITHIN_S), "--output", str(tmp_path / "out")]
    environment = {**os.environ, "SPARK_LOCAL_IP": LOOPBACK, "PYSPARK_PYTHON": sys.executable}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=400, check=False)
    lines = done.stdout.splitlines()
    end = re.fullmatch(rf"demo: (OK|FAILED) stable=(\d+) wrong=0 duplicate=0 max_delay=\S+s X={WITHIN_S}s", lines[-1])
    assert end and int(end[2]) > 0, done.stdout[-2000:] + done.stderr[-2000:]
    cut, back = lines.index("east is cut off"), lines.index("east is back, with the readings that it kept")
    assert any(line.endswith("tentative") for line in lines[cut:]), done.stdout
    assert any(line.endswith("corrected") for line in lines[back:]), done.stdout
