"""The number of open windows that the bench of an input that is away waits for, by counting."""

from __future__ import annotations

import pytest

from spark_cec_lab.bench.pipelines.availability_job import AwaySpec, Shape


def count_open(shape: Shape, now_s: int) -> int:
    """Open windows that have a row: each of two inputs counts up from 0, at half of the rate."""
    length_s, rate = 100 * shape.slide_s, shape.rows_per_s // 2
    newest = {number % shape.keys: number // rate for number in range(now_s * rate)}
    found = 0
    for last_s in newest.values():
        begins = range(0, last_s + 1, shape.slide_s)
        found += sum(begin + length_s > now_s for begin in begins)  # one that ends now is closed
    return found


@pytest.mark.parametrize("shape", [Shape.large(20_000), Shape.large(100_000), Shape.busy(10_000)])
@pytest.mark.parametrize("now_s", [1_500, 1_505, 1_509])
def test_enough_windows_open_and_hardly_more(shape: Shape, now_s: int) -> None:
    assert shape.enough <= count_open(shape, now_s) <= shape.windows


def test_a_spec_is_told_whole() -> None:
    spec = AwaySpec("within", "/run", "cec.jar", "2g", Shape.large(1_000_000))
    assert AwaySpec.from_json(spec.to_json()) == spec
    assert spec.shape == Shape(10_000, 10, 200) and spec.shape.enough == 900_000
