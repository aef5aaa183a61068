"""The policy Q/U/CI/CP: what the next commit should check, as thresholds over versions.

A plan is made after each commit and obeyed by the next one. How many tuples that next batch will bring is not
known yet, so a plan is a staircase: "with at most this many, it is enough to check up to there".
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate

from spark_cec.checkpoint.footprints import Footprints
from spark_cec.settings import Settings

MAX_STEPS = 48
"""The most steps of a staircase in a plan; coarser steps only check a little more than needed."""

REPLAY_MARGIN = 4
"""Batches between D and the oldest one that Spark's offset log still has, for a crash in the middle of things."""

FALLBACK_SHARE = 4
"""Of the batches that Spark's offset log has, D leaves one in so many alone: an older version's D is then there, too.

A lost frame of so many versions back costs a longer replay (`recovery.fallback`), and not the state.
"""


@dataclass(frozen=True, slots=True)
class Step:
    """`cost` is what stays uncovered if windows before version `before` are checked.

    In a staircase for the extent it counts one record for each of the `windows` that are written again; the shim,
    which knows how many rows a window has, adds the others.
    """

    before: int
    cost: int
    windows: int = field(default=0, compare=False)


@dataclass(frozen=True, slots=True)
class Plan:
    """What the commit that makes `version` + 1 should check.

    `replay_steps`: check the dirty windows first dirtied before `before`; the replay is then `cost` tuples plus those
    of the batch itself. `extent_steps`: write again the windows with footprints before `before`; the extent is then
    `cost` records plus those of the commit itself. `forced_before`: dirty windows that must be checked whatever the
    time budget says, because Spark's offset log will forget the batches that they need. `rewrite_windows`: so many
    windows, oldest footprint first, dirty or not, must be written again whatever the budget says, so that no footprint
    grows older than `Settings.footprint_age`. `share`: CI/CP, `floor_ms`: CI. `worth_bound`: what it is worth to bring
    the replay down to whatever CI/CP says (`checkpoint.effort`), in tuples; None: nothing.
    Q is `extent_records`, or `extent_per_window` times the open windows after the commit.
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


def _thin(versions: Sequence[int]) -> list[int]:
    """At most `MAX_STEPS` of the ascending versions, the first and the last one always among them.

    Without the first, which asks for nothing, the oldest would be written again whatever the bounds say.
    """
    if len(versions) <= MAX_STEPS:
        return list(versions)
    stride = -(-len(versions) // (MAX_STEPS - 1))
    return sorted({versions[0], *versions[stride - 1 :: stride], versions[-1]})


def _since(counts: Mapping[int, int], befores: Sequence[int], *, inclusive: bool) -> list[int]:
    """For each of the ascending `befores`, the sum of the counts of versions after it, or from it on."""
    versions = sorted(counts)
    suffix = [0, *accumulate(counts[version] for version in reversed(versions))]
    find = bisect_left if inclusive else bisect_right
    return [suffix[len(versions) - find(versions, before)] for before in befores]


def _replay_steps(ledger: Footprints) -> tuple[Step, ...]:
    befores = _thin(range(ledger.dirty_from, ledger.version + 2))
    return tuple(map(Step, befores, _since(ledger.inputs, befores, inclusive=False)))


def _extent_steps(ledger: Footprints) -> tuple[Step, ...]:
    if not ledger.live:
        return ()
    befores = _thin([*sorted(ledger.live), ledger.version + 1])
    kept = _since(ledger.records, befores, inclusive=True)
    staying = _since(ledger.live, befores, inclusive=True)
    open_windows = ledger.open_windows
    return tuple(
        Step(before, k + open_windows - s, open_windows - s)
        for before, k, s in zip(befores, kept, staying, strict=True)
    )


def _due_for_age(ledger: Footprints, most_versions: int) -> int:
    """How many of the oldest windows the next commit must write, so that no footprint lies over `most_versions` back.

    What was opened together grows old together: from half of that age on it is written in equal parts, so that no
    commit has to write it all.
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

    `retained_batches` is how many batches Spark's offset log keeps (`spark.sql.streaming.minBatchesToRetain`).
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
        rewrite_windows=_due_for_age(ledger, settings.footprint_age),
        worth_bound=worth_bound,
        replay_steps=_replay_steps(ledger),
        extent_steps=_extent_steps(ledger),
    )
