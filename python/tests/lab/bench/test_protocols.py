"""The comparison of protocols without Spark: what is run, what runs say, and the tables that are made of it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from multiprocessing.pool import ThreadPool
from pathlib import Path
from typing import Any

import pytest

from spark_cec.protocols.choose import Protocol
from spark_cec_lab.bench.processes import BenchError
from spark_cec_lab.bench.protocols import figures
from spark_cec_lab.bench.protocols.compare import FULL, ON_CYCLES, PROTOCOLS, compare, plan_of, read_runs, runs_of
from spark_cec_lab.bench.protocols.feed import ChangesFeed, Feed
from spark_cec_lab.bench.protocols.plots import draw
from spark_cec_lab.bench.protocols.simulated import FLOWS, batch_cost_s, costs_of, simulated
from spark_cec_lab.bench.protocols.simulated_tables import simulated_tables
from spark_cec_lab.bench.protocols.spec import CYCLIC, Done, Outcome, Recovery, RunSpec
from spark_cec_lab.bench.protocols.tables import tables
from spark_cec_lab.bench.protocols.watch import Files
from spark_cec_lab.simulation.protocols.measure import Course
from spark_cec_lab.simulation.protocols.outcome import Taken
from spark_cec_lab.simulation.protocols.plan import Costs


def outcome(protocol: str = "coordinated", query: str = "q3", **more: object) -> Outcome:
    """Of a run of 40 s that fails after 20: pieces of 100 events, one a second, are half a second late before."""
    spec = RunSpec(query, protocol, 2, "home", rate=100.0, seconds=40.0, fails_s=20.0)
    done = [Done(float(s), s + (0.5 if s < 18 else 4.5 if s < 25 else 0.55), 100) for s in range(40)]
    taken = [Taken("a", 1, 1.0, 1.1, False, 1)]  # it was taken back
    taken += [Taken(flow, 1, 5.0, 5.1 + at / 10, False, 1) for at, flow in enumerate("abc")]
    taken += [Taken(flow, 2, 10.0 + at, 10.2 + at, False, 2) for at, flow in enumerate("ab")]  # not complete
    made = Outcome(
        spec, 0.0, 40.0, tuple(done), tuple(taken), 5, 1000, 250, 4000, batches=80, cpu_s=20.0,
        failed_at_s=20.0, recovery=Recovery(1.5, 0.1, 3, 7, 2),
    )  # fmt: skip
    return replace(made, **more)  # type: ignore[arg-type]


def test_an_outcome_comes_through_a_line_whole() -> None:
    made = outcome()
    assert Outcome.from_json(json.loads(json.dumps(made.to_json()))) == made
    assert RunSpec.from_json(made.spec.to_json()) == made.spec


def test_what_a_run_says() -> None:
    made = outcome()
    assert figures.latency_s(made, 0.5, *figures.before_failure(made)) == 0.5
    assert figures.latency_s(made, 0.5, 90.0, 91.0) is None
    assert figures.worst_s(made) == 4.5
    assert figures.recovery_s(made) == 5.0  # from second 25 on half of what comes out is as late as before
    assert figures.checkpoint_s(made) == pytest.approx(0.3), "rounds from the first begin to the last end, whole ones"
    assert figures.overhead(made) == 1.25
    assert figures.invalid(made) == 0.4
    alone = outcome(taken=(Taken("a", 1, 5.0, 5.2, False, None), Taken("b", 1, 6.0, 6.4, True, None)))
    assert figures.checkpoint_s(alone) == pytest.approx(0.3)
    quiet = outcome(failed_at_s=None, recovery=None, taken=(), checkpoints=0)
    assert (figures.recovery_s(quiet), figures.worst_s(quiet), figures.invalid(quiet)) == (None,) * 3
    assert figures.checkpoint_s(quiet) is None


def test_each_run_that_fails_has_one_that_says_what_can_be_done() -> None:
    for plan in (FULL, plan_of(True, (), (), (), 1), plan_of(False, ["q12", CYCLIC], ["cec", "none"], [4, 1, 2], 2)):
        wanted = runs_of(plan)
        able = {(each.query, each.protocol, each.instances) for each in wanted if each.load is None}
        assert {(each.query, each.protocol, each.instances) for each in wanted if each.load} <= able
        assert [each.kind for each in wanted].count("slow") == 1
        assert {each.protocol for each in wanted if each.query == CYCLIC} <= set(ON_CYCLES)
    assert {each.instances for each in wanted} == {1, 2, 4}
    assert {each.protocol for each in wanted} == {"cec", "none"}
    assert len(runs_of(plan_of(True, (), (), (), 1))) == 17
    twice = runs_of(plan_of(True, (), (), (), 2))
    rounds = [each.protocol for each in twice if each.kind == "full" and each.query == "q3"]
    assert rounds == [*PROTOCOLS, *PROTOCOLS[1:], PROTOCOLS[0]], "sides take turns"


def able(query: str, protocol: str, rate: int) -> Outcome:
    """A run that has done all it could: so many events a second, in batches of a tenth of that."""
    done = tuple(Done(0.0, at / 10, rate // 10) for at in range(400))
    made = outcome(protocol, failed_at_s=None, recovery=None, done=done)
    return replace(made, spec=RunSpec(query, protocol, 2, ""))


def test_throughput_does_not_go_by_whether_one_more_batch_comes_in_time() -> None:
    batches = tuple(Done(0.0, 0.9 + 3.0 * at, 300) for at in range(20))
    for end in (19.0, 21.0, 22.0):
        assert outcome(done=batches, ended_s=end).events_s == pytest.approx(100.0)
    assert outcome(done=batches[:1]).events_s == outcome(done=()).events_s == 0.0


def test_tables_have_theirs_beside_ours() -> None:
    full = [able("q3", name, rate) for name, rate in zip(PROTOCOLS, (100, 80, 90, 60, 120), strict=True)]
    again = [able("q3", name, rate) for name, rate in zip(PROTOCOLS, (100, 80, 90, 60, 60), strict=True)]
    other = [able("q12", name, rate) for name, rate in zip(PROTOCOLS, (100, 110, 90, 80, 70), strict=True)]
    runs = [*full, *again, *other, *(outcome(name) for name in PROTOCOLS)]
    runs += [outcome(name, CYCLIC) for name in ON_CYCLES]
    hot = [replace(each, spec=replace(each.spec, hot_percent=20)) for each in map(outcome, PROTOCOLS)]
    slow = replace(outcome("none", failed_at_s=None, recovery=None), spec=RunSpec("q3", "none", 2, "", rate=1.0))
    text = "\n".join(tables([*runs, *hot, slow]))
    assert "| q3, 2 inst. | 1.00 | 0.80 | 0.90 | 0.60 | 0.90 (0.60-1.20) |" in text
    assert "| all of these | 1.00 | 0.80 (0.80-1.10) | 0.90 | 0.60 (0.60-0.80) | 0.70 (0.60-1.20) |" in text
    assert "1.25x [1.82x, 2.58x]" in text
    assert "5 (40 %) [455 (4 %)]" in text
    assert "q3, 2 inst., 20 % hot" in text
    assert "| UNC | 300 [0.01] | 1500 [620] | 40.0 % [1.4 %] |" in text
    assert "| q3, 2 inst. | 4.5 (5) | 4.5 (5) |" in text, "a run for the costs of a batch is none that fails"
    assert tables([]) == []


def test_of_several_rounds_it_is_the_median() -> None:
    rounds = [outcome(recovery=Recovery(restart, 0.1, 3, 7, 2)) for restart in (1.0, 9.0, 2.0)]
    text = "\n".join(tables(rounds))
    assert "| q3, 2 inst. | 2000 |" in text
    assert "| q3, 2 inst. | 5 (40 %) [400 (0 %)] |" in text


COURSE = Course(seconds=20.0, warm_up_s=4.0, fails_s=8.0, interval_s=3.0, hot_workers=3)
COSTS = Costs(trigger_s=0.1, batch_s=0.02)


def lines_of(query: str, workers: Sequence[int], hot: Sequence[float] = ()) -> list[dict[str, Any]]:
    with ThreadPool(1) as pool:
        return simulated(query, 60_000.0, workers, hot, COURSE, dict.fromkeys(Protocol, COSTS), pool, print)


def test_the_simulation_is_as_fast_as_spark_where_it_is_calibrated() -> None:
    lines = lines_of("q12", [2])
    assert [line["protocol"] for line in lines] == [
        "none", "coordinated", "uncoordinated", "communication-induced", "cec",
    ]  # fmt: skip
    assert lines[0]["throughput"] == 1.0
    assert lines[0]["rate"] == pytest.approx(60_000.0, rel=0.05)
    runs = [replace(outcome(name, "q12"), spec=RunSpec("q12", name, 2, "")) for name in PROTOCOLS]
    text = "\n".join(simulated_tables(lines, runs))
    assert "| throughput, q12 | COOR | 1.00 |" in text
    assert "| checkpoint, ms, q12 | UNC | 300 |" in text
    assert "| restart, ms, q12 | CEC | 1500 |" in text
    assert "| throughput, q12 | none |" not in text


def test_skew_and_a_cycle_are_simulated() -> None:
    skewed = lines_of("q12", [3], [0.3])
    cyclic = lines_of(CYCLIC, [5])
    assert {line["protocol"] for line in cyclic} == set(ON_CYCLES)
    assert {line["throughput"] for line in cyclic if line["protocol"] == ON_CYCLES[0]} == {1.0}
    text = "\n".join(simulated_tables([*skewed, *cyclic], []))
    for said in ("| q12, 3 workers, 30 % hot, 80 % load |", "| reachability, 5 workers |", "[0.01 / 620 (1.4 %)]"):
        assert said in text
    assert "Where both are" not in text
    assert simulated_tables([], []) == []


def test_what_was_run_and_simulated_is_not_done_again(tmp_path: Path) -> None:
    """And pictures are drawn of it, each figure that there are runs of."""
    runs = [outcome(name) for name in PROTOCOLS]
    runs += [replace(each, spec=replace(each.spec, hot_percent=20)) for each in runs]
    runs += [replace(outcome(name, failed_at_s=None), spec=RunSpec("q3", name, 2, "")) for name in PROTOCOLS]
    lines = lines_of("q3", [3], [0.3])
    file = tmp_path / "known.jsonl"
    told = [*({"kind": "x", **each.to_json()} for each in runs), {"kind": "costs"}, *lines]
    file.write_text("".join(json.dumps(each) + "\n" for each in told))
    assert compare(FULL, [file], tmp_path, print, print) == (runs, lines)
    names = [path.name for path in draw(runs, lines, tmp_path / "figures")]
    assert names == [f"protocols-{each}.png" for each in ("fig7", "fig8", "fig9-10", "fig11", "fig12-13")]
    assert draw([], [], tmp_path / "figures") == []


def test_costs_are_those_of_the_runs(tmp_path: Path) -> None:
    slow = replace(outcome("none", batches=100, cpu_s=7.0), spec=RunSpec("q3", "none", 2, "", rate=1.0))
    runs = [outcome("none"), slow, outcome("coordinated")]
    assert batch_cost_s(runs) == pytest.approx(0.07)
    assert batch_cost_s(runs[:1]) is None
    runs.append(outcome("cec", recovery=Recovery(0.5, 0.0, 1, 0, 0)))
    found = costs_of(runs, FLOWS["q3"], Protocol.UNCOORDINATED)
    assert found.batch_s == pytest.approx(0.07)
    assert found.restart_s == pytest.approx(1.4) and found.fetch_us == 0.0
    hot = outcome(spec=replace(runs[2].spec, hot_percent=20), recovery=Recovery(9.0, 0.0, 1, 0, 0))
    assert costs_of([*runs, hot], FLOWS["q3"], Protocol.UNCOORDINATED) == found
    assert costs_of(runs, FLOWS["q3"], Protocol.CEC).restart_s == pytest.approx(0.4), "it has taken back one flow"
    assert costs_of([], FLOWS["q3"], Protocol.CEC).batch_s == Costs().batch_s
    assert costs_of(runs, FLOWS["q8"], Protocol.CEC).restart_s == Costs().restart_s, "those were of another query"
    (tmp_path / "runs").write_text("".join(json.dumps({"kind": "x", **each.to_json()}) + "\n" for each in runs))
    assert read_runs([tmp_path / "runs"]) == (runs, [])
    (tmp_path / "none").write_text("{")
    with pytest.raises(BenchError, match="none has no runs of this benchmark, from --json-out"):
        read_runs([tmp_path / "none"])


def test_a_checkpoint_costs_what_has_changed() -> None:
    """The same in the simulation as on Spark: q3's state grows, and q12's is as large as its windows."""
    for query, changed in (("q3", 100.0 * 0.08 * 120 * 5 / 2), ("q12", 100.0 * 0.92 * 8 * 5 / 2), ("q1", 0.0)):
        flows = FLOWS[query].operators
        source, last = flows[0].name, flows[-1].name
        taken = [Taken(source, 1, 5.0, 5.01, False, None), Taken(f"{last}-2-of-2", 1, 5.0, 5.05, False, None)]
        spec = RunSpec(query, "uncoordinated", 2, "")
        found = costs_of([outcome(query=query, spec=spec, taken=tuple(taken))], FLOWS[query], Protocol.COORDINATED)
        if not changed:
            assert found.checkpoint_s == pytest.approx(0.03), "neither has a state"
            continue
        assert found.checkpoint_s == pytest.approx(0.01)
        assert 1e-6 * (found.snapshot_us + found.write_us) * changed == pytest.approx(0.04, rel=0.01)
        assert found.write_us / found.snapshot_us == pytest.approx(Costs().write_us / Costs().snapshot_us)


def read(place: Path) -> Sequence[dict[str, int]]:
    return [json.loads(line) for path in sorted(place.glob("[0-9]*.json")) for line in path.read_text().splitlines()]


def test_pieces_are_given_to_all_sources_alike(tmp_path: Path) -> None:
    feed = Feed([tmp_path / "a", tmp_path / "b"])
    feed.give(100, 0.5)
    feed.give(30, 0.7)
    for place in (tmp_path / "a", tmp_path / "b"):
        assert read(place) == [{"first": 0, "events": 100}, {"first": 100, "events": 30}]
    times = [path.stat().st_mtime for path in sorted((tmp_path / "a").glob("[0-9]*.json"))]
    assert times == sorted(set(times)), "Spark takes them by their times"
    changes = ChangesFeed(tmp_path / "c", 1)
    changes.give(40, 0.0)
    assert len(read(tmp_path / "c")) == 40


def test_files_are_counted_by_what_spark_has_noted(tmp_path: Path) -> None:
    place = tmp_path / "flows/bid/sources/0"
    place.mkdir(parents=True)

    def note(*entries: int) -> str:
        return "\n".join(["v1", *(json.dumps({"path": "x", "timestamp": 1, "batchId": each}) for each in entries)])

    (place / "0").write_text(note(0, 0))
    (place / "1.compact").write_text(note(0, 0, 1))
    (place / "2").write_text(note(2, 2, 2))
    files = Files(str(tmp_path), "bid")
    assert [files.up_to(entry) for entry in (2, 0, 1)] == [6, 2, 3]
