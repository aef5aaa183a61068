"""Every number that the paper prints, to its digits, and the honesty of the table that shows them."""

from __future__ import annotations

import pytest

from spark_cec.tuning import checkpoint_cost, optimal_interval, optimal_utilization, utilization
from spark_cec.tuning.advice import System
from spark_cec.tuning.optimum import daly_interval, zhuang_interval
from spark_cec_lab.tuning.paper import TABLE_1, Basis, Comparison, TableRow, comparisons, gain_percent

MINUTE, HOUR = 60.0, 3600.0
BY_PLACE: dict[tuple[str, str], Comparison] = {}
for _row in comparisons():
    # A row without a place belongs to the place above it.
    _at = _row.place or next(reversed(BY_PLACE))[0]
    BY_PLACE[_at, _row.quantity] = _row


def test_single_process_optimum() -> None:
    best = float(optimal_interval(checkpoint_s=5, failures_per_s=0.005))
    assert f"{best:.3f}" == "46.452"
    share = float(utilization(best, checkpoint_s=5, failures_per_s=0.005, restart_s=10))
    assert f"{share:.4f}" == "0.7541"


def test_fifty_operators() -> None:
    deep = float(optimal_utilization(checkpoint_s=5, failures_per_s=0.005, restart_s=10, operators=50, delay_s=0.5))
    assert f"{deep:.3f}" == "0.667"
    lower = BY_PLACE["and n=50, δ=0.5 min", "lower by %"]
    assert lower.agrees is False
    assert f"{lower.ours:.2f}" == "11.53"
    assert f"{100 * (1 - 0.667 / 0.7541):.1f}" == lower.printed == "11.6"


PRINTED_TABLE_1 = [
    (0.4222, 1.0418),
    (0.4216, 1.4526),
    (0.8536, 1.8945),
    (0.8533, 2.3110),
    (0.9243, 2.7753),
    (0.9237, 4.1536),
]


@pytest.mark.parametrize("number", range(1, 7))
def test_table_1(number: int) -> None:
    at_default, best = PRINTED_TABLE_1[number - 1]
    row = TABLE_1[number - 1]
    place = f"Table 1.{number} {row.failures_per_min:g}/min {row.checkpoint_s:.2f} s"
    assert BY_PLACE[place, "U(30 min)"].ours_rounded == f"{at_default:.4f}"
    assert BY_PLACE[place, "T* min"].ours_rounded == f"{best:.4f}"
    assert BY_PLACE[place, "U(T*)"].printed is None


@pytest.mark.parametrize("row", TABLE_1)
def test_table_1_costs_are_the_only_hundredths_of_a_second_that_fit(row: TableRow) -> None:
    best, rate = float(row.optimal_interval_min), row.failures_per_min
    low, high = (
        60 * float(checkpoint_cost(optimal_interval_s=best + off, failures_per_s=rate)) for off in (-5e-5, 5e-5)
    )
    assert low <= row.checkpoint_s <= high
    assert high - low < 0.0005


@pytest.mark.parametrize(
    ("per_hour", "printed", "ours"),
    [
        (0.8475, "18.91", "18.91"),
        (0.1701, "2.4", "2.4"),
        (0.135, "1.73", "1.74"),
        (0.1161, "1.4", "1.4"),
        (0.0606, "0.5", "0.5"),
    ],
)
def test_gains_over_thirty_minutes(per_hour: float, printed: str, ours: str) -> None:
    row = BY_PLACE[f"λ={per_hour}/h", "gain %, 30 min"]
    assert (row.printed, row.ours_rounded) == (printed, ours)
    assert row.agrees is (printed == ours)


def test_the_rates_at_which_the_odd_gain_would_come_out() -> None:
    reached = [f"{gain_percent(System(rate / HOUR, 5.0)):.2f}" for rate in (0.1339, 0.1340, 0.1344, 0.1345)]
    assert reached == ["1.72", "1.73", "1.73", "1.74"]


def test_gains_by_system_size() -> None:
    assert BY_PLACE["1000 nodes", "gain %, 30 min"].ours_rounded == "68.8"
    assert BY_PLACE["2000 nodes", "gain %, 30 min"].ours_rounded == "226.83"
    assert BY_PLACE["n = 15000", "U(T*)"].ours_rounded == "0.0018"


def rivals(checkpoint_s: float, restart_s: float) -> list[str]:
    system = System(11 / HOUR, checkpoint_s, restart_s)
    given = {"checkpoint_s": checkpoint_s, "failures_per_s": 11 / HOUR, "restart_s": restart_s}
    return [f"{gain_percent(system, float(interval(**given))):.1f}" for interval in (daly_interval, zhuang_interval)]


def test_gains_over_daly_and_zhuang() -> None:
    assert rivals(120.0, 300.0) == ["2.3", "3.7"]
    assert [BY_PLACE["λ=11/h", f"gain %, {name}"].ours_rounded for name in ("Daly", "Zhuang")] == ["2.3", "3.7"]


def test_the_second_solution_that_the_note_mentions_is_one() -> None:
    assert rivals(501.0, 217.0) == ["2.3", "3.7"]


def test_what_was_solved_from_a_number_is_not_called_a_test_of_it() -> None:
    tests = [row for row in comparisons() if row.tests_the_model]
    assert [row.basis for row in tests].count(Basis.GIVEN) == 4
    assert [row.basis for row in tests].count(Basis.CARRIED) == 5
    assert [row.printed for row in tests if not row.agrees] == ["11.6", "1.73"]
    assert all(row.note for row in comparisons() if row.basis is not Basis.GIVEN or not row.agrees)


@pytest.mark.parametrize(
    ("printed", "ours", "rounded", "agrees"),
    [
        ("0.667", 0.6674, "0.667", True),
        ("0.667", 0.6676, "0.668", False),
        ("2", 2.4, "2", True),
        (None, 0.5, "0.5000", None),
    ],
)
def test_agreement_is_to_the_printed_digits(
    printed: str | None, ours: float, rounded: str, agrees: bool | None
) -> None:
    row = Comparison("", "", printed, ours, Basis.GIVEN)
    assert (row.ours_rounded, row.agrees) == (rounded, agrees)
