"""What may befall a query on a cluster, by name: faults to survive, and moves of its stores that it must not notice."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from cec_it import log
from cec_it.driver import CEC, LOOKS_AGAIN
from cec_it.faults import FAULTS, Course
from cec_it.supervised import HOLDS, TRIGGER
from spark_cec.log.segment import SegmentName

DECOMMISSION = {"spark.decommission.enabled": "true"}
"""For workers too: without it a worker does not know the signal."""


@dataclass(frozen=True, slots=True)
class Scenario:
    """`kinds` are the faults that it draws from, `conf` what the application is given.

    `may_fail`: whether the query may need a restart; where it may not, `moves` says whether stores must have moved.
    """

    name: str
    kinds: tuple[str, ...] = ()
    conf: Mapping[str, str] = field(default_factory=dict)
    may_fail: bool = True
    moves: bool = False


FAULT_SCENARIOS = tuple(Scenario(kind, (kind,)) for kind in (*(k for k in FAULTS if k != "decommission"), "driver"))
_LOOKS = {LOOKS_AGAIN: "true", "spark.locality.wait": "0s", "spark.sql.shuffle.partitions": "5"}
MOVES = (
    Scenario(
        "more-stores-than-cores",
        conf={"spark.locality.wait": "0s", "spark.sql.shuffle.partitions": "5"},
        may_fail=False,
        moves=True,
    ),
    Scenario("looks-again", conf=_LOOKS, may_fail=False, moves=True),
    Scenario("looks-again-together", conf={**_LOOKS, CEC + "writeAt": "batch"}, may_fail=False, moves=True),
    Scenario("busy-executor", conf={HOLDS: "2-5 7-10", "spark.locality.wait": "3s"}, may_fail=False, moves=True),
    Scenario(
        "busy-executor-no-wait", conf={HOLDS: "2-5 7-10", "spark.locality.wait": "0s"}, may_fail=False, moves=True
    ),
    Scenario(
        "decommission",
        ("decommission",),
        {**DECOMMISSION, "spark.storage.decommission.enabled": "true"},
        may_fail=False,
        moves=True,
    ),
    Scenario(
        "dynamic-allocation",
        conf={
            TRIGGER: "4 seconds",
            "spark.dynamicAllocation.enabled": "true",
            "spark.dynamicAllocation.shuffleTracking.enabled": "true",
            "spark.dynamicAllocation.shuffleTracking.timeout": "1s",
            "spark.dynamicAllocation.executorIdleTimeout": "1s",
            "spark.dynamicAllocation.minExecutors": "0",
            "spark.dynamicAllocation.maxExecutors": "2",
        },
        may_fail=False,
        moves=True,
    ),
)
SCENARIOS = {scenario.name: scenario for scenario in (*FAULT_SCENARIOS, *MOVES)}


def moved(checkpoint: Path) -> int:
    """How often, within one run of the query, a store's next version was written by another executor than its last."""
    writers: dict[tuple[object, int, int], set[str]] = {}
    for entry in log.commits(checkpoint):
        key = (entry.meta.store, entry.meta.generation, entry.meta.version)
        name = SegmentName.parse(Path(entry.location.segment).name)
        assert name is not None, entry.location
        writers.setdefault(key, set()).add(name.writer_id)
    after = {(store, generation, version - 1): names for (store, generation, version), names in writers.items()}
    return sum(key in after and not names & after[key] for key, names in writers.items())


def cause_of(error: str) -> str:
    """The line of an error that names an exception of ours, else its beginning."""
    lines = [line for line in error.splitlines() if "CecException" in line or "is not in the log alone" in line]
    return (lines[0] if lines else error)[:500]


def objection(scenario: Scenario, course: Course) -> str:
    """What speaks against the way that a course went, its rows apart; empty if nothing does."""
    if not scenario.may_fail and course.errors:
        return f"the query failed {len(course.errors)} times: {cause_of(course.errors[0])}"
    if scenario.moves and not moved(course.job.checkpoint(course.query)):
        return "no store has moved, so this proves nothing"
    return ""
