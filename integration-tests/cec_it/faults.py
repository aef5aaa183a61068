"""A query on a standalone cluster and what befalls it: seeded faults, each at a step of a batch or of a recovery."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from cec_it import results
from cec_it.checkpoints import Checkpoint
from cec_it.cluster import EXECUTOR, PATIENCE_S, Cluster, Daemon
from cec_it.crashes import Driver, driver
from cec_it.driver import CEC_SINK, Job, Query, last_batch
from cec_it.local import agent_of_driver, await_end, eventually
from cec_it.results import Batches

LIFE_TIMEOUT_S = 900.0
PHASES = ("planned", "appending", "committed")
_LOOK_EVERY_S, _LOOK_AT_REMOTE_EVERY_S = 0.002, 0.1


@dataclass(frozen=True, slots=True)
class Fault:
    """What happens `delay_s` after the query is so far.

    In a batch: `planned`: the offsets of `batch` are there. `called`: the sink's function is called with the batch, so
    its tasks run now. `read`: the function has read the batch, so its tasks have ended. `appending`: the log has grown
    since the offsets. `committed`: Spark has committed the batch. `called` and `read` need the sink `foreachBatch`.

    In a recovery, whatever the batch: `starting`: the run after the last fault has its number. `replaying`: its replay
    is under way. Either also counts as reached if a further batch is committed, because the query may need no restart.
    """

    kind: str
    batch: int
    phase: str
    delay_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Stand:
    """How far a query was when a fault befell it: its newest batch, and the number of its newest run."""

    committed: int = -1
    run: int = 0


@dataclass(slots=True)
class Life:
    """One run of the query. `committed` is the last batch that was committed before it, `error` what ended it."""

    number: int
    committed: int
    error: str | None = None


@dataclass(slots=True)
class Course:
    """How a job went. `pauses_s`: from each fault to the first batch after those that had been done before it."""

    job: Job
    seed: int
    faults: list[Fault] = field(default_factory=list)
    lives: list[Life] = field(default_factory=list)
    pauses_s: list[float] = field(default_factory=list)
    stand: Stand = Stand()
    """When the last fault befell the query."""

    @property
    def checkpoint(self) -> Checkpoint:
        """That of the query."""
        return Checkpoint(self.job.location(self.query))

    @property
    def query(self) -> Query:
        """The job's only query."""
        return self.job.queries[0]

    @property
    def errors(self) -> list[str]:
        """What its runs failed with."""
        return [life.error for life in self.lives if life.error is not None]

    def reports(self) -> list[dict[str, object]]:
        """The recovery reports, oldest first."""
        return list(self.checkpoint.reports().values())

    def __str__(self) -> str:
        told = [(fault.kind, fault.batch, fault.phase, fault.delay_s) for fault in self.faults]
        return f"seed {self.seed}, faults {told}, {len(self.lives)} lives, logs in {self.job.root}"


@dataclass(frozen=True, slots=True)
class Verdict:
    """What is wrong with the rows that a job wrote: all zero if nothing is."""

    rows: int
    lost: int
    duplicate: int
    wrong: int
    called_again: int
    """Batches that the sink saw although they had been committed before."""

    @property
    def exact(self) -> bool:
        return not (self.lost or self.duplicate or self.wrong or self.called_again)


def draw(seed: int, kinds: Sequence[str], batches: int) -> list[Fault]:
    """One fault of each kind, spread over the batches of a job, each at a random step of a batch."""
    dice = random.Random(seed)
    width = (batches - 2) // max(len(kinds), 1)
    return [
        Fault(kind, 2 + i * width + dice.randrange(max(width - 1, 1)), dice.choice(PHASES))
        for i, kind in enumerate(kinds)
    ]


def run(
    cluster: Cluster, job: Job, faults: Sequence[Fault], seed: int, life_timeout_s: float = LIFE_TIMEOUT_S
) -> Course:
    """Run the job's query to its end through all faults, started again whenever it or its driver is gone.

    Raises `AssertionError` if a life of the driver takes longer, or if it ends by itself before all faults were there.
    """
    course = Course(job, seed)
    dice = random.Random(f"victims of {seed}")
    pending = list(faults)
    life = 0
    while True:
        with driver(replace(job, life=life), "cec_it.supervised") as child:
            killed = _follow(cluster, child, course, pending, dice, life_timeout_s)
        if not killed:
            return course
        life += 1


