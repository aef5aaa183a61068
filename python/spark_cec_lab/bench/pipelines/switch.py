"""How long a sink is without rows when the replica that runs it is killed, and the other one takes it over."""

from __future__ import annotations

import itertools
import json
import shutil
import statistics
import time
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from spark_cec.errors import CecError
from spark_cec.pipeline.home import PipelineHome
from spark_cec.pipeline.replicas import Replica
from spark_cec.pipeline.status import PipelineStatus, State
from spark_cec.session import jar_path
from spark_cec_lab.bench.measure import Say, after
from spark_cec_lab.bench.pipelines.one_job import spread, start_job
from spark_cec_lab.bench.pipelines.switch_job import KEYS, ROWS_PER_S, SwitchSpec
from spark_cec_lab.bench.processes import BenchError

_JOB = "spark_cec_lab.bench.pipelines.switch_job"
_PATIENCE_S = 240.0
_LOOK_S = 0.02
_SETTLED_S = 10.0
_IN_TIME_MS = 3_000
"""The second replica is in time if its windows are so far behind at most, event time."""


def switches(rounds: int, memory: str, work: Path, write: Callable[[dict[str, Any]], None], say: Say) -> None:
    """Runs the rounds, and writes a line for each and one for all. Raises `BenchError`, also for a wrong row."""
    jar, found = str(shutil.copy(jar_path(), work)), []
    for number in range(rounds):
        home = work / f"switch-{number}"
        (home / "out").mkdir(parents=True)
        done = _run(home, jar, memory, after(f"round {number + 1}/{rounds}, switch: ", say))
        shutil.rmtree(home)
        found.append(done)
        write({"kind": "run", "task": "availability", "part": "switch", "round": number + 1, **done})
    write({
        "kind": "summary", "task": "availability", "part": "switch", "theirs": "40 ms, for a reader that goes on",
        **{each: spread([done[each] for done in found]) for each in ("usual_s", "without_rows_s", "after_kill_s")},
    })  # fmt: skip


def _run(home: Path, jar: str, memory: str, say: Say) -> dict[str, Any]:
    """Both replicas; the one that runs the sink is killed."""
    with ExitStack() as stack:
        children = {}
        for name in "ab":
            scratch = home / f"scratch-{name}"
            scratch.mkdir()
            spec = SwitchSpec(name, str(home), str(scratch), jar, memory)
            children[name] = stack.enter_context(start_job(_JOB, spec.to_json(), home / f"job-{name}.log"))
            if name == "a":
                _wait(lambda: _files(home), "the first rows")
        _wait(lambda: _stands_by(home), "replica b stands by, and is in time")
        say("both are in time")
        time.sleep(_SETTLED_S)
        before = _files(home)
        killed_at = time.time()
        children["a"].kill()
        _wait(lambda: _newest(home) > killed_at, "rows from replica b")
        time.sleep(_SETTLED_S)
        times = sorted(path.stat().st_mtime for path in _files(home))
        first = next(each for each in times if each > killed_at)
        last = max(each for each in times if each <= killed_at)
        _check(home)
        intervals = [later - one for one, later in itertools.pairwise(times) if later <= killed_at]
        return {
            "usual_s": round(statistics.median(intervals[-len(before) // 2 :]), 3),
            "without_rows_s": round(first - last, 3), "after_kill_s": round(first - killed_at, 3),
        }  # fmt: skip


def _files(home: Path) -> list[Path]:
    return sorted((home / "out").glob("*.json"))


def _newest(home: Path) -> float:
    return max(path.stat().st_mtime for path in _files(home))


def _stands_by(home: Path) -> bool:
    one, other = (_status(home, name) for name in "ab")
    if one is None or other is None:
        return False
    behind_ms = (one.flows[1].complete_to_ms or 0) - (other.flows[1].complete_to_ms or 0)
    return other.flows[-1].state is State.STANDBY and behind_ms <= _IN_TIME_MS and bool(other.flows[1].complete_to_ms)


def _status(home: Path, name: str) -> PipelineStatus | None:
    replica = Replica(name, str(home))
    try:
        return PipelineHome(replica.home, replica).status()
    except CecError:  # it has not begun
        return None


def _check(home: Path) -> None:
    """Raises `BenchError` unless each window came once, with all of its rows."""
    counts = Counter(second for path in _files(home) for second, n in json.loads(path.read_text()) if n == _of_a_key())
    total = sum(len(json.loads(path.read_text())) for path in _files(home))
    seconds = range(min(counts), max(counts) + 1)
    if total != KEYS * len(seconds) or any(counts[second] != KEYS for second in seconds):
        raise BenchError(f"{total} windows in {len(seconds)} seconds of {KEYS} keys: some are wrong, or came twice")


def _of_a_key() -> int:
    return ROWS_PER_S // KEYS


def _wait(look: Callable[[], Any], what: str) -> None:
    end = time.monotonic() + _PATIENCE_S
    while not look():
        time.sleep(_LOOK_S)
        if time.monotonic() > end:
            raise BenchError(f"not within {_PATIENCE_S:.0f} s: {what}")
