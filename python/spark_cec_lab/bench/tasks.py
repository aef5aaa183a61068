"""What `cec bench` measures, and the runs of it."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import Enum
from pathlib import Path
from typing import Any

from spark_cec.session import jar_path
from spark_cec_lab.bench.bound import WORKLOAD as BOUND_WORKLOAD
from spark_cec_lab.bench.empty_commits import empty_commits
from spark_cec_lab.bench.flink import flink
from spark_cec_lab.bench.hashmap import build_hashmap
from spark_cec_lab.bench.job import JobSpec
from spark_cec_lab.bench.measure import Measured, Say, Schedule, after, pace, recovery, steady
from spark_cec_lab.bench.providers import FLINK, PEERS, Provider, in_turn
from spark_cec_lab.bench.report import Report
from spark_cec_lab.bench.storage import PROVIDERS as STORAGE_PROVIDERS
from spark_cec_lab.bench.storage import WORKLOAD as STORAGE_WORKLOAD
from spark_cec_lab.bench.ui import WORKLOAD as UI_WORKLOAD
from spark_cec_lab.bench.workloads import DEFAULTS, MANY_STORES, Shape, Workload


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
    FLINK = "flink"
    FAILOVER = "failover"
    CHAIN = "chain"
    UNION = "union"
    AVAILABILITY = "availability"
    NEXMARK = "nexmark"
    PROTOCOLS = "protocols"
    STORAGE = "storage"
    UI = "ui"

    @property
    def workload(self) -> Workload:
        """The task at the size that docs/benchmarks.md shows."""
        if self is Task.STORES:
            return MANY_STORES
        if self is Task.BOUND:
            return BOUND_WORKLOAD
        if self is Task.STORAGE:
            return STORAGE_WORKLOAD
        if self is Task.UI:
            return UI_WORKLOAD
        return DEFAULTS[Shape(self.value) if self.value in {shape.value for shape in Shape} else Shape.UNIFORM]

    @property
    def providers(self) -> tuple[Provider, ...]:
        """Those that it is run with where none is named."""
        if self is Task.PACE:
            return (Provider.CEC,)
        peers = (Provider.CEC, Provider.HASHMAP, *FLINK) if self is Task.FLINK else PEERS
        return tuple(each for each in peers if self.can_measure(each))

    def can_measure(self, provider: Provider) -> bool:
        """Whether it says anything of that one. Some have providers of their own."""
        pipelines = (Task.FAILOVER, Task.CHAIN, Task.UNION, Task.AVAILABILITY, Task.PROTOCOLS)
        if self in (Task.PAPER, Task.BOUND, Task.UI, *pipelines):
            return False
        if self is Task.STORAGE:
            return provider in STORAGE_PROVIDERS
        if self is Task.AGENT:
            return provider is Provider.CEC
        if self is Task.FLINK:
            # The hash map too: Spark with a store that keeps nothing.
            return provider.is_ours or provider.is_flink or provider is Provider.HASHMAP
        if provider.is_flink:
            return False
        if self is Task.PACE:
            return provider.is_ours or provider in (Provider.STATELESS, Provider.HASHMAP)
        if provider is Provider.STATELESS:
            return False
        # The hash map has no state to come back to, and no stores for joins.
        return self not in (Task.RECOVERY, Task.NEXMARK) or provider is not Provider.HASHMAP

    @property
    def has_values(self) -> bool:
        """Whether its query has a value that can be made longer."""
        return self in (Task.UNIFORM, Task.SLOW, Task.STORES, Task.PACE, Task.RECOVERY)

    def has_sizes_of(self, workload: Workload) -> bool:
        """Whether `workload` has the size that docs/benchmarks.md shows. Only one task fixes the partitions."""
        partitions = self.workload.partitions if self is Task.STORES else workload.partitions
        return replace(self.workload, partitions=partitions, nexmark=workload.nexmark) == workload


@dataclass(frozen=True, slots=True)
class Plan:
    """The whole benchmark: `spec` is every run's, but for the provider and the places of its files.

    `flink_python`: a Python with apache-flink, for those providers.
    """

    task: Task
    spec: JobSpec
    schedule: Schedule
    rounds: int
    providers: tuple[Provider, ...]
    flink_python: str | None = None


def run_all(plan: Plan, work: Path, write: Callable[[dict[str, Any]], None], say: Say) -> None:
    """Run every round, writing a line for each run, then the summary and the verdict. Raises `BenchError`."""
    # All rounds measure this jar, even if the sources change meanwhile.
    ours = str(shutil.copy(jar_path(), work))
    jars = {each: str(build_hashmap(work)) if each is Provider.HASHMAP else ours for each in plan.providers}
    report = Report(plan.task.value, plan.spec.workload, plan.task.has_sizes_of(plan.spec.workload))
    for number in range(plan.rounds):
        for provider in in_turn(plan.providers, number):
            name, before = f"round {number + 1}/{plan.rounds}, {provider.value}: ", os.getloadavg()[0]
            spec = replace(plan.spec, provider=provider, jar=jars[provider])
            measured = _run_one(plan, spec, work / "run", after(name, say))
            write(report.add(provider, number, measured, (before, os.getloadavg()[0])))
    for line in report.closing():
        write(line)


def _run_one(plan: Plan, spec: JobSpec, home: Path, say: Say) -> Measured:
    home.mkdir()
    try:
        placed = replace(spec, checkpoint=str(home / "checkpoint"), scratch=str(home / "scratch"))
        if plan.flink_python and spec.provider.is_flink:
            return flink(placed, plan.schedule, home, say, plan.flink_python)
        measure = {Task.RECOVERY: recovery, Task.PACE: pace, Task.AGENT: empty_commits}.get(plan.task, steady)
        return measure(placed, plan.schedule, home, say)
    finally:
        shutil.rmtree(home)
