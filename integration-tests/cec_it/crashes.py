"""Running a job with SIGKILLs: when to kill, the killing, and what each life of the driver left behind."""

from __future__ import annotations

import contextlib
import json
import os
import random
import re
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

from cec_it.checkpoints import Checkpoint
from cec_it.driver import Job, Query
from testbed.processes import Child
from testbed.spark_logs import committed_batch, newest

ROOT = Path(__file__).resolve().parents[2]
LIFE_TIMEOUT_S = 240.0
_LOOK_EVERY_S = 0.002
_PHASES = ("planned", "appending", "published", "committed")


@dataclass(frozen=True, slots=True)
class KillPoint:
    """Kill when `query` is so far.

    Phases: `planned`: the offsets of `batch` are there. `appending`: then `growths` further growths of the log were
    seen. `published`: then a further manifest was seen (with the `cec` sink; else as `appending`). `committed`: Spark
    has committed `batch`. `replaying`: the replay of this life is under way; `batch` is not used.
    """

    query: Query
    batch: int
    phase: str
    growths: int = 1


@dataclass(slots=True)
class Life:
    """One life of the driver. `committed`: per query, the last batch that had been committed before it began.

    `recoveries` are the reports that it wrote, `failed` the errors of its queries.
    """

    committed: dict[str, int]
    recoveries: dict[str, list[dict[str, object]]] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)
    killed_at: KillPoint | None = None


@dataclass(slots=True)
class History:
    """All lives of a job."""

    job: Job
    seed: int
    lives: list[Life] = field(default_factory=list)

    @property
    def crashes(self) -> int:
        return sum(life.killed_at is not None for life in self.lives)

    def reports(self, query: Query) -> list[dict[str, object]]:
        """The recovery reports of a query, oldest first."""
        return [report for life in self.lives for report in life.recoveries.get(query.name, [])]

    def replayed(self, query: Query) -> list[int]:
        """How many batches each recovery of a query replayed."""
        return [int(str(report["replayed_batches"])) for report in self.reports(query)]

    def announced(self, query: Query) -> list[int]:
        """How many batches each replay of a query has to run, by the drivers' logs: also one that a kill has ended.

        A life that ends soon after a replay has written no report of it.
        """
        says = re.compile(rf"query '{re.escape(query.name)}' replays batch(?:es (\d+) to)? (\d+) before it goes on")
        logs = (Path(self.job.root) / f"driver-{number}.log" for number in range(len(self.lives)))
        found = (says.findall(log.read_text(errors="replace")) for log in logs)
        return [int(last) - int(first or last) + 1 for each in found for first, last in each]

    def __str__(self) -> str:
        points = [str(life.killed_at) for life in self.lives if life.killed_at]
        return f"seed {self.seed}, killed at {points}, logs in {self.job.root}"


def spread(seed: int, job: Job, kills: int) -> list[KillPoint]:
    """`kills` points over the batches of a job, each at a random step of a random query's batch."""
    dice = random.Random(seed)
    width = (job.batches - 3) // kills
    return [
        KillPoint(
            dice.choice(job.queries),
            3 + i * width + dice.randrange(width),
            dice.choice(_PHASES),
            growths=dice.randint(1, 2),
        )
        for i in range(kills)
    ]


def run_with_kills(
    job: Job,
    points: Sequence[KillPoint],
    seed: int = 0,
    program: str = "cec_it.driver",
    before_last: Callable[[], object] = lambda: None,
) -> History:
    """Run the job, killed at each of the points, then to its end; raises `AssertionError` if it ends too early.

    `before_last` is called before the last life, which nothing disturbs: there may be input that only that one gets.
    """
    history = History(job, seed)
    for number, point in enumerate([*points, None]):
        if point is None:
            before_last()
        life = Life({query.name: committed_batch(job.checkpoint(query)) for query in job.queries})
        history.lives.append(life)
        before = {query.name: set(_report_files(job, query)) for query in job.queries}
        with driver(replace(job, life=number), program) as child:
            if point is not None:
                follow(child, life, _watch(job, point), f"{history}; next {point}")
                child.kill()
                life.killed_at = point
            else:
                follow(child, life, None, str(history))
        for query in job.queries:
            new = [path for path in _report_files(job, query) if path not in before[query.name]]
            life.recoveries[query.name] = [json.loads(path.read_text()) for path in new]
    return history


