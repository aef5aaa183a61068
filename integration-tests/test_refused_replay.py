"""A refused replay is refused at each start, however the run before ended; the query as it was goes on exactly."""

from __future__ import annotations

import os
import random
import sys
from pathlib import Path
from typing import Any

import pytest

from cec_it import changed_query
from testbed.processes import Child

HERE = Path(__file__).resolve().parent
SEED = int(os.environ.get("CEC_TEST_SEED", "77"))
FILES = 4
WITHIN_S = 180.0
MASTERS = [
    pytest.param("local[2]", id="one process"),
    pytest.param("local-cluster[2,2,700]", id="two executors", marks=pytest.mark.long),
]


def live(root: Path, master: str, factor: int, files: int, end: str) -> Any:
    """A life to its end; what it printed. All its processes are gone then."""
    paths = (HERE.parent / "python", HERE, HERE.parent / "support")
    environment = {
        "PYTHONPATH": os.pathsep.join(str(path) for path in paths),
        "PYSPARK_PYTHON": sys.executable,
        "TMPDIR": str(root),
    }
    command = [sys.executable, "-m", "cec_it.changed_query", str(root), master, str(factor), str(files), end]
    child = Child(command, root / "stderr.log", environment)
    try:
        event = child.next_event(WITHIN_S)
        if end != "kill":
            child.exit_code(WITHIN_S)
    finally:
        child.kill()
    assert event is not None, (root / "stderr.log").read_text()[-4000:]
    return event[1]


@pytest.mark.parametrize("master", MASTERS)
def test_each_start_is_refused_until_the_query_is_what_it_was(master: str, tmp_path: Path) -> None:
    dice = random.Random(SEED)
    first = live(tmp_path, master, 1, FILES - 1, "kill")
    assert rows(first) == changed_query.expected(FILES - 1)
    for end in dice.sample(["stop", "exit", "kill", "stop"], k=3):
        found = live(tmp_path, master, 2, FILES, end)
        assert "differs from what was committed" in found.get("refused", ""), f"seed {SEED}, {end}: {found}"
    honest = live(tmp_path, master, 1, FILES, "kill")
    assert rows(honest).items() <= changed_query.expected(FILES).items(), f"seed {SEED}"
    assert rows(honest), f"seed {SEED}"
    later = live(tmp_path, master, 1, FILES + 1, "stop")
    assert rows(later).items() <= changed_query.expected(FILES + 1).items(), f"seed {SEED}"


def rows(found: Any) -> dict[int, tuple[int, float]]:
    return {int(key): (total, most) for key, (total, most) in found["ran"].items()}
