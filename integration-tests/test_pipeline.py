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
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from cec_it.boundaries import Boundaries
from cec_it.cluster import AGENT, EXECUTOR, command_of
from cec_it.pipelines import CASES, Rows, fail_once, read_board
from spark_cec.adapters.fsspec_storage import open_storage
from spark_cec.availability.epochs import newest_epoch
from testbed.processes import Child

ROOT = Path(__file__).resolve().parents[1]
LIFE_S = 240.0
ENVIRONMENT = {
    "PYTHONPATH": os.pathsep.join(str(ROOT / each) for each in ("python", "integration-tests", "support")),
    "PYSPARK_PYTHON": sys.executable,
}
SEED = int(os.environ.get("SEED", "20261123"))

ROUNDS = int(os.environ.get("CEC_ROUNDS", "1"))
"""Rounds of kills in the long tests. A round has its own seed."""



def rows_of(out: Path) -> Rows:
    """What the sink's files hold that its log names, if it has one, and how often each row is there."""
    files = _committed(out) if (out / "_spark_metadata").exists() else sorted(out.glob("*.parquet"))
    named = pq.ParquetDataset([str(path) for path in files]).read() if files else None
    if named is None:
        return Counter()
    return Counter(tuple(tuple(v) if isinstance(v, list) else v for v in row.values()) for row in named.to_pylist())


def _committed(out: Path) -> list[Path]:
    lines = [line for log in sorted((out / "_spark_metadata").iterdir()) if log.name.isdigit()
             for line in log.read_text().splitlines()[1:]]  # fmt: skip
    return [Path(json.loads(line)["path"].removeprefix("file:")) for line in lines]


@dataclass(slots=True)
class Waits:
    """Flows may keep the share `fill` of the cores busy in a recovery: which have waited, and what ran meanwhile."""

    fill: float
    waited: set[str] = field(default_factory=set)
    back: bool = False

    def note(self, told: dict[str, Any]) -> None:
        """Takes a status in."""
        now = {flow["name"] for flow in told["flows"] if flow["state"] == "waiting"}
        self.waited |= now
        recovers = told["capacity"] is not None and told["capacity"]["recovering_s"] is not None
        self.back = bool(self.waited) and not recovers


When = Callable[[dict[str, Any]], bool]
"""Of a status as JSON: whether now is the moment for a kill."""


FEWEST = 20
"""A life has more batches: its source reads a file in each. A quick machine makes few more of the flows behind it."""


def has_batches(count: int) -> When:
    """All flows together have so many batches."""
    return lambda told: sum(flow["batch"] + 1 for flow in told["flows"] if flow["batch"] is not None) >= count


def answers_without(told: dict[str, Any]) -> bool:
    """Whether a flow answers tentatively, without an input that is away."""
    return any(flow["epoch"] is not None and flow["absent"] for flow in told["flows"])


def corrects(told: dict[str, Any]) -> bool:
    """Whether a flow corrects its tentative answers, because the input is back."""
    return any(flow["epoch"] is not None and not flow["absent"] for flow in told["flows"])


def kill_some(what: str, child: Child, root: Path, chance: random.Random) -> None:
    """`what`: an executor, all of them but one, the agent of a JVM, or the name of a flow, which fails."""
    if what in ("executor", "executors", "agent"):
        program = AGENT if what == "agent" else EXECUTOR
        found = [pid for pid in child.members() if program in command_of(pid)]
        for pid in found[:-1] if what == "executors" else [chance.choice(found)]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
    else:
        fail_once(root, what)


def live(
    case: str, root: Path, master: str, kill: str | None, when: When, waits: Waits | None = None,
    how: tuple[str, str] = ("cec", "checkpoint"), chance: random.Random | None = None,
    boundaries: Boundaries | None = None,
) -> bool:  # fmt: skip
    """One life of the driver; whether it came to its end, after its kill if there is one.

    `how` it is checkpointed: the protocol, and when rows leave. `chance` chooses among processes of one kind.
    `boundaries` look at each status.
    """
    CASES[case].go_on(root / "in")
    command = [sys.executable, "-m", "cec_it.pipeline_driver", case, str(root), master]
    child = Child([*command, str(waits.fill if waits else 0.9), *how], root / "driver.log", ENVIRONMENT)
    deadline = time.monotonic() + LIFE_S
    try:
        while (event := child.next_event(LIFE_S)) is not None:
            assert time.monotonic() < deadline, f"no end after {LIFE_S:.0f} s: {event[1]}"
            told = event[1]
            if "done" in told:
                assert told["done"], json.dumps(told) + (root / "driver.log").read_text()[-3000:]
                return True
            if waits:
                waits.note(told)
            if boundaries:
                boundaries.look()
            if kill is not None and when(told):
                if kill == "driver":
                    child.kill()
                    return False
                kill_some(kill, child, root, chance or random.Random(SEED))
                kill = None
        raise AssertionError(f"the driver ended without a word: {(root / 'driver.log').read_text()[-3000:]}")
    finally:
        child.kill()


