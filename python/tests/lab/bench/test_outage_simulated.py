"""The simulated experiments: their points, their tables, the costs of Spark runs, and the comparison with those."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from spark_cec_lab.bench import command
from spark_cec_lab.bench.pipelines.batch_log import Batch, find_costs, read_batch
from spark_cec_lab.bench.pipelines.outage import ALPHA, DELAY, PROCESS, QUICK_ALPHA, Part, Point, plan, summary
from spark_cec_lab.bench.pipelines.outage_job import Outage
from spark_cec_lab.bench.pipelines.outage_simulated import (
    SPARK,
    World,
    bound_world,
    compare,
    costs_of,
    find_bound,
    line_of,
    paper_world,
    points_of,
    read_runs,
    spark_world,
)
from spark_cec_lab.bench.pipelines.reconcile import find_process_us, table_of_points, with_formulas
from spark_cec_lab.bench.processes import BenchError
from spark_cec_lab.simulation.availability.table2 import Constants

COSTS = {
    "source_s": 0.7, "flow_s": 1.2, "sink_s": 0.5, "share": 0.8, "row_us": 10.0, "fork_s": 1.0,
    "catch_up_rows": 70_000.0, "catch_up_s": 1.9,
}  # fmt: skip


def test_the_points_are_those_of_the_paper() -> None:
    points = points_of((Part.FIGURE_9, Part.FIGURE_10, Part.FIGURE_11), paper_world())
    nine, ten, eleven = ([p for p in points if p.part.value == f"fig{n}"] for n in (9, 10, 11))
    assert {p.outage.cut_s for p in nine} == {5.0} and (min(p.x for p in nine), max(p.x for p in nine)) == (0.5, 6.0)
    assert len({p.series for p in ten}) == 6 and (min(p.x for p in ten), max(p.x for p in ten)) == (2.0, 60.0)
    assert {round(p.outage.wait_s, 6) for p in ten} == {2.7} and {p.outage.rows_per_s for p in ten} == {4_500}
    assert {(p.x, p.outage.cut_s) for p in eleven} == {(float(n), 15.0) for n in (1, 2, 3, 4)}


def test_every_point_of_the_paper_is_simulated_at_its_scale() -> None:
    """What the paper says of figure 9: a step, and fewer rows in proportion to alpha X."""
    world = paper_world()
    lines = [line_of(world, point, world.run(point.outage)) for point in points_of((Part.FIGURE_9,), world)]
    rows = {(each["series"], each["x"]): each["tentative"]["median"] for each in lines}
    step = [rows["process", x] for x in (0.5, 1.0, 2.0, 3.0, 4.0)]
    assert max(step) < 1.1 * min(step), "a step; an epoch that yields for too short a time has some rows more"
    assert rows["process", 6.0] == rows["delay", 6.0] == 0
    assert rows["delay", 1.0] - rows["delay", 2.0] == rows["delay", 3.0] - rows["delay", 4.0] == 100
    assert {each["theirs"] for each in lines} and all(each["world"] == "s=1" for each in lines)


def test_the_scale_of_spark_is_the_one_that_a_measurement_would_take() -> None:
    world = spark_world(SPARK, None)
    assert world.alpha == QUICK_ALPHA and 1.5 < world.scale < 4
    assert spark_world(SPARK, 7.0).scale == 7.0


def test_a_bound_counts_the_seeds_beyond_it() -> None:
    slow = World("slow", SPARK, 0.5, ALPHA)  # of X a tenth is left, and that is less than a batch
    found = find_bound(slow, "process", 1, runs=2)
    assert found.over == (1, 2) and found.worst > 1
    assert find_bound(paper_world(), "process", 1, runs=2).over == ()


@pytest.mark.parametrize("pace", [PROCESS, DELAY])
@pytest.mark.parametrize("seed", [11, 17, 72])
def test_answers_come_in_time_if_inputs_go_away_one_after_the_other(seed: int, pace: str) -> None:
    """An epoch goes on without the next one, also if the one before is back. For a while all inputs are away."""
    assert find_bound(paper_world(), pace, seed, runs=1).over == (), f"seed={seed}"


def test_a_bound_at_the_scale_of_spark_leaves_room_for_the_usual_time() -> None:
    wide = bound_world(spark_world(SPARK, None), None)
    assert wide.scale > spark_world(SPARK, None).scale and bound_world(wide, 3.0) is wide
    assert find_bound(wide, PROCESS, 2, runs=1).over == ()


def _run(**fields: Any) -> dict[str, Any]:
    done = {"delay_new_s": 20.0, "tentative": 2_200, "corrected_s": 6.0, "usual_s": 5.0, "costs": COSTS}
    return {**done, **fields}


def _summary() -> dict[str, Any]:
    return summary(plan([Part.FIGURE_9], 4.8, QUICK_ALPHA, quick=True)[0], 4.8, [_run()])


def test_the_costs_are_medians_of_the_runs(tmp_path: Path) -> None:
    lines = [{"task": "availability", **_run(costs={**COSTS, "flow_s": s})} for s in (1.0, 1.5, 9.0)]
    path = tmp_path / "runs.jsonl"
    path.write_text("".join(f"{json.dumps(each)}\n" for each in lines))
    found = costs_of(read_runs(path))
    assert (found.flow_ms, found.source_ms, found.fork_ms, found.share) == (1_500.0, 700.0, 1_000.0, 0.8)
    with pytest.raises(BenchError, match="fork_s"):
        costs_of([_run(costs={**COSTS, "fork_s": None})])
    path.write_text('{"task": "availability"}\n')
    with pytest.raises(BenchError, match="no run"):
        read_runs(path)
    with pytest.raises(BenchError, match="No such file"):
        read_runs(tmp_path / "missing")


def test_numbers_that_are_far_are_marked() -> None:
    costs = costs_of([_run()])
    (first,) = compare([_summary()], costs)
    near = {**_summary(), **{k: {"median": v} for k, v in first["simulated"].items()}}
    far = {**near, "tentative": {"median": first["simulated"]["tentative"] * 1.3}}
    none = {**near, "tentative": {"median": 0}}
    assert [each["far"] for each in compare([near, far, none], costs)] == [[], ["tentative"], ["tentative"]]
    assert compare([{**near, "part": "table3"}, {"kind": "run"}], costs) == []


def test_costs_come_of_batches_that_are_warm() -> None:
    """A batch is of a flow by its name, so an epoch's are none. An epoch before the cut does not count."""
    told = [Batch("counts1", at, 1.0, 3_000, 0.8) for at in range(100, 110)]
    told += [Batch("counts1", 50, 9.0, 3_000, 0.8), Batch("counts1", 130, 1.7, 73_000, 0.8)]
    told += [Batch("counts1 epoch 1", 96, 5.0, 9, 0.8), Batch("counts1 epoch 2", 106.5, 5.0, 9, 0.8)]
    told += [Batch("north", 101, 0.7, 500, 0.8), Batch("None", 101, 0.5, 500, 0.8)]
    found = find_costs(told, ("north", "south"), ("counts1",), "None", 105.0, {1: 95.5, 2: 105.5})
    assert found == {
        "source_s": 0.7, "flow_s": 1.0, "sink_s": 0.5, "share": 0.8, "row_us": 10.0, "catch_up_rows": 73_000.0,
        "catch_up_s": 1.7, "fork_s": 1.0,
    }  # fmt: skip
    assert find_costs(told, ("north",), ("counts1",), "None", 105.0, {})["fork_s"] is None


