"""The command: `cec bench`."""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from enum import Enum
from pathlib import Path
from types import FrameType
from typing import Annotated, Any

import typer

from spark_cec.bench.bound import WORKLOAD as BOUND_WORKLOAD
from spark_cec.bench.bound import run_grid
from spark_cec.bench.empty_commits import empty_commits
from spark_cec.bench.floor import build_floor
from spark_cec.bench.job import JobSpec
from spark_cec.bench.measure import Measured, Say, Schedule, pace, recovery, steady
from spark_cec.bench.paper import FIGURES
from spark_cec.bench.paper_run import Found, Size, run_figures
from spark_cec.bench.processes import BenchError
from spark_cec.bench.providers import PEERS, Provider, in_turn
from spark_cec.bench.report import Report
from spark_cec.bench.workloads import DEFAULTS, MANY_STORES, Shape, Workload
from spark_cec.extras import ExtraMissing, need
from spark_cec.session import jar_path
from spark_cec.toolchain import BuildError

_HELP = """Compare Spark CEC with Spark's own state stores, and with the floor (a bare hash map that keeps nothing
durable), in one run on this machine.

Each round runs every provider once, in a process of its own: it opens all windows, lets the providers settle, then
measures. One JSON line for each run goes to standard output, then a summary with the ratios (ours over theirs: the
median over the rounds, the lowest and the highest), then a verdict by the budgets of the design. How far it is goes to
standard error. The machine should have nothing else to do: `load` in each line shows whether that was so.

\b
uniform   300,000 updates a batch, spread over 2,000,000 windows
slow      300,000 updates a batch on 200,000 windows, 1 in 1000 opens one: bytes written per batch
fast      300,000 tuples a batch, each opens a window, and as many close (deduplication within the watermark)
stores    20,000 updates a batch on 200,000 windows in 200 partitions
pace      uniform for ten minutes: the batch time's 99th percentile over its median, ours alone
recovery  SIGKILL in the middle of a batch of uniform; start() to the end of the first new batch
agent     commits of stores in which nothing happens, in the agent alone, without Spark
bound     q and u against Q and U at every commit, a point where a crash may come: each Q with each U, per round a seed
paper     the experiments of the paper's section IV (figures 5 to 9), its numbers beside ours

\b
In a run's line: batch_ms is the median; cpu_ms (processor time of all processes), gc_ms, bytes_per_batch and
files_per_batch (what the provider writes under the checkpoint; checkpoint_… with Spark's own logs) are means; metrics
are medians of sums over the partitions.

\b
Examples:
  cec bench
  cec bench slow --partitions 32
  cec bench recovery --rounds 1 --provider cec --provider rocksdb
  cec bench uniform --keys 200000 --updates 30000 --json-out uniform.jsonl
  cec bench recovery --keys 400 --updates 100 --provider cec --provider cec-eager --provider cec-lazy
  cec bench paper --figure 6 --rounds 1 --png figures

\b
Exit codes:
  0  it ran, whatever the verdict
  1  a query failed
  2  wrong usage
"""


class Task(str, Enum):
    """What to measure."""

    UNIFORM = "uniform"
    SLOW = "slow"
    FAST = "fast"
    STORES = "stores"
    PACE = "pace"
    RECOVERY = "recovery"
    AGENT = "agent"
    PAPER = "paper"
    BOUND = "bound"

    @property
    def workload(self) -> Workload:
        """What is behind it, as large as the design says."""
        if self is Task.STORES:
            return MANY_STORES
        if self is Task.BOUND:
            return BOUND_WORKLOAD
        return DEFAULTS[Shape(self.value) if self.value in {shape.value for shape in Shape} else Shape.UNIFORM]

    @property
    def providers(self) -> tuple[Provider, ...]:
        """Those that it is run with where none is named."""
        return tuple(each for each in PEERS if self.can_measure(each))

    def can_measure(self, provider: Provider) -> bool:
        """Whether it says anything of that one. Some have providers of their own."""
        if self in (Task.PAPER, Task.BOUND):
            return False
        if self is Task.AGENT:
            return provider is Provider.CEC
        if self is Task.PACE:
            return provider.is_ours
        # The floor has no state to come back to.
        return self is not Task.RECOVERY or provider is not Provider.FLOOR

    def has_sizes_of(self, workload: Workload) -> bool:
        """Whether `workload` is as large as the design says; but for one task the partitions are not fixed there."""
        partitions = self.workload.partitions if self is Task.STORES else workload.partitions
        return replace(self.workload, partitions=partitions) == workload


