"""What the options of `cec bench` mean, and which do not go together: said before an hour of measuring."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from difflib import get_close_matches
from enum import Enum
from pathlib import Path
from typing import TypeVar

import typer

from spark_cec.extras import ExtraMissing, need
from spark_cec_lab.bench.flink import HOW, check_flink
from spark_cec_lab.bench.growth import Growth, parse_growth
from spark_cec_lab.bench.paper import FIGURES
from spark_cec_lab.bench.processes import BenchError
from spark_cec_lab.bench.protocols.compare import PROTOCOLS
from spark_cec_lab.bench.protocols.spec import CYCLIC
from spark_cec_lab.bench.providers import Provider
from spark_cec_lab.bench.tasks import Task
from spark_cec_lab.bench.workloads import Workload
from spark_cec_lab.nexmark.flows import FLOW_QUERIES
from spark_cec_lab.nexmark.queries import QUERIES

BOUND = "bound"
"""The part of `availability` that is simulated alone."""

STATEFUL = tuple(name for name, query in QUERIES.items() if query.is_stateful)
"""The queries of NexMark that say anything of a store."""


def growth_of(grow: str | None) -> Growth | None:
    """`--grow`. `BadParameter` as everywhere here."""
    if grow is None:
        return None
    try:
        return parse_growth(grow)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--grow") from None


def chosen_providers(task: Task, named: list[Provider] | None) -> tuple[Provider, ...]:
    """`--provider`, or the task's own."""
    chosen = tuple(dict.fromkeys(named or task.providers))
    for each in chosen:
        if not task.can_measure(each):
            known = ", ".join(known.value for known in Provider if task.can_measure(known))
            why = f"{task.value} is for {known}" if known else f"{task.value} has providers of its own"
            raise typer.BadParameter(why, param_hint=f"--provider {each.value}")
    return chosen


def workloads_of(task: Task, workload: Workload, growth: Growth | None, queries: list[str] | None) -> list[Workload]:
    """All that is to be measured one after another."""
    grown = list(growth.over(workload)) if growth else [workload]
    if task is not Task.NEXMARK:
        return grown
    return [replace(each, nexmark=name) for name in dict.fromkeys(queries or STATEFUL) for each in grown]


def check_nexmark(task: Task, queries: list[str] | None, keys: int | None, growth: Growth | None) -> None:
    """`--query`, and what has no meaning beside it."""
    if task is Task.PROTOCOLS:
        _known(queries or (), (*FLOW_QUERIES, CYCLIC), "--query")
        return
    if task is not Task.NEXMARK:
        if queries:
            raise typer.BadParameter("for the tasks nexmark and protocols", param_hint="--query")
        return
    if keys or (growth and growth.what == "keys"):
        raise typer.BadParameter("nexmark's queries open as many windows as they do", param_hint="--keys")
    _known(queries or (), tuple(QUERIES), "--query")


def check_protocols(task: Task, quick: bool, protocols: list[str] | None, instances: list[int] | None) -> None:
    """`--quick`, `--protocol` and `--instances`."""
    if task is not Task.PROTOCOLS and (quick or protocols or instances):
        names = "--quick, --from, --protocol, --instances"
        raise typer.BadParameter("for the task protocols", param_hint=names)
    _known(protocols or (), PROTOCOLS, "--protocol")


_P = TypeVar("_P", bound=Enum)


def parse_part(task: Task, part: str | None, own: Task, kind: type[_P]) -> _P | None:
    """`--part`, if it is for the task `own`, of whose parts `kind` has the names."""
    if part is None or task is not own:
        return None
    _known([part], [each.value for each in kind], "--part")
    return kind(part)


def check_scales(task: Task, has_way: bool, has_scale: bool, has_part: bool) -> None:
    """`--way`, `--scale` and `--part`."""
    if task is not Task.FAILOVER and has_way:
        raise typer.BadParameter("for the task failover", param_hint="--way")
    if task not in (Task.FAILOVER, Task.AVAILABILITY) and has_scale:
        raise typer.BadParameter("for the tasks failover and availability", param_hint="--scale")
    if task not in (Task.PROTOCOLS, Task.AVAILABILITY) and has_part:
        raise typer.BadParameter("for the tasks protocols and availability", param_hint="--part")


