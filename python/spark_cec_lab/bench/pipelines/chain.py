"""What flows cost when nothing fails, side by side.

`chain`: a chain of three flows, one query, three queries joined by Parquet. `union`: two flows into one with `within`,
by buckets alone, and as rows come.
"""

from __future__ import annotations

import shutil
import statistics
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from enum import Enum
from functools import partial
from pathlib import Path
from typing import Any

from spark_cec.session import jar_path
from spark_cec_lab.bench.measure import Say, after
from spark_cec_lab.bench.pipelines.chain_job import Joined
from spark_cec_lab.bench.pipelines.union_job import Read
from spark_cec_lab.bench.pipelines.way_job import WaySpec
from spark_cec_lab.bench.processes import Child
from spark_cec_lab.bench.providers import in_turn
from spark_cec_lab.bench.ratios import ratio
from spark_cec_lab.bench.report import rounded

_SILENCE_S = 180.0

_COMPARED: dict[str, tuple[str, str, Enum]] = {
    "chain": ("spark_cec_lab.bench.pipelines.chain_job", "joined", Joined.PIPELINE),
    "union": ("spark_cec_lab.bench.pipelines.union_job", "read", Read.WITHIN),
}
"""By task: its job, how its lines name a way, and our way."""


@dataclass(frozen=True, slots=True)
class Amount:
    """Rows a second for the latency, seconds before it is taken and while it is; for the throughput, rows that a batch
    of the source has, and rows that leave the chain before it is taken and while it is.
    """

    rows_per_s: int = 5_000
    settle_s: float = 30.0
    steady_s: float = 30.0
    batch_rows: int = 100_000
    first_rows: int = 2_000_000
    rows: int = 4_000_000


def compare_ways(
    task: str, amount: Amount, rounds: int, memory: str, work: Path, write: Callable[[dict[str, Any]], None], say: Say
) -> None:
    """Measures each way of a task, `chain` or `union`, in each round: latency, then throughput; then the ratios.

    Raises `BenchError`.
    """
    job, what, ours = _COMPARED[task]
    jar, home = str(shutil.copy(jar_path(), work)), work / "run"

    def start(way: Enum, rows_per_s: int | None) -> Child:
        home.mkdir()
        spec = WaySpec(way.value, str(home), jar, memory, rows_per_s, amount.batch_rows)
        return Child([sys.executable, "-m", job, spec.to_json()], home / "job.log", {"PYSPARK_PYTHON": sys.executable})

    found: list[dict[Enum, dict[str, float]]] = []
    for number in range(rounds):
        found.append({})
        for way in in_turn(tuple(type(ours)), number):
            tell = after(f"round {number + 1}/{rounds}, {way.value}: ", say)
            latency = _latency(partial(start, way, amount.rows_per_s), amount, tell)
            shutil.rmtree(home)
            throughput = _throughput(partial(start, way, None), amount, tell)
            shutil.rmtree(home)
            found[-1][way] = {"latency_s": latency, "rows_per_s": throughput}
            write({
                "kind": "run", "task": task, what: way.value, "round": number + 1,
                "latency_s": round(latency, 3), "rows_per_s": round(throughput),
            })  # fmt: skip
    write(summary(task, ours, found))


def summary(task: str, ours: Enum, found: Sequence[Mapping[Any, Mapping[str, float]]]) -> dict[str, Any]:
    """Medians of each way, and those of `ours` over the others' in each round."""
    line: dict[str, Any] = {"kind": "summary", "task": task, "medians": {}, "ratios": {}}
    for way in type(ours):
        line["medians"][way.value] = {
            name: round(statistics.median(each[way][name] for each in found), 3) for name in ("latency_s", "rows_per_s")
        }
        if way is ours:
            continue
        line["ratios"][way.value] = {}
        for name in ("latency_s", "rows_per_s"):
            mine, theirs = ({i: each[one][name] for i, each in enumerate(found)} for one in (ours, way))
            over = ratio(mine, theirs)
            line["ratios"][way.value][name] = over and rounded(asdict(over))
    return line


def _latency(start: Callable[[], Child], amount: Amount, say: Say) -> float:
    """Of rows that come at a steady rate: the mean, weighted by rows, in seconds."""
    batches: list[tuple[float, int]] = []
    with start() as child:
        first_at = None
        for event in child.events(_SILENCE_S):
            first_at = first_at or event["at"]
            if event["at"] - first_at >= amount.settle_s:
                batches.append((event["latency_s"], event["rows"]))
            say(f"latency {event['latency_s']:.2f} s")
            if event["at"] - first_at >= amount.settle_s + amount.steady_s:
                break
    return sum(latency * rows for latency, rows in batches) / sum(rows for _, rows in batches)


def _throughput(start: Callable[[], Child], amount: Amount, say: Say) -> float:
    """Rows a second that leave the last flow, where it is given all that it takes."""
    rows, begun = 0, None
    with start() as child:
        for event in child.events(_SILENCE_S):
            rows += event["rows"]
            say(f"{rows:,} rows")
            if begun is None and rows >= amount.first_rows:
                begun = event["at"], rows
            elif begun and rows >= begun[1] + amount.rows:
                break
    assert begun is not None
    return float((rows - begun[1]) / (event["at"] - begun[0]))