def round_of_kills(
    case: str, root: Path, seed: int, lives: int, executors: bool, how: tuple[str, str] = ("cec", "checkpoint")
) -> None:
    """Feeds a pipeline, kills it again and again, and compares what came out with what must."""
    chance = random.Random(seed)
    CASES[case].feed(root / "in", seed)
    master = "local-cluster[2,1,1024]" if executors else "local[2]"
    touchy = {"diamond": "even", "chain": "named"}.get(case)
    kinds = ["driver", *(["executor"] if executors else []), *([touchy] if touchy else [])]
    boundaries = Boundaries([root / "home"]) if case in BY_BUCKETS else None
    first = has_batches(chance.randrange(3, FEWEST))
    assert not live(case, root, master, "driver", first, how=how, boundaries=boundaries), "it was killed on its way"
    for _ in range(lives - 1):
        kind, moment = chance.choice(kinds), has_batches(chance.randrange(3, FEWEST))
        if live(case, root, master, kind, moment, how=how, chance=chance, boundaries=boundaries):
            break
    else:
        assert live(case, root, master, None, has_batches(0), how=how, boundaries=boundaries)
    found, expected = rows_of(root / "out"), CASES[case].expected(root / "in")
    if how[1] == "at-once":  # rows that were taken back come again
        assert found.keys() == expected.keys(), f"SEED={seed} {root}"
    else:
        assert found == expected, f"SEED={seed} {root}"
    if boundaries is not None:
        boundaries.check()
    for flow in ANSWERS_WITHOUT.get(case, ()):
        assert read_board(root)[0] == expected, f"SEED={seed} {root}"
        assert newest_epoch(open_storage(f"{root}/home/flows/{flow}")) is not None, "an input was away"


ANSWERS_WITHOUT = {"away": ("short",), "corrected": ("short",), "away-chain": ("short", "long")}
"""The flows that answer without an input, by the case. Their sink `board` shows tentative rows, too."""

BY_BUCKETS = frozenset({"buckets", *ANSWERS_WITHOUT})
"""The cases whose channels have boundaries, because flows read them by buckets."""


# The chain is that of the next test; all of them are in the long one.
@pytest.mark.parametrize("case", ["diamond", "buckets", "away", "closure"])
def test_a_killed_pipeline_is_exact(case: str, tmp_path: Path) -> None:
    round_of_kills(case, tmp_path, SEED, lives=2, executors=False)


@pytest.mark.parametrize("case", ["chain", "buckets", "away", "away-chain"])
def test_executors_are_lost_under_a_pipeline(case: str, tmp_path: Path) -> None:
    round_of_kills(case, tmp_path, SEED + 1, lives=2, executors=True)


@pytest.mark.parametrize("case", ["away", pytest.param("corrected", marks=pytest.mark.long)])
@pytest.mark.parametrize(("kill", "master"), [
    ("agent", "local[2]"),
    pytest.param("driver", "local[2]", marks=pytest.mark.long),
    pytest.param("agent", "local-cluster[2,1,1024]", marks=pytest.mark.long),
    pytest.param("executor", "local-cluster[2,1,1024]", marks=pytest.mark.long),
])  # fmt: skip
def test_a_process_dies_while_a_flow_answers_without_an_input_or_corrects(
    kill: str, master: str, case: str, tmp_path: Path
) -> None:
    """On a cluster each executor has an agent of its own. While an input is away a driver dies twice."""
    CASES[case].feed(tmp_path / "in", SEED)
    came, is_due = [], corrects if case == "corrected" else answers_without

    def is_now(told: dict[str, Any]) -> bool:
        came.extend([told] if is_due(told) else [])
        return is_due(told)

    for life in range(2 if (kill, case) == ("driver", "away") else 1):
        live(case, tmp_path, master, kill, is_now)
        assert len(came) == life + 1, "the moment came"
    if kill == "driver":
        assert live(case, tmp_path, master, None, has_batches(0))
    expected = CASES[case].expected(tmp_path / "in")
    assert rows_of(tmp_path / "out") == expected and read_board(tmp_path)[0] == expected


def test_flows_wait_for_executors_and_every_row_is_there(tmp_path: Path) -> None:
    """Two of three are lost at once; flows are let go as the cluster puts others in their place."""
    case, waits = CASES["diamond"], Waits(fill=0.01)
    case.feed(tmp_path / "in", SEED)
    assert live("diamond", tmp_path, "local-cluster[3,1,1024]", "executors", has_batches(12), waits)
    assert waits.waited and waits.back
    assert rows_of(tmp_path / "out") == case.expected(tmp_path / "in")


@pytest.mark.long
@pytest.mark.parametrize("seed", range(SEED, SEED + ROUNDS))
@pytest.mark.parametrize("case", CASES)
def test_a_killed_pipeline_is_exact_in_many_rounds(case: str, seed: int, tmp_path: Path) -> None:
    round_of_kills(case, tmp_path, seed, lives=4, executors=(seed + list(CASES).index(case)) % 2 == 1)


PROTOCOLS = [
    ("diamond", "coordinated", "checkpoint"), ("closure", "communication-induced", "checkpoint"),
    ("chain", "uncoordinated", "at-once"), ("reachability", "bcs", "checkpoint"), ("chain", "coordinated", "at-once"),
    ("chain", "uncoordinated", "checkpoint"), ("diamond", "none", "at-once"),
]  # fmt: skip


# All of them are in the long test.
@pytest.mark.parametrize(("case", "protocol", "release"), PROTOCOLS[:2])
def test_protocols_under_kills(case: str, protocol: str, release: str, tmp_path: Path) -> None:
    round_of_kills(case, tmp_path, SEED, lives=2, executors=False, how=(protocol, release))


@pytest.mark.long
@pytest.mark.parametrize("seed", range(SEED, SEED + ROUNDS))
@pytest.mark.parametrize(("case", "protocol", "release"), PROTOCOLS)
def test_protocols_under_kills_in_many_rounds(
    case: str, protocol: str, release: str, seed: int, tmp_path: Path
) -> None:
    loses_executors = (seed + PROTOCOLS.index((case, protocol, release))) % 2 == 1
    round_of_kills(case, tmp_path, seed, lives=4, executors=loses_executors, how=(protocol, release))