def check_simulation(task: Task, part: str | None, simulated: Sequence[str], simulates: bool, compares: bool) -> None:
    """`--simulate` and `--against`. `simulated`: the parts that the simulator has."""
    if task is not Task.AVAILABILITY and (simulates or compares):
        raise typer.BadParameter("for the task availability", param_hint="--simulate, --against")
    if compares and not simulates:
        raise typer.BadParameter("for --simulate", param_hint="--against")
    if simulates and part is not None:
        _known([part], simulated, "--part")
    if part == BOUND and not simulates:
        raise typer.BadParameter("bound is for --simulate", param_hint="--part")


def check_outages(
    task: Task, alpha: float | None, at: Sequence[float] | None, simulates: bool, find_unknown: Callable[[], str | None]
) -> None:
    """`--alpha` and `--at`. `find_unknown` names the points that no run has."""
    if (alpha is not None or at) and (task is not Task.AVAILABILITY or simulates):
        why = "for the task availability" + (", without --simulate" if simulates else "")
        raise typer.BadParameter(why, param_hint="--alpha, --at")
    if alpha is not None and not 0 < alpha < 1:
        raise typer.BadParameter(f"{alpha:g}: give a number between 0 and 1", param_hint="--alpha")
    if unknown := find_unknown():
        raise typer.BadParameter(unknown, param_hint="--at")


def check_long(task: Task, long: int | None) -> None:
    """`--long`."""
    if long is not None and task is not Task.STORAGE:
        raise typer.BadParameter("for the task storage", param_hint="--long")


def _known(given: Iterable[str], known: Sequence[str], hint: str) -> None:
    for name in given:
        if name not in known:
            near = get_close_matches(name, known, 1)
            meant = f"did you mean {near[0]}? " if near else ""
            raise typer.BadParameter(f"{name}: {meant}There are {', '.join(known)}", param_hint=hint)


def check_options(
    task: Task, figures: list[int] | None, png: Path | None, growth: Growth | None, value_bytes: int
) -> None:
    """What is for some tasks alone."""
    if task is not Task.PAPER and figures:
        raise typer.BadParameter("for the task paper", param_hint="--figure")
    if task not in (Task.PAPER, Task.FAILOVER, Task.PROTOCOLS, Task.AVAILABILITY) and png and not growth:
        why = "for the tasks paper, failover, protocols and availability, or with --grow"
        raise typer.BadParameter(why, param_hint="--png")
    pipelines = (Task.FAILOVER, Task.CHAIN, Task.UNION, Task.AVAILABILITY, Task.PROTOCOLS)
    own_sizes = (Task.PAPER, Task.BOUND, Task.AGENT, Task.STORAGE, Task.UI, *pipelines)
    if growth and task in own_sizes:
        raise typer.BadParameter(f"{task.value} has sizes of its own", param_hint="--grow")
    if (value_bytes or (growth and growth.what == "value-bytes")) and not task.has_values:
        raise typer.BadParameter(f"{task.value} has values of its own", param_hint="--value-bytes")
    known = {8: "8 (it has 9 with it)", **{each.number: str(each.number) for each in FIGURES if each.number != 8}}
    for number in figures or ():
        if number not in known:
            raise typer.BadParameter(f"{number}: there are {', '.join(sorted(known.values()))}", param_hint="--figure")
    if png:
        try:
            need("cec bench --png", "tune")
        except ExtraMissing as missing:
            raise typer.BadParameter(str(missing), param_hint="--png") from None


def check_flink_of(providers: tuple[Provider, ...], python: str | None) -> str | None:
    """Whether Flink is there, where it is asked for: its version. `BadParameter` if not, or if it is of no use."""
    if not any(each.is_flink for each in providers):
        if python:
            raise typer.BadParameter("for the task flink", param_hint="--flink-python")
        return None
    if not python:
        raise typer.BadParameter(f"Flink wants an environment of its own: {HOW}", param_hint="--flink-python")
    try:
        return check_flink(python)
    except BenchError as error:
        raise typer.BadParameter(str(error), param_hint="--flink-python") from None
