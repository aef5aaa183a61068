"""What it costs to split a query, when nothing fails: a chain of three flows, one query, three joined by Parquet."""

from __future__ import annotations

import shutil
import statistics
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from spark_cec.session import jar_path
from spark_cec_lab.bench.measure import Say, after
from spark_cec_lab.bench.pipelines.chain_job import ChainSpec, Joined
from spark_cec_lab.bench.processes import Child
from spark_cec_lab.bench.providers import in_turn
from spark_cec_lab.bench.ratios import ratio
from spark_cec_lab.bench.report import rounded

_SILENCE_S = 180.0


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


def chain(
    amount: Amount, rounds: int, memory: str, work: Path, write: Callable[[dict[str, Any]], None], say: Say
) -> None:
    """Each way in each round, in turn: latency, then throughput; then the ratios. Raises `BenchError`."""
    jar = str(shutil.copy(jar_path(), work))
    found: list[dict[Joined, dict[str, float]]] = []
    for number in range(rounds):
        found.append({})
        for way in in_turn(tuple(Joined), number):
            tell = after(f"round {number + 1}/{rounds}, {way.value}: ", say)
            spec = ChainSpec(way, str(work / "run"), jar, memory, amount.rows_per_s, amount.batch_rows)
            latency = _latency(spec, amount, tell)
            spec = ChainSpec(way, str(work / "run"), jar, memory, None, amount.batch_rows)
            throughput = _throughput(spec, amount, tell)
            found[-1][way] = {"latency_s": latency, "rows_per_s": throughput}
            write({
                "kind": "run", "task": "chain", "joined": way.value, "round": number + 1,
                "latency_s": round(latency, 3), "rows_per_s": round(throughput),
            })  # fmt: skip
    write(summary(found))


def summary(found: Sequence[Mapping[Joined, Mapping[str, float]]]) -> dict[str, Any]:
    """Medians of each way, and the pipeline's over the others' in each round."""
    line: dict[str, Any] = {"kind": "summary", "task": "chain", "medians": {}, "ratios": {}}
    for way in Joined:
        line["medians"][way.value] = {
            name: round(statistics.median(each[way][name] for each in found), 3) for name in ("latency_s", "rows_per_s")
        }
        if way is Joined.PIPELINE:
            continue
        line["ratios"][way.value] = {}
        for name in ("latency_s", "rows_per_s"):
            ours, theirs = ({i: each[one][name] for i, each in enumerate(found)} for one in (Joined.PIPELINE, way))
            over = ratio(ours, theirs)
            line["ratios"][way.value][name] = over and rounded(asdict(over))
    return line


def _latency(spec: ChainSpec, amount: Amount, say: Say) -> float:
    """Of rows that come at a steady rate: the mean, weighted by rows, in seconds."""
    batches: list[tuple[float, int]] = []
    with _running(spec) as child:
        first_at = None
        for event in child.events(_SILENCE_S):
            first_at = first_at or event["at"]
            if event["at"] - first_at >= amount.settle_s:
                batches.append((event["latency_s"], event["rows"]))
            say(f"latency {event['latency_s']:.2f} s")
            if event["at"] - first_at >= amount.settle_s + amount.steady_s:
                break
    shutil.rmtree(spec.home)
    return sum(latency * rows for latency, rows in batches) / sum(rows for _, rows in batches)


def _throughput(spec: ChainSpec, amount: Amount, say: Say) -> float:
    """Rows a second that leave the chain, where it is given all that it takes."""
    rows, begun = 0, None
    with _running(spec) as child:
        for event in child.events(_SILENCE_S):
            rows += event["rows"]
            say(f"{rows:,} rows")
            if begun is None and rows >= amount.first_rows:
                begun = event["at"], rows
            elif begun and rows >= begun[1] + amount.rows:
                break
    shutil.rmtree(spec.home)
    assert begun is not None
    return float((rows - begun[1]) / (event["at"] - begun[0]))


def _running(spec: ChainSpec) -> Child:
    Path(spec.home).mkdir()
    command = [sys.executable, "-m", "spark_cec_lab.bench.pipelines.chain_job", spec.to_json()]
    return Child(command, Path(spec.home, "job.log"), {"PYSPARK_PYTHON": sys.executable})
