"""The policy Q/U/CI/CP: which windows the next commit should check, as thresholds over versions.

A plan is made after each commit, and the next commit follows it. The input of the next batch is not known yet. So a
plan is a staircase: "with at most this many tuples, check the windows before that version".
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate

from spark_cec.checkpoint.footprints import Footprints
from spark_cec.settings import Settings

MAX_STEPS = 48
"""The most steps of a plan's staircase; with coarser steps a commit checks slightly more than needed."""

REPLAY_MARGIN = 4
"""Batches between D and the oldest batch in Spark's offset log, as a margin for a crash."""

FALLBACK_SHARE = 4
"""D leaves one in this many of the batches in Spark's offset log unused, so that an older version's D is there too.

So a lost frame costs a longer replay (`recovery.fallback`), but the state survives.
"""


@dataclass(frozen=True, slots=True)
class Step:
    """`cost` remains uncovered if the commit checks the windows before version `before`.

    In an extent staircase, `cost` counts one record for each of the rewritten `windows`. The shim knows the rows of
    each window, and adds the others.
    """

    before: int
    cost: int
    windows: int = field(default=0, compare=False)


@dataclass(frozen=True, slots=True)
class Plan:
    """The checks for the commit that makes `version` + 1.

    `replay_steps`: check the dirty windows first dirtied before `before`; the replay is then `cost` tuples plus the
    batch's own. `extent_steps`: rewrite the windows with footprints before `before`; the extent is then `cost` records
    plus the commit's own.

    `forced_before`: the commit must check older dirty windows whatever the time budget says. Otherwise Spark's offset
    log would forget the batches of their replay. `rewrite_windows`: the commit must rewrite this many windows, oldest
    footprint first, dirty or not, whatever the budget says. So no footprint grows older than `Settings.footprint_age`.

    `share` is CI/CP, and `floor_ms` is CI. `worth_bound`: the replay in tuples down to which checks are cheap, whatever
    CI/CP says (`checkpoint.effort`); None without such a bound. Q is `extent_records`, or `extent_per_window` times the
    open windows after the commit.
    """

    version: int
    replay_bound: int
    extent_records: int
    extent_per_window: float
    share: float
    floor_ms: float
    forced_before: int
    rewrite_windows: int
    worth_bound: int | None
    replay_steps: tuple[Step, ...]
    extent_steps: tuple[Step, ...]


def _thin_out(versions: Sequence[int]) -> list[int]:
    """At most `MAX_STEPS` of the ascending versions; the first and the last always stay.

    The first step asks for no check. Without it the commit would rewrite the oldest windows whatever the bounds say.
    """
    if len(versions) <= MAX_STEPS:
        return list(versions)
    stride = -(-len(versions) // (MAX_STEPS - 1))
    return sorted({versions[0], *versions[stride - 1 :: stride], versions[-1]})


def _sum_from(counts: Mapping[int, int], befores: Sequence[int], *, inclusive: bool) -> list[int]:
    """For each of the ascending `befores`, the sum of the counts of later versions; `inclusive` adds equal ones."""
    versions = sorted(counts)
    suffix = [0, *accumulate(counts[version] for version in reversed(versions))]
    find = bisect_left if inclusive else bisect_right
    return [suffix[len(versions) - find(versions, before)] for before in befores]


def _make_replay_steps(ledger: Footprints) -> tuple[Step, ...]:
    befores = _thin_out(range(ledger.dirty_from, ledger.version + 2))
    return tuple(map(Step, befores, _sum_from(ledger.inputs, befores, inclusive=False)))


def _make_extent_steps(ledger: Footprints) -> tuple[Step, ...]:
    if not ledger.live:
        return ()
    befores = _thin_out([*sorted(ledger.live), ledger.version + 1])
    kept = _sum_from(ledger.records, befores, inclusive=True)
    staying = _sum_from(ledger.live, befores, inclusive=True)
    open_windows = ledger.open_windows
    return tuple(
        Step(before, k + open_windows - s, open_windows - s)
        for before, k, s in zip(befores, kept, staying, strict=True)
    )


def _count_aged(ledger: Footprints, most_versions: int) -> int:
    """The number of oldest windows that the next commit must write so that no footprint is over `most_versions` old.

    Windows that open together age together. From half of that age on they are written in equal parts, so that no single
    commit writes all of them.
    """
    half = most_versions // 2
    due = older = 0
    for version in sorted(version for version in ledger.live if ledger.version - version >= half):
        older += ledger.live[version]
        commits_left = max(version + most_versions + 1 - ledger.version, 1)
        due = max(due, -(-older // commits_left))
    return due


def plan_after(ledger: Footprints, settings: Settings, retained_batches: int, worth_bound: int | None = None) -> Plan:
    """The plan for the commit after `ledger.version`.

    `retained_batches` is the number of batches that Spark's offset log keeps
    (`spark.sql.streaming.minBatchesToRetain`).
    """
    return Plan(
        version=ledger.version,
        replay_bound=settings.replay_bound,
        extent_records=settings.extent_bound.records,
        extent_per_window=settings.extent_bound.per_window,
        share=settings.checkpoint_share,
        floor_ms=settings.checkpoint_ms,
        forced_before=ledger.version
        + 1
        - max(retained_batches - REPLAY_MARGIN - retained_batches // FALLBACK_SHARE, 0),
        rewrite_windows=_count_aged(ledger, settings.footprint_age),
        worth_bound=worth_bound,
        replay_steps=_make_replay_steps(ledger),
        extent_steps=_make_extent_steps(ledger),
    )
