"""The sums for Spark's user interface: bounds by operator, and windows by the age of their newest record."""

from __future__ import annotations

from dataclasses import replace

import pytest

from spark_cec.ids import NO_CHECKPOINT, StoreId
from spark_cec.log.meta import CommitMeta
from spark_cec.recovery.overview import FootprintAges, group_ages, sum_operators
from spark_cec.settings import PREFIX, Settings, parse_settings

HEAD = CommitMeta(
    StoreId(0, 0), 7, NO_CHECKPOINT, NO_CHECKPOINT, 1, open_windows=10, dirty_from=5, oldest_footprint=2, opened=0,
    checked=0, closed=0, records=0, inputs=0, dirty_windows=3, wall_ms=1, watermark_ms=-1, extent=15, replay=40,
    state_rows=10,
)  # fmt: skip


def settings(**values: str) -> Settings:
    return parse_settings({PREFIX + key: value for key, value in values.items()})


def test_an_operator_has_the_sums_of_its_partitions_and_the_share_of_the_nearest_one() -> None:
    near = replace(HEAD, store=StoreId(0, 1), extent=30, replay=10)
    join = replace(HEAD, store=StoreId(1, 0, "left-keyToNumValues"))
    one, other = sum_operators([near, HEAD, join], settings(Q="2x", U="100"))
    assert (one.operator, one.store, one.partitions) == (0, "default", 2)
    assert (one.open_windows, one.dirty_windows) == (20, 6)
    assert (one.extent, one.extent_bound, one.extent_share) == (45, 40, 1.5)
    assert (one.replay, one.replay_bound, one.replay_share) == (50, 200, 0.4)
    assert (other.operator, other.store, other.partitions) == (1, "left-keyToNumValues", 1)


def test_a_recovery_target_fixes_no_bound() -> None:
    (found,) = sum_operators([HEAD], settings(recoveryTarget="5s"))
    assert (found.extent, found.extent_bound, found.extent_share) == (15, None, None)
    assert (found.replay_bound, found.replay_share) == (None, None)


def test_nothing_is_open() -> None:
    (found,) = sum_operators([replace(HEAD, open_windows=0, state_rows=0, extent=0)], settings(Q="2x"))
    assert found.extent_bound == 0 and found.extent_share is None
    assert sum_operators([], settings()) == ()
    assert group_ages({}, 9) == ()


@pytest.mark.parametrize(
    ("age", "first", "last"), [(0, 0, 0), (1, 1, 1), (4, 2, 4), (5, 5, 9), (999, 500, 999), (10_000, 10_000, None)]
)
def test_ages_fall_into_classes(age: int, first: int, last: int | None) -> None:
    assert group_ages({20_000 - age: 3}, 20_000) == (FootprintAges(first, last, 3),)


def test_ages_of_one_class_add_up_and_a_commit_under_way_is_young() -> None:
    live = {10: 4, 9: 1, 8: 2, 7: 3, 6: 8}
    assert group_ages(live, 9) == (FootprintAges(0, 0, 5), FootprintAges(1, 1, 2), FootprintAges(2, 4, 11))
