"""The musts and aims of docs/benchmarks.md, and whether measured ratios hold them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

from spark_cec_lab.bench.providers import Provider, Rival
from spark_cec_lab.bench.ratios import Ratio


@dataclass(frozen=True, slots=True)
class Budget:
    """One row of the table: ours over theirs may be at most `must`, and should be at most `aim`.

    `task` is what was run, `measure` a field of its results; `against`: its best setting; None: ours by itself.
    `partitions` 0: any number.
    """

    row: str
    task: str
    measure: str
    against: Rival | None
    must: float
    aim: float
    partitions: int = 0

    def applies(self, task: str, partitions: int) -> bool:
        """Whether a run of `task` with so many partitions measures this row."""
        return self.task in (task, "any") and self.partitions in (partitions, 0)


BUDGETS = (
    Budget("batch time, uniform", "uniform", "batch_ms", Rival.ROCKSDB, 0.30, 0.25),
    Budget("batch time, uniform", "uniform", "batch_ms", Rival.HDFS, 1 / 1.8, 1 / 2.3),
    Budget("batch time, uniform", "uniform", "batch_ms", Rival.HASHMAP, 1.0, 0.85),
    Budget("bytes written per batch, slow windows", "slow", "bytes_per_batch", Rival.ROCKSDB, 1 / 20, 1 / 50),
    Budget("bytes written per batch, slow windows", "slow", "bytes_per_batch", Rival.HDFS, 1 / 20, 1 / 50),
    Budget("files created per batch, 32 partitions", "any", "files_per_batch", Rival.ROCKSDB, 1 / 8, 1 / 30, 32),
    Budget("start() to the end of the first new batch", "recovery", "recovery_s", Rival.ROCKSDB, 1 / 2, 1 / 5),
    Budget("start() to the end of the first new batch", "recovery", "recovery_s", Rival.HDFS, 1.0, 1 / 2),
    Budget("load, µs for a footprint and core", "recovery", "load_us_per_footprint", None, 1.0, 0.5),
    Budget("batch time, 200 stores", "stores", "batch_ms", Rival.ROCKSDB, 1 / 2, 1 / 5, 200),
    Budget("time per tuple, uniform", "flink", "us_per_tuple", Rival.FLINK_HASHMAP, 0.95, 0.8),
    Budget("time per tuple, uniform", "flink", "us_per_tuple", Rival.FLINK_HASHMAP_MINI, 0.95, 0.8),
    Budget("time per tuple, uniform", "flink", "us_per_tuple", Rival.FLINK_ROCKSDB, 0.6, 0.5),
    Budget("time per tuple, uniform", "flink", "us_per_tuple", Rival.FLINK_ROCKSDB_MINI, 0.6, 0.5),
    Budget("p99 over median of the batch time", "pace", "p99_over_median", None, 1.4, 1.2),
    Budget("longest pause for garbage collection", "pace", "longest_pause_ms", Rival.STATELESS, 1.5, 1.1),
    Budget("a store's commit without records, in the agent, ms", "agent", "empty_commit_ms", None, 1.0, 0.2),
)


Measured = Callable[[str, Provider | None], Ratio | None]
"""Gives the ratio of a measure against a provider, if any; against None the measure itself, over the rounds."""


@dataclass(frozen=True, slots=True)
class Judged:
    """A budget that was measured: `against` is the peer that counts, of those that were measured, `best_of`.

    `against` is empty where `ratio` is ours by itself.
    """

    row: str
    against: str
    best_of: tuple[str, ...]
    ratio: float
    must: float
    must_holds: bool
    aim: float
    aim_holds: bool


def ratios_against(rival: Rival, measure: str, measured: Measured) -> dict[str, Ratio]:
    """The ratio against each peer of `rival` that was measured, by its name; the best peer, which counts, is first."""
    found = {peer.value: each for peer in rival.peers if (each := measured(measure, peer)) is not None}
    return dict(sorted(found.items(), key=lambda each: -each[1].median))


def judge(task: str, partitions: int, measured: Measured) -> list[Judged]:
    """Every budget that `task` measures."""
    applying = (budget for budget in BUDGETS if budget.applies(task, partitions))
    return [judged for budget in applying if (judged := _judged(budget, measured)) is not None]


def _judged(budget: Budget, measured: Measured) -> Judged | None:
    if budget.against is not None:
        found = ratios_against(budget.against, budget.measure, measured)
    else:
        alone = measured(budget.measure, None)
        found = {"": alone} if alone is not None else {}
    if not found:
        return None
    against, ratio = next(iter(found.items()))
    must, aim = ratio.median <= budget.must, ratio.median <= budget.aim
    best_of = tuple(found) if against else ()
    return Judged(budget.row, against, best_of, ratio.median, budget.must, must, budget.aim, aim)


def verdict(judged: list[Judged]) -> dict[str, Any]:
    """The judgement as one JSON object; `must` and `aim` are null if no budget was measured."""
    return {
        "must": all(each.must_holds for each in judged) if judged else None,
        "aim": all(each.aim_holds for each in judged) if judged else None,
        "rows": [asdict(each) for each in judged],
    }