def judge(course: Course, wanted: Batches, *, by_batch: bool = True) -> Verdict:
    """The rows that the sink recorded against those of an undisturbed run, each batch by itself, or all together.

    Up to the batch with which the query is done: it may have begun another one when it is stopped, here or there. The
    `cec` sink does not say which batch a row is of.
    """
    out, last = course.job.out(course.query), last_batch(course.job)
    wanted = {batch: rows for batch, rows in wanted.items() if batch <= last}
    if course.query.sink == CEC_SINK:
        found = {0: results.left_rows(out)}
    else:
        found = {batch: rows for batch, rows in results.last_recorded(out).items() if batch <= last}
    if course.query.sink == CEC_SINK or not by_batch:
        found, wanted = ({0: list(results.union(each).elements())} for each in (found, wanted))
    all_calls = results.recorded(out)
    lost = duplicate = wrong = 0
    for batch in sorted({*found, *wanted}):
        have, want = Counter(found.get(batch, [])), Counter(wanted.get(batch, []))
        lost += (want - have).total()
        extra = have - want
        duplicate += sum(count for row, count in extra.items() if row in want)
        wrong += sum(count for row, count in extra.items() if row not in want)
    # A batch that was not committed is given to the sink again: with the same rows.
    wrong += sum(len(set(map(tuple, by_life.values()))) - 1 for by_life in all_calls.values())
    called_again = sum(batch <= life.committed for life in course.lives for batch in results.calls_of(out, life.number))
    return Verdict(sum(map(len, wanted.values())), lost, duplicate, wrong, called_again)


def _follow(
    cluster: Cluster, child: Driver, course: Course, pending: list[Fault], dice: random.Random, timeout_s: float
) -> bool:
    """Take in what the driver says and let the faults befall it; whether it was killed by one."""
    deadline = time.monotonic() + timeout_s
    checkpoint = course.checkpoint
    due = _watch(course, pending[0]) if pending else None
    newest_batch, hit_at = -1, None
    while True:
        if time.monotonic() > deadline:
            raise AssertionError(f"the driver has not got there in {timeout_s:.0f} s: {course}; {course.errors}")
        try:
            heard = child.next_event(_look_every_s(course, pending[0]) if due else 0.5)
        except TimeoutError:
            heard = (0.0, {})
        if heard is None:
            break
        at, event = heard
        _take_in(course, event)
        cluster.application = str(event.get("application", cluster.application))
        if event.get("event") == "batch" and int(str(event["batch"])) > newest_batch:
            newest_batch = int(str(event["batch"]))
            if hit_at is not None and newest_batch > hit_at[1]:
                course.pauses_s.append(at - hit_at[0])
                hit_at = None
        if due is not None and due():
            fault = pending.pop(0)
            course.faults.append(fault)
            hit_s, ends_driver = time.monotonic(), fault.kind in KILLS_OF_DRIVER
            if ends_driver:
                KILLS_OF_DRIVER[fault.kind](child)
            else:
                FAULTS[fault.kind](cluster, child, dice)
            course.stand = Stand(checkpoint.committed(), checkpoint.runs())
            hit_at = (hit_s, max(newest_batch, course.stand.committed))
            if ends_driver:
                return True
            due = _watch(course, pending[0]) if pending else None
    code = child.exit_code(30.0)
    assert code == 0, f"the driver has ended with {code}: {course}; {course.errors[-1:]}; see {child.log}"
    assert not pending, f"the query was done before {pending[0]}: {course}"
    return False


def _take_in(course: Course, event: dict[str, object]) -> None:
    if event.get("event") == "starting":
        course.lives.append(Life(int(str(event["life"])), int(str(event["committed"]))))
    elif event.get("event") == "failed":
        course.lives[-1].error = str(event["error"])


def _look_every_s(course: Course, fault: Fault) -> float:
    is_remote = bool(course.job.home) and fault.phase not in ("called", "read")
    return _LOOK_AT_REMOTE_EVERY_S if is_remote else _LOOK_EVERY_S


def _watch(course: Course, fault: Fault) -> Callable[[], bool]:
    """Whether it is time for the fault."""
    reached, since = _reached(course, fault), list[float]()

    def due() -> bool:
        if not since and reached():
            since.append(time.monotonic())
        return bool(since) and time.monotonic() - since[0] >= fault.delay_s

    return due