def test_a_look_without_a_batch_is_no_batch() -> None:
    took = {"triggerExecution": 1_000, "addBatch": 700, "commitOffsets": 200}
    progress: dict[str, Any] = {"name": "north", "timestamp": "2026-01-01T00:00:00.000Z", "durationMs": took}
    progress["sources"] = [{"numInputRows": 3}, {"numInputRows": 4}]
    (found,) = read_batch(progress)
    assert (found.query, found.seconds, found.rows, found.share) == ("north", 1.0, 7, 0.8)
    assert read_batch({**progress, "durationMs": {"triggerExecution": 5}}) == []


def test_the_formulas_stand_beside_what_was_measured() -> None:
    outage = Outage(24.0, 4.8, 8.0, rows_per_s=1_000, chain=2, state=100_000)
    line = summary(Point(Part.FIGURE_12, "state, 2 flows", 100_000.0, outage), 4.8, [_run()])
    assert find_process_us([line]) == 10.0
    (found,) = with_formulas([line, _summary()], Constants(1.0, 2.0, 10.0), "measured on Spark")
    assert found["corrected_s"] == 6.0 and found["corrected_from"] == "measured on Spark"
    assert found["checkpoint_redo_s"] == pytest.approx(5 + 0.1 + 24.1 * 2_000 * 10e-6, abs=1e-3)
    assert found["undo_redo_s"] == pytest.approx(5 + (100_000 + 24.1 * 2_000) * 12e-6, abs=1e-3)
    assert "formula" in table_of_points([found]) and table_of_points([]) == ""
    with pytest.raises(BenchError, match="no run"):
        find_process_us([{"catch_up": None}])


def _bench(*options: str) -> tuple[int, str, str]:
    result = CliRunner().invoke(command.app, ["availability", *options])
    return result.exit_code, result.stdout, result.stderr


def test_the_command_prints_tables_with_the_papers_words(tmp_path: Path) -> None:
    runs, out = tmp_path / "runs.jsonl", tmp_path / "out.jsonl"
    runs.write_text("".join(f"{json.dumps(each)}\n" for each in ({"task": "availability", **_run()}, _summary())))
    files = ("--against", str(runs), "--json-out", str(out), "--output", str(tmp_path))
    code, told, _ = _bench("--simulate", "--part", "fig9", *files)
    assert code == 0
    assert told.count("The paper: Process: a step") == 2 and "Simulated over measured on Spark" in told
    kinds = [json.loads(line)["kind"] for line in out.read_text().splitlines()]
    assert kinds.count("world") == 2 and kinds.count("compared") == 1 and "simulated" in kinds


@pytest.mark.parametrize(
    ("options", "named"),
    [
        (("--part", "bound"), "bound is for --simulate"),
        (("--against", "x.jsonl"), "for --simulate"),
        (("--simulate", "--part", "cost"), "cost"),
        (("--simulate", "--at", "5"), "--simulate"),
        (("--alpha", "1.5"), "between 0 and 1"),
        (("--part", "fig9", "--scale", "4", "--at", "7"), "no run is at 7"),
    ],
)
def test_wrong_usage_of_the_simulator(options: tuple[str, ...], named: str) -> None:
    code, _, told = _bench(*options)
    assert code == 2 and named in told
