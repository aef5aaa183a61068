"""Medians and ratios over the rounds."""

from __future__ import annotations

import pytest

from spark_cec_lab.bench.ratios import Ratio, medians, ratio


def test_the_ratio_is_taken_within_each_round() -> None:
    # A slow round of both must not pass for a difference: medians of each side alone would give 20 / 40.
    ours, theirs = {0: 10.0, 1: 20.0, 2: 300.0}, {0: 40.0, 1: 40.0, 2: 600.0}
    assert ratio(ours, theirs) == Ratio(median=0.5, low=0.25, high=0.5)


def test_an_even_number_of_rounds_has_the_middle_between_two() -> None:
    found = ratio({0: 1.0, 1: 2.0}, {0: 4.0, 1: 4.0})
    assert found is not None
    assert found.median == pytest.approx(0.375)


def test_rounds_that_one_side_lacks_do_not_count() -> None:
    assert ratio({0: 1.0, 2: 9.0}, {0: 2.0, 1: 5.0}) == Ratio(0.5, 0.5, 0.5)
    assert ratio({0: 1.0}, {1: 1.0}) is None
    assert ratio({}, {}) is None


def test_nothing_of_ours_is_the_best_ratio_and_nothing_of_theirs_is_none() -> None:
    assert ratio({0: 0.0}, {0: 64.0}) == Ratio(0.0, 0.0, 0.0)
    assert ratio({0: 1.0, 1: 1.0}, {0: 1.0, 1: 0.0}) is None


def test_medians_of_the_samples_that_have_the_name() -> None:
    assert medians([{"a": 1.0, "b": 7.0}, {"a": 5.0}, {"a": 100.0}]) == {"a": 5.0, "b": 7.0}
    assert medians([]) == {}
