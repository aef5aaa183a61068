"""Without a crash, a query on our store puts out the rows that it puts out on Spark's, batch by batch."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from cec_it import local, same_rows

HERE = Path(__file__).resolve().parent
SEED = int(os.environ.get("CEC_TEST_SEED", "2026"))
MASTERS = [
    pytest.param("local[2]", id="one process"),
    pytest.param("local-cluster[2,1,700]", id="two executors", marks=pytest.mark.long),
]

Found = dict[str, dict[str, dict[str, list[str]]]]


@pytest.fixture(scope="module", params=MASTERS)
def both(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Found, Path]:
    """The rows on each store, by query and batch, and where the checkpoints are."""
    root = tmp_path_factory.mktemp("same-rows")
    same_rows.write_events(root / "events", SEED)
    for file in (root / "events").iterdir():  # Spark reads files in the order of their times
        os.utime(file, (1_600_000_000 + int(file.stem),) * 2)
    paths = (HERE.parent / "python", HERE, HERE.parent / "support")
    run = subprocess.run(
        [sys.executable, "-m", "cec_it.same_rows", str(root), request.param, "spark.executor.memory=700m"],
        stdout=subprocess.PIPE,
        stderr=(root / "stderr.log").open("wb"),
        text=True,
        timeout=600,
        env={
            **os.environ,
            "PYTHONPATH": os.pathsep.join(str(path) for path in paths),
            "PYSPARK_PYTHON": sys.executable,
            "TMPDIR": str(root),
        },
    )
    assert run.returncode == 0, (root / "stderr.log").read_text()[-4000:]
    return json.loads(run.stdout.splitlines()[-1]), root


@pytest.mark.parametrize("name", same_rows.QUERIES)
def test_rows_are_those_of_sparks_store(name: str, both: tuple[Found, Path]) -> None:
    ours, theirs = both[0]["cec"][name], both[0]["rocksdb"][name]
    assert ours.keys() == theirs.keys(), f"seed {SEED}"
    assert len(theirs) >= same_rows.BATCHES and any(theirs.values()), f"seed {SEED}"
    different = [batch for batch in theirs if ours[batch] != theirs[batch]]
    assert not different, f"seed {SEED}: batches {different}"


def test_both_ways_of_committing_are_among_them(both: tuple[Found, Path]) -> None:
    """Else one of them would not be compared."""
    modes = [local.query_json(same_rows.place(both[1], "cec", name))["mode"] for name in same_rows.QUERIES]
    assert {"deferred", "eager"} <= set(modes), modes