def _reached(course: Course, fault: Fault) -> Callable[[], bool]:
    """Whether the query is so far as the fault's phase says."""
    checkpoint, before, out = course.checkpoint, course.stand, course.job.out(course.query)
    if fault.phase in ("starting", "replaying"):

        def recovers() -> bool:
            begun = checkpoint.runs() > before.run and (fault.phase == "starting" or checkpoint.is_replaying())
            return begun or checkpoint.committed() > before.committed

        return recovers
    if fault.phase == "called":
        return lambda: any(fault.batch in results.calls_of(out, life.number) for life in course.lives)
    if fault.phase == "read":
        return lambda: fault.batch in results.recorded_batches(out)
    if fault.phase == "committed":
        return lambda: checkpoint.committed() >= fault.batch
    seen: list[int] = []

    def due() -> bool:
        if checkpoint.planned() < fault.batch:
            return False
        if fault.phase == "planned":
            return True
        now = checkpoint.log_bytes()
        if not seen or seen[-1] != now:
            seen.append(now)
        # Had the batch been over before this was first called, the log would grow no more for it.
        return len(seen) > 1 or checkpoint.committed() >= fault.batch

    return due


def _kill_all_but_agent(child: Driver) -> None:
    """The driver dies, and its agent lives: it gives the lease back, and ends by itself."""
    agent = agent_of_driver(child.pid)

    def kill_others() -> None:
        for pid in child.members():
            if pid != agent:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)

    await_end(agent, kill_others)


def _one_of(find: Callable[[], list[int]], dice: random.Random, what: str) -> int:
    return dice.choice(eventually(lambda: sorted(find()) or None, what, PATIENCE_S))


def _signal(pid: int, number: int) -> None:
    os.kill(pid, number)


def _hit_executor(number: int) -> Callable[[Cluster, Driver, random.Random], None]:
    def hit(cluster: Cluster, child: Driver, dice: random.Random) -> None:
        _signal(_one_of(cluster.executors, dice, "an executor"), number)

    return hit


def _hit_agent(cluster: Cluster, child: Driver, dice: random.Random) -> None:
    _signal(_one_of(cluster.agents, dice, "an executor's agent"), signal.SIGKILL)


def _hit_agent_of_driver(cluster: Cluster, child: Driver, dice: random.Random) -> None:
    _signal(agent_of_driver(child.pid), signal.SIGKILL)


def _with_executors(cluster: Cluster) -> list[Daemon]:
    return [worker for worker in cluster.workers if worker.children(EXECUTOR)]


def _hit_worker(cluster: Cluster, child: Driver, dice: random.Random) -> None:
    """The daemon alone dies; its executor learns of it and ends by itself."""
    worker = dice.choice(_with_executors(cluster) or cluster.workers)
    worker.kill()
    cluster.replace(worker)


def _lose_machine(cluster: Cluster, child: Driver, dice: random.Random) -> None:
    worker = dice.choice(_with_executors(cluster) or cluster.workers)
    worker.lose()
    cluster.replace(worker)


def _lose_all_machines(cluster: Cluster, child: Driver, dice: random.Random) -> None:
    for worker in list(cluster.workers):
        worker.lose()
    for worker in list(cluster.workers):
        cluster.replace(worker)


def _decommission(cluster: Cluster, child: Driver, dice: random.Random) -> None:
    """A machine is given back in good order: its executor takes no more tasks and ends by itself."""
    worker = dice.choice(_with_executors(cluster) or cluster.workers)
    worker.signal(signal.SIGPWR)
    cluster.replace(worker)


FAULTS: dict[str, Callable[[Cluster, Driver, random.Random], None]] = {
    "executor": _hit_executor(signal.SIGKILL),
    "executor-term": _hit_executor(signal.SIGTERM),
    "agent": _hit_agent,
    "agent-of-driver": _hit_agent_of_driver,
    "worker": _hit_worker,
    "machine": _lose_machine,
    "all-machines": _lose_all_machines,
    "decommission": _decommission,
}
"""What may happen, beside what ends the driver."""
KILLS_OF_DRIVER: dict[str, Callable[[Driver], object]] = {
    "driver": Driver.kill,
    "driver-without-agent": _kill_all_but_agent,
}
"""What ends the driver: alone, or with its agent."""

