"""What a flush has left dirty, by the log."""

from __future__ import annotations

import pytest

from spark_cec.ids import StoreId
from spark_cec.recovery.left_dirty import name_dirty_stores
from tests.recovery.test_plan import FIRST, SECOND, index_of


@pytest.mark.parametrize(
    ("commits", "lines"),
    [
        pytest.param([], [], id="no store"),
        pytest.param([(FIRST, 5, 5, 2), (SECOND, 5, 5, 2)], [], id="all is written"),
        pytest.param(
            [(FIRST, 5, 5, 2), (SECOND, 5, 3, 2)], ["store 1/0/default still needs a replay from batch 3 on"], id="one"
        ),
        pytest.param([(FIRST, 5, 5, 2), (FIRST, 6, 2, 2)], [], id="what is later is not asked for"),
        pytest.param([(FIRST, 4, 4, 2)], ["store 0/0/default has no commit of version 5 in the log"], id="no commit"),
        pytest.param([(FIRST, 4, 4, 1), (SECOND, 5, 5, 2)], [], id="an operator that is gone"),
        pytest.param(
            [(FIRST, 5, 2, 2), (FIRST, 5, 5, 2)],
            ["store 0/0/default still needs a replay from batch 2 on"],
            id="an attempt that is dirty may be loaded",
        ),
    ],
)
def test_stores_that_are_left(commits: list[tuple[StoreId, int, int, int]], lines: list[str]) -> None:
    assert name_dirty_stores(index_of(*commits), version=5, generation=2) == lines