@dataclass(frozen=True, slots=True)
class Plan:
    """The whole benchmark: `spec` is every run's, but for the provider and the places of its files."""

    task: Task
    spec: JobSpec
    schedule: Schedule
    rounds: int
    providers: tuple[Provider, ...]


OUTPUT = Path("build/bench")

app = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)


@app.command(help=_HELP, context_settings={"help_option_names": ["-h", "--help"]})
def bench(
    task: Annotated[Task, typer.Argument(metavar="[TASK]", help="What to measure: see above.")] = Task.UNIFORM,
    rounds: Annotated[int, typer.Option(min=1, help="Runs of each provider.")] = 3,
    keys: Annotated[int | None, typer.Option(min=1, help="Open windows; default: the design's.")] = None,
    updates: Annotated[int | None, typer.Option(min=1, help="Input tuples a batch; default: the design's.")] = None,
    partitions: Annotated[
        int | None, typer.Option(min=1, help="Partitions of the state; default: 2, or 200 for stores.")
    ] = None,
    warm_up: Annotated[int, typer.Option(min=2, help="Batches after the fill that are not measured.")] = 8,
    batches: Annotated[int, typer.Option(min=1, help="Batches that are measured.")] = 12,
    provider: Annotated[
        list[Provider] | None, typer.Option(help="May be given more than once; default: cec, rocksdb, hdfs, floor.")
    ] = None,
    memory: Annotated[str, typer.Option(help="The JVM's heap.")] = "8g",
    conf: Annotated[list[str] | None, typer.Option(metavar="KEY=VALUE", help="More Spark conf, for all.")] = None,
    java_options: Annotated[str, typer.Option(help="More options for the JVM.")] = "",
    json_out: Annotated[Path | None, typer.Option(metavar="FILE", help="Write the JSON lines there too.")] = None,
    output: Annotated[Path, typer.Option(metavar="DIR", help="For checkpoints; removed at the end.")] = OUTPUT,
    figure: Annotated[
        list[int] | None, typer.Option(help="Of the paper: 5, 6, 7, 8 (with 9); more than once; default: all.")
    ] = None,
    png: Annotated[Path | None, typer.Option(metavar="DIR", help="Draw the paper's figures there.")] = None,
) -> None:
    _check_figures(task, figure, png)
    workload = _sized(task, keys, updates, partitions)
    spec = JobSpec(
        provider=Provider.CEC, workload=workload, checkpoint="", scratch="", jar="", memory=memory,
        java_options=java_options, conf=tuple(_pair(each) for each in conf or ()), last_batch=None,
    )  # fmt: skip
    chosen = tuple(dict.fromkeys(provider or task.providers))
    for each in chosen:
        if not task.can_measure(each):
            known = ", ".join(known.value for known in Provider if task.can_measure(known))
            why = f"{task.value} is for {known}" if known else f"{task.value} has providers of its own"
            raise typer.BadParameter(why, param_hint=f"--provider {each.value}")
    plan = Plan(task, spec, Schedule(workload.fill_batches, warm_up, batches), rounds, chosen)
    signal.signal(signal.SIGTERM, _exit_once)
    try:
        with _lines(json_out) as write, _work_directory(output) as work:
            if task is Task.BOUND:
                run_grid(workload, spec, plan.schedule, rounds, work, write, _say)
            elif task is Task.PAPER:
                size = Size(keys, updates, partitions)
                found = run_figures(
                    figure or [each.number for each in FIGURES], size, spec, warm_up, batches, rounds, work, write, _say
                )
                _draw(found, png)
            else:
                run_all(plan, work, write, _say)
    except (BenchError, BuildError) as error:
        _say(f"error: {error}")
        raise typer.Exit(1) from None


