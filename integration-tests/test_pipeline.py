"""Pipelines under kills: drivers, executors and single flows fail, and every row is there once."""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import sys
import time
from collections import Counter
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from cec_it.cluster import EXECUTOR, command_of
from cec_it.pipelines import CASES, Rows, fail_once
from purchases_demo.processes import Child

ROOT = Path(__file__).resolve().parents[1]
LIFE_S = 240.0
ENVIRONMENT = {
    "PYTHONPATH": os.pathsep.join(str(ROOT / each) for each in ("python", "integration-tests", "examples")),
    "PYSPARK_PYTHON": sys.executable,
}
SEED = int(os.environ.get("SEED", "20261123"))


def rows_of(out: Path) -> Rows:
    """What the sink's files hold that its log names, and how often each row is there."""
    named = pq.ParquetDataset([str(path) for path in _committed(out)]).read() if out.exists() else None
    return Counter(tuple(row.values()) for row in named.to_pylist()) if named is not None else Counter()


def _committed(out: Path) -> list[Path]:
    lines = [line for log in sorted((out / "_spark_metadata").iterdir()) if log.name.isdigit()
             for line in log.read_text().splitlines()[1:]]  # fmt: skip
    return [Path(json.loads(line)["path"].removeprefix("file:")) for line in lines]


def live(case: str, root: Path, master: str, kill: str | None, at: int) -> bool:
    """One life of the driver; whether it came to its end. The kill comes when all flows together have `at` batches."""
    command = [sys.executable, "-m", "cec_it.pipeline_driver", case, str(root), master]
    child = Child(command, root / "driver.log", ENVIRONMENT)
    deadline = time.monotonic() + LIFE_S
    try:
        while (event := child.next_event(LIFE_S)) is not None:
            assert time.monotonic() < deadline, f"no end after {LIFE_S:.0f} s: {event[1]}"
            told = event[1]
            if "done" in told:
                assert told["done"], (told, (root / "driver.log").read_text()[-3000:])
                return True
            batches = sum(flow["batch"] + 1 for flow in told["flows"] if flow["batch"] is not None)  # type: ignore[attr-defined]
            if kill is not None and batches >= at:
                if kill == "driver":
                    child.kill()
                    return False
                if kill == "executor":
                    executors = [pid for pid in child.members() if EXECUTOR in command_of(pid)]
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(executors[at % len(executors)], signal.SIGKILL)
                else:
                    fail_once(root, kill)
                kill = None
        raise AssertionError(f"the driver ended without a word: {(root / 'driver.log').read_text()[-3000:]}")
    finally:
        child.kill()


def round_of_kills(case: str, root: Path, seed: int, lives: int, executors: bool) -> None:
    """Feeds a pipeline, kills it again and again, and compares what came out with what must."""
    chance = random.Random(seed)
    CASES[case].feed(root / "in", seed)
    master = "local-cluster[2,1,1024]" if executors else "local[2]"
    touchy = {"diamond": "even", "chain": "named"}.get(case)
    kinds = ["driver", *(["executor"] if executors else []), *([touchy] if touchy else [])]
    assert not live(case, root, master, "driver", chance.randrange(3, 40)), "it was killed on its way"
    for _ in range(lives - 1):
        if live(case, root, master, chance.choice(kinds), chance.randrange(3, 40)):
            break
    else:
        assert live(case, root, master, None, 0)
    assert rows_of(root / "out") == CASES[case].expected(root / "in"), f"SEED={seed} {root}"


@pytest.mark.parametrize("case", CASES)
def test_a_killed_pipeline_is_exact(case: str, tmp_path: Path) -> None:
    round_of_kills(case, tmp_path, SEED, lives=2, executors=False)


def test_executors_are_lost_under_a_pipeline(tmp_path: Path) -> None:
    round_of_kills("chain", tmp_path, SEED + 1, lives=3, executors=True)


@pytest.mark.long
@pytest.mark.parametrize("seed", range(SEED, SEED + 20))
@pytest.mark.parametrize("case", CASES)
def test_a_killed_pipeline_is_exact_in_many_rounds(case: str, seed: int, tmp_path: Path) -> None:
    round_of_kills(case, tmp_path, seed, lives=4, executors=seed % 2 == 1)
