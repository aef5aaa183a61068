"""The experiments with an input that is away: their plan, their scale, and the rows whose answers are known."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_cec.pipeline.options import Pace
from spark_cec_lab.bench.pipelines.outage import (
    ALPHA,
    OUTAGES,
    PROCESS,
    QUICK_ALPHA,
    SUSPEND,
    THEIRS,
    Part,
    Point,
    Selection,
    find_scale,
    plan,
    summary,
)
from spark_cec_lab.bench.pipelines.outage_job import CUT, INPUTS, KEYS, Board, Inputs, Outage, OutageSpec
from spark_cec_lab.bench.pipelines.outage_plots import draw_outages
from spark_cec_lab.bench.processes import BenchError


@pytest.mark.parametrize("quick", [True, False])
def test_a_plan_has_all_parts_in_order_with_paces_that_a_flow_takes(quick: bool) -> None:
    points = plan(OUTAGES, 10.0, ALPHA, quick=quick)
    assert tuple(dict.fromkeys(point.part for point in points)) == OUTAGES
    assert {*OUTAGES, Part.BOUND} == set(THEIRS)
    assert len({(point.part, point.series, point.x) for point in points}) == len(points)
    for point in points:
        assert 0 < point.outage.wait_s < point.outage.x_s
        assert Pace(point.outage.pace) is not Pace.SUSPEND and Pace(point.outage.pace_after)
    assert plan([Part.FIGURE_11], 10.0, ALPHA, quick=quick) == [p for p in points if p.part is Part.FIGURE_11]


def test_some_points_of_a_figure_can_be_chosen() -> None:
    chosen = Selection((Part.FIGURE_10,), alpha=0.6, at=(5.0, 15.0))
    points = chosen.points(2.0)
    assert {point.x for point in points} == {5.0, 15.0} and len(points) == 12
    assert {(p.outage.x_s, round(p.outage.wait_s, 6)) for p in points} == {(6.0, 3.6)}
    assert chosen.find_unknown() is None
    assert replace(chosen, at=(5.0, 7.0)).find_unknown() == "no run is at 7: there are 2, 5, 15, 30"
    assert replace(chosen, parts=(Part.COST,), at=(5.0,)).find_unknown() == "no run is at 5: there are none"
    for quick, alpha in ((True, QUICK_ALPHA), (False, ALPHA)):
        usual = Selection((Part.FIGURE_9,), quick=quick)
        assert usual.points(2.0) == plan([Part.FIGURE_9], 2.0, alpha, quick=quick)


def test_a_full_plan_has_the_papers_parameters() -> None:
    """X is 3 s and alpha 0.9. Figure 9 varies alpha X while the input is away for 5 s. Figure 10 has six pairs."""
    points = plan(OUTAGES, 1.0, ALPHA, quick=False)
    nine = [point for point in points if point.part is Part.FIGURE_9]
    assert {point.outage.cut_s for point in nine} == {5.0} and min(p.outage.wait_s for p in nine) < 4 < nine[-1].x
    ten = [point for point in points if point.part is Part.FIGURE_10]
    assert len({point.series for point in ten}) == 6
    assert {(p.outage.x_s, round(p.outage.wait_s, 6), p.outage.rows_per_s) for p in ten} == {(3.0, 2.7, 4_500)}
    eleven = [point for point in points if point.part is Part.FIGURE_11]
    assert {(point.outage.chain, point.outage.cut_s) for point in eleven} == {(n, 15.0) for n in (1, 2, 3, 4)}
    assert f"{PROCESS} & {SUSPEND}" in {point.series for point in eleven}


@given(st.floats(0.0, 60.0), st.sampled_from([ALPHA, QUICK_ALPHA]))
def test_the_scale_is_the_least_that_leaves_time_for_the_first_tentative_row(took_s: float, alpha: float) -> None:
    scale = find_scale({"first_tentative_s": took_s}, alpha)
    left = (1 - alpha) * 3.0
    assert scale > 0 and left * scale >= took_s - 1e-6
    assert left * (scale - 0.1) < max(took_s, 0.1) + 1e-6


def test_there_is_no_scale_without_a_tentative_row() -> None:
    with pytest.raises(BenchError, match="no tentative row"):
        find_scale({"first_tentative_s": None}, ALPHA)


def test_a_summary_has_the_papers_seconds() -> None:
    point = Point(Part.FIGURE_9, PROCESS, 1.0, Outage(50.0, 10.0, 11.0))
    done = [{"delay_new_s": d, "tentative": 7, "corrected_s": 30.0, "usual_s": 2.5} for d in (20.0, 40.0, 60.0)]
    found = summary(point, 10.0, done)
    assert found["delay_new"] == {"median": 4.0, "low": 2.0, "high": 6.0}
    assert found["corrected"]["median"] == 3.0 and found["usual_s"]["median"] == 2.5 and found["alpha_x_s"] == 10.0
    assert found["processors"] is None
    told = summary(point, 10.0, [each | {"processors": {"away": i}} for i, each in enumerate(done)])
    assert told["processors"] == {"away": {"median": 1, "low": 0, "high": 2}}


def test_a_spec_survives_json() -> None:
    spec = OutageSpec("home", Outage(5.0, 2.0, 3.0, "delay", "suspend", 3, 100, 0.5))
    assert OutageSpec.from_json(spec.to_json()) == spec


def _rows(root: Path, name: str) -> list[dict[str, Any]]:
    return [json.loads(line) for file in sorted((root / name).iterdir()) for line in file.read_text().splitlines()]


def _wait_for(look: Callable[[], bool]) -> None:
    end = time.monotonic() + 60
    while not look():
        assert time.monotonic() < end
        time.sleep(0.01)


def test_the_files_have_the_rows_of_which_the_answers_are_known(tmp_path: Path) -> None:
    inputs = Inputs(tmp_path, 600)
    inputs.start()
    _wait_for(lambda: inputs.last_s > 0)
    inputs.is_cut = True
    before = len(_rows(tmp_path, INPUTS[0]))
    _wait_for(lambda: len(_rows(tmp_path, INPUTS[0])) > before + 200)  # a file comes each half second
    cut = len(_rows(tmp_path, CUT))
    assert cut < len(_rows(tmp_path, INPUTS[0]))
    inputs.is_cut = False
    _wait_for(lambda: len(_rows(tmp_path, CUT)) > cut)
    inputs.end()
    counts = Counter[tuple[int, int]]()
    totals = Counter[tuple[int, int]]()
    for name in INPUTS:
        for row in _rows(tmp_path, name):
            window = row["key"], int(datetime.fromisoformat(row["time"]).timestamp())
            counts[window] += 1
            totals[window] += row["v"]
    assert {each: (counts[each], totals[each]) for each in counts} == inputs.expected
    assert {key for key, _ in counts} == set(range(KEYS))


@dataclass
class _Rows:
    rows: list[dict[str, Any]]

    def collect(self) -> list[dict[str, Any]]:
        return self.rows


def test_the_board_counts_each_stable_answer_and_keeps_the_first_time() -> None:
    board, row = Board(), {"key": 1, "second": 5, "n": 3, "total": 9}
    board.take(_Rows([{**row, "_kind": "tentative"}]), 0)  # type: ignore[arg-type]
    first = board.first_at[1, 5]
    board.take(_Rows([{**row, "n": 4, "_kind": "stable"}, {"_kind": "undo"}]), 1)  # type: ignore[arg-type]
    board.take(_Rows([{**row, "n": 4, "_kind": "stable"}]), 2)  # type: ignore[arg-type]
    assert board.first_at == {(1, 5): first} and board.tentative == 1
    assert board.stable == {(1, 5): Counter({(4, 9): 2})}, "a row that comes twice is wrong"


def test_each_part_is_drawn(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    done = [{"delay_new_s": 4.0, "tentative": 7, "corrected_s": 3.0, "usual_s": 2.5}]
    summaries = [summary(point, 10.0, done) for point in plan(OUTAGES, 10.0, ALPHA, quick=True)]
    drawn = draw_outages(summaries, tmp_path)
    assert [path.name for path in drawn] == [f"availability-{part.value}.png" for part in OUTAGES]
    assert all(path.stat().st_size > 5_000 for path in drawn)
