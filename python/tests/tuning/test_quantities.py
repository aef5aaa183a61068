"""Durations and rates as they are written, and as they should not be."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_cec.tuning.quantities import QuantityError, format_duration, format_rate, parse_duration, parse_rate


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("800ms", 0.8), ("30s", 30), ("5min", 300), ("5m", 300), ("1.5h", 5400), (" 2 days ", 172800),
        ("250us", 0.00025), ("2H", 7200), (".5s", 0.5), ("1e3ms", 1), ("0s", 0),
    ],
)  # fmt: skip
def test_durations(text: str, seconds: float) -> None:
    assert parse_duration(text) == pytest.approx(seconds)


@pytest.mark.parametrize(
    ("text", "per_day"),
    [("0.5/day", 0.5), ("11/h", 264), ("1/19days", 1 / 19), ("3 / week", 3 / 7), ("0.005/min", 7.2)],
)
def test_rates(text: str, per_day: float) -> None:
    assert parse_rate(text) * 86400 == pytest.approx(per_day)


@pytest.mark.parametrize("text", ["", "30", "s", "-3s", "3 parsecs", "3s4", "1e", "nan s", "1_0s", "5ss", "3mss"])
def test_what_is_no_duration(text: str) -> None:
    with pytest.raises(QuantityError, match="800ms") as caught:
        parse_duration(text)
    assert caught.value.text == text


@pytest.mark.parametrize("text", ["", "5", "5/", "/day", "5/0h", "5/day/h", "-1/h", "1/19", "1 h"])
def test_what_is_no_rate(text: str) -> None:
    with pytest.raises(QuantityError, match=r"0\.5/day"):
        parse_rate(text)


@given(st.floats(1e-7, 1e9))
def test_what_is_shown_can_be_read_again(value: float) -> None:
    assert parse_duration(format_duration(value)) == pytest.approx(value, rel=1e-3)
    assert parse_rate(format_rate(value)) == pytest.approx(value, rel=1e-3)


def test_units_suit_the_size() -> None:
    assert [format_duration(s) for s in (90.0, 0.0015, 7200.0, 0.0, 2e5)] == ["1.5min", "1.5ms", "2h", "0us", "2.315d"]
    assert [format_rate(r / 86400) for r in (0.5, 1.0, 50.0, 0.001)] == ["3.5/week", "1/day", "2.083/h", "0.3652/year"]