def _check_figures(task: Task, figures: list[int] | None, png: Path | None) -> None:
    """What is for the paper alone, and what would fail after an hour of measuring."""
    if task is not Task.PAPER and (figures or png):
        raise typer.BadParameter("for the task paper", param_hint="--figure" if figures else "--png")
    known = {8: "8 (it has 9 with it)", **{each.number: str(each.number) for each in FIGURES if each.number != 8}}
    for number in figures or ():
        if number not in known:
            raise typer.BadParameter(f"{number}: there are {', '.join(sorted(known.values()))}", param_hint="--figure")
    if png:
        try:
            need("cec bench paper --png", "tune")
        except ExtraMissing as missing:
            raise typer.BadParameter(str(missing), param_hint="--png") from None


def _draw(found: Found, png: Path | None) -> None:
    if png:
        from spark_cec.bench.paper_plots import draw

        for path in draw(found, png):
            _say(f"drawn: {path}")


def _exit_once(number: int, _: FrameType | None) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # a second one must not cut the cleaning up short
    sys.exit(128 + number)


def run_all(plan: Plan, work: Path, write: Callable[[dict[str, Any]], None], say: Say) -> None:
    """Run every round, writing a line for each run, then the summary and the verdict. Raises `BenchError`."""
    # All rounds measure this jar, even if the sources change meanwhile.
    ours = str(shutil.copy(jar_path(), work))
    jars = {each: str(build_floor(work)) if each is Provider.FLOOR else ours for each in plan.providers}
    report = Report(plan.task.value, plan.spec.workload, plan.task.has_sizes_of(plan.spec.workload))
    for number in range(plan.rounds):
        for provider in in_turn(plan.providers, number):
            name, before = f"round {number + 1}/{plan.rounds}, {provider.value}: ", os.getloadavg()[0]
            spec = replace(plan.spec, provider=provider, jar=jars[provider])
            measured = _run_one(plan, spec, work / "run", _after(name, say))
            write(report.add(provider, number, measured, (before, os.getloadavg()[0])))
    for line in report.closing():
        write(line)


def _after(name: str, say: Say) -> Say:
    return lambda text: say(name + text)


def _run_one(plan: Plan, spec: JobSpec, home: Path, say: Say) -> Measured:
    home.mkdir()
    try:
        placed = replace(spec, checkpoint=str(home / "checkpoint"), scratch=str(home / "scratch"))
        measure = {Task.RECOVERY: recovery, Task.PACE: pace, Task.AGENT: empty_commits}.get(plan.task, steady)
        return measure(placed, plan.schedule, home, say)
    finally:
        shutil.rmtree(home)


def _sized(task: Task, keys: int | None, updates: int | None, partitions: int | None) -> Workload:
    whole = task.workload
    return replace(
        whole,
        keys=keys or whole.keys,
        updates=updates or whole.updates,
        partitions=partitions or whole.partitions,
    )


def _pair(text: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not (key and equals):
        raise typer.BadParameter(f"{text!r}: give KEY=VALUE", param_hint="--conf")
    return key, value


@contextmanager
def _work_directory(output: Path) -> Iterator[Path]:
    """A directory of this benchmark's own below `output`, removed at the end."""
    output.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="bench-", dir=output.resolve(), ignore_cleanup_errors=True) as work:
        yield Path(work)


@contextmanager
def _lines(path: Path | None) -> Iterator[Callable[[dict[str, Any]], None]]:
    """Writes JSON lines to standard output, and to the file at `path`."""
    file = path.open("w") if path else None

    def write(line: dict[str, Any]) -> None:
        text = json.dumps(line)
        print(text, flush=True)
        if file:
            print(text, file=file, flush=True)

    try:
        yield write
    finally:
        if file:
            file.close()


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
