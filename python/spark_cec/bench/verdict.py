"""The budgets of the design, section 8, and whether measured ratios hold them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

from spark_cec.bench.providers import Provider
from spark_cec.bench.ratios import Ratio


@dataclass(frozen=True, slots=True)
class Budget:
    """One row of the table: ours over theirs may be at most `must`, and should be at most `aim`.

    `task` is what was run, `measure` a field of its results; `against` None: ours by itself.
    `partitions` 0: any number.
    """

    row: str
    task: str
    measure: str
    against: Provider | None
    must: float
    aim: float
    partitions: int = 0

    def applies(self, task: str, partitions: int) -> bool:
        """Whether a run of `task` with so many partitions measures this row."""
        return self.task in (task, "any") and self.partitions in (partitions, 0)


BUDGETS = (
    Budget("batch time, uniform", "uniform", "batch_ms", Provider.ROCKSDB, 1 / 2.5, 1 / 3.5),
    Budget("batch time, uniform", "uniform", "batch_ms", Provider.HDFS, 1 / 1.8, 1 / 2.3),
    Budget("batch time, uniform", "uniform", "batch_ms", Provider.FLOOR, 1.25, 1.1),
    Budget("bytes written per batch, slow windows", "slow", "bytes_per_batch", Provider.ROCKSDB, 1 / 20, 1 / 50),
    Budget("bytes written per batch, slow windows", "slow", "bytes_per_batch", Provider.HDFS, 1 / 20, 1 / 50),
    Budget("files created per batch, 32 partitions", "any", "files_per_batch", Provider.ROCKSDB, 1 / 8, 1 / 30, 32),
    Budget("start() to the end of the first new batch", "recovery", "recovery_s", Provider.ROCKSDB, 1 / 2, 1 / 5),
    Budget("start() to the end of the first new batch", "recovery", "recovery_s", Provider.HDFS, 1.0, 1 / 2),
    Budget("load, µs for a footprint and core", "recovery", "load_us_per_footprint", None, 2.0, 0.5),
    Budget("batch time, 200 stores", "stores", "batch_ms", Provider.ROCKSDB, 1 / 2, 1 / 5, 200),
    Budget("time per tuple, uniform", "flink", "us_per_tuple", Provider.FLINK_HASHMAP, 1 / 0.9, 1 / 1.2),
    Budget("time per tuple, uniform", "flink", "us_per_tuple", Provider.FLINK_HASHMAP_MINI, 1 / 0.9, 1 / 1.2),
    Budget("time per tuple, uniform", "flink", "us_per_tuple", Provider.FLINK_ROCKSDB, 1 / 3, 1 / 5),
    Budget("time per tuple, uniform", "flink", "us_per_tuple", Provider.FLINK_ROCKSDB_MINI, 1 / 3, 1 / 5),
    Budget("p99 over median of the batch time", "pace", "p99_over_median", None, 2.0, 1.5),
    Budget("a store's commit without records, in the agent, ms", "agent", "empty_commit_ms", None, 1.0, 0.2),
)


@dataclass(frozen=True, slots=True)
class Judged:
    """A budget that was measured; `against` is empty where `ratio` is ours by itself."""

    row: str
    against: str
    ratio: float
    must: float
    must_holds: bool
    aim: float
    aim_holds: bool


def judge(task: str, partitions: int, measured: Callable[[str, Provider | None], Ratio | None]) -> list[Judged]:
    """Every budget that `task` measures. `measured` gives the ratio of a measure against a provider, if any.

    Against None it gives the measure itself, over the rounds.
    """
    judged = []
    for budget in BUDGETS:
        found = measured(budget.measure, budget.against) if budget.applies(task, partitions) else None
        if found is not None:
            must, aim = found.median <= budget.must, found.median <= budget.aim
            against = budget.against.value if budget.against else ""
            judged.append(Judged(budget.row, against, found.median, budget.must, must, budget.aim, aim))
    return judged


def verdict(judged: list[Judged]) -> dict[str, Any]:
    """The judgement as one JSON object; `must` and `aim` are null if no budget was measured."""
    return {
        "must": all(each.must_holds for each in judged) if judged else None,
        "aim": all(each.aim_holds for each in judged) if judged else None,
        "rows": [asdict(each) for each in judged],
    }
