"""How a running query keeps its bounds, from the frame headers of its log; for Spark's user interface.

The facts go in, and the sums come out; nothing here reads a file.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from spark_cec.log.meta import CommitMeta
from spark_cec.settings import Settings

_AGES = (0, 1, 2, 5, 10, 20, 50, 100, 200, 500, 1_000, 10_000)
"""Where the classes of ages begin, in batches."""


@dataclass(frozen=True, slots=True)
class OperatorStanding:
    """The stores of one kind of one operator.

    `extent` is q and `replay` is u, over all partitions. `extent_share` and `replay_share` are those of the partition
    that is nearest to its bound. Bounds and shares are None if the settings fix none.
    """

    operator: int
    store: str
    partitions: int
    open_windows: int
    dirty_windows: int
    extent: int
    extent_bound: int | None
    extent_share: float | None
    replay: int
    replay_bound: int | None
    replay_share: float | None


@dataclass(frozen=True, slots=True)
class FootprintAges:
    """Open windows whose newest record is `first` to `last` batches old; `last` is None without an end."""

    first: int
    last: int | None
    windows: int


def sum_operators(heads: Iterable[CommitMeta], settings: Settings) -> tuple[OperatorStanding, ...]:
    """A standing for each operator and kind of store. `heads`: the newest committed frame of each store."""
    groups: dict[tuple[int, str], list[CommitMeta]] = {}
    for head in heads:
        groups.setdefault((head.store.operator, head.store.name), []).append(head)
    return tuple(_sum_operator(*key, members, settings) for key, members in sorted(groups.items()))


def _sum_operator(operator: int, store: str, heads: Sequence[CommitMeta], settings: Settings) -> OperatorStanding:
    # Under a recovery target the writer changes the bounds with its measurements.
    fixed = settings.recovery_target_ms is None
    extents = [int(settings.extent_bound.limit(head.rows or head.open_windows)) for head in heads] if fixed else []
    replays = [settings.replay_bound for _ in heads] if fixed else []
    return OperatorStanding(
        operator=operator,
        store=store,
        partitions=len(heads),
        open_windows=sum(head.open_windows for head in heads),
        dirty_windows=sum(head.dirty_windows for head in heads),
        extent=sum(head.extent for head in heads),
        extent_bound=sum(extents) if fixed else None,
        extent_share=_find_largest_share([head.extent for head in heads], extents),
        replay=sum(head.replay for head in heads),
        replay_bound=sum(replays) if fixed else None,
        replay_share=_find_largest_share([head.replay for head in heads], replays),
    )


def _find_largest_share(values: Sequence[int], bounds: Sequence[int]) -> float | None:
    return max((value / bound for value, bound in zip(values, bounds, strict=False) if bound), default=None)


def group_ages(live: Mapping[int, int], newest: int) -> tuple[FootprintAges, ...]:
    """The open windows of a store by the age of their newest records, youngest first.

    `live`: by version, the windows whose newest record is of that version. `newest`: the store's version. Classes
    without a window are left out.
    """
    counts = [0] * len(_AGES)
    for version, windows in live.items():
        age = max(newest - version, 0)
        counts[max(place for place, first in enumerate(_AGES) if first <= age)] += windows
    ends = [first - 1 for first in _AGES[1:]]
    return tuple(
        FootprintAges(first, last, windows)
        for first, last, windows in zip(_AGES, [*ends, None], counts, strict=True)
        if windows
    )