@contextmanager
def driver(job: Job, program: str = "cec_it.driver", **variables: str) -> Iterator[Driver]:
    """A driver process for one life of a job, which runs that module; killed at the end whatever happens.

    `variables` are put into its environment.
    """
    root = Path(job.root)
    root.mkdir(parents=True, exist_ok=True)
    job_file = root / f"job-{job.life}.json"
    job_file.write_text(job.to_json())
    scratch = root / "scratch"
    scratch.mkdir(exist_ok=True)
    child = Driver(
        [sys.executable, "-m", program, str(job_file)],
        root / f"driver-{job.life}.log",
        {**environment(scratch), **variables},
    )
    try:
        yield child
    finally:
        child.kill()


def environment(scratch: Path) -> Mapping[str, str]:
    """What drivers find in their environment, beside our own."""
    paths = f"{ROOT / 'python'}{os.pathsep}{ROOT / 'integration-tests'}{os.pathsep}{ROOT / 'support'}"
    return {"PYTHONPATH": paths, "TMPDIR": str(scratch), "PYSPARK_PYTHON": sys.executable}


class Driver(Child):
    """A driver process in a process group of its own."""

    def kill(self) -> int:
        """SIGKILL the whole group at one moment (Python, JVM, agent), then whoever has left it."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        return super().kill()

    @property
    def pid(self) -> int:
        return self._process.pid


def follow(child: Driver, life: Life, due: Callable[[], bool] | None, where: str) -> None:
    """Take in the driver's words until `due` answers true, or, without it, until it ends."""
    deadline = time.monotonic() + LIFE_TIMEOUT_S
    while due is None or not due():
        if time.monotonic() > deadline:
            raise AssertionError(f"the driver has not got there in {LIFE_TIMEOUT_S:.0f} s: {where}")
        try:
            heard = child.next_event(_LOOK_EVERY_S if due else LIFE_TIMEOUT_S)
        except TimeoutError:
            continue
        if heard is None:
            break
        event = heard[1]
        if event["event"] == "failed":
            life.failed[str(event["query"])] = str(event["error"])
    else:
        return
    if due is not None:
        raise AssertionError(
            f"the driver ended before it was killed: {where}; {life.failed}; its log ends:\n{_end_of(child.log)}"
        )


def _end_of(log: Path, lines: int = 40) -> str:
    return "\n".join(log.read_text(errors="replace").splitlines()[-lines:])


def log_bytes(checkpoint: Path) -> int:
    """Bytes in all segments of a query's log."""
    return sum(path.stat().st_size for path in (checkpoint / "cec" / "log" / "segments").glob("*"))


def _watch(job: Job, point: KillPoint) -> Callable[[], bool]:
    checkpoint, known = job.checkpoint(point.query), Checkpoint(job.location(point.query))
    if point.phase == "replaying":
        runs = known.runs()
        return lambda: known.runs() > runs and known.is_replaying()
    if point.phase == "committed":
        return lambda: newest(checkpoint / "commits") >= point.batch
    manifests = checkpoint / "cec" / "log" / "manifests"
    by_manifest = point.phase == "published" and point.query.sink == "cec"
    seen: list[int] = []

    def due() -> bool:
        if newest(checkpoint / "offsets") < point.batch or known.is_replaying():
            return False
        if point.phase == "planned":
            return True
        now = len(list(manifests.glob("*"))) if by_manifest else log_bytes(checkpoint)
        if not seen or seen[-1] != now:
            seen.append(now)
        return len(seen) > (1 if by_manifest else point.growths)

    return due


def _report_files(job: Job, query: Query) -> list[Path]:
    return sorted((job.checkpoint(query) / "cec" / "recoveries").glob("*.json"))
