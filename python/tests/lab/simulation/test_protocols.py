"""Simulated runs: exact through failures under every protocol, and the quantities that the paper compares."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from spark_cec.protocols import choose
from spark_cec.protocols.choose import Protocol, UnknownProtocol, parse_protocol
from spark_cec.protocols.coordinated import CycleRefused
from spark_cec.protocols.messages import Checkpoint
from spark_cec_lab.simulation.protocols import engine
from spark_cec_lab.simulation.protocols.dataflow import QUERIES, UnknownQuery, dataflow_of, part_of
from spark_cec_lab.simulation.protocols.engine import Simulation
from spark_cec_lab.simulation.protocols.measure import NOT_BEHIND_S, Course, by_workers, recovery_s, sustainable_rate
from spark_cec_lab.simulation.protocols.measure import run as measured_run
from spark_cec_lab.simulation.protocols.outcome import Arrived, Outcome, Taken
from spark_cec_lab.simulation.protocols.plan import Costs, Plan

SMALL = Plan(workers=3, rate=3_000.0, seconds=60.0, interval_s=3.0, ends_s=25.0)
CASES = [(query, protocol) for query in QUERIES for protocol in Protocol
         if (query, protocol) != ("reachability", Protocol.COORDINATED)]  # fmt: skip


def run(query: str, protocol: Protocol, costs: Costs | None = None, **plan: object) -> Outcome:
    return Simulation(QUERIES[query], protocol, replace(SMALL, **plan), costs or Costs()).run()  # type: ignore[arg-type]


def undisturbed(query: str) -> Outcome:
    return run(query, Protocol.NONE)


@pytest.mark.parametrize(("query", "protocol"), CASES)
@pytest.mark.parametrize("seed", range(4))
def test_a_failure_changes_no_state(query: str, protocol: Protocol, seed: int) -> None:
    """At some time, of some worker; the sums of all processes are as without failure and protocol."""
    fails_s = 4.0 + 4.7 * seed
    print(f"seed {seed}")
    found = run(query, protocol, fails_s=fails_s, failed=seed % 3, seed=seed)
    assert found.behind == 0
    assert found.recovery is not None
    assert found.state == undisturbed(query).state


def test_what_would_be_lost_or_twice_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else the test above would say nothing: everybody's newest checkpoint is no line."""

    def newest(protocol: Protocol, checkpoints: dict[str, list[Checkpoint]], *_: object) -> dict[str, Checkpoint]:
        return {process: own[-1] for process, own in checkpoints.items()}

    monkeypatch.setattr(engine, "recovery_line", newest)
    wrong = 0
    for seed in range(6):
        found = run("q12", Protocol.UNCOORDINATED, fails_s=10.0 + seed, seed=seed)
        wrong += found.state != undisturbed("q12").state
    assert wrong > 0


@pytest.mark.parametrize("query", QUERIES)
def test_with_cec_only_who_failed_goes_back(query: str) -> None:
    found = run(query, Protocol.CEC, fails_s=12.0).recovery
    others = run(query, Protocol.UNCOORDINATED, fails_s=12.0).recovery
    assert found is not None and others is not None
    assert (found.back, found.invalid) == (len(QUERIES[query].operators), 0)
    assert others.back == len(QUERIES[query].operators) * SMALL.workers


def test_a_round_takes_as_long_as_its_markers() -> None:
    """And a checkpoint that asks nobody does not; with a straggler, a round waits for it."""
    alone, rounds = (run("q12", each).checkpoint_s() or 0.0 for each in (Protocol.UNCOORDINATED, Protocol.COORDINATED))
    assert 0 < alone < rounds
    slow = replace(Costs(), batch_s=0.1)
    skewed = run("q12", Protocol.COORDINATED, slow, rate=60_000.0, skew=0.8).checkpoint_s()
    assert skewed is not None and skewed > 2 * rounds


def test_hmnr_pays_for_what_it_adds_to_messages() -> None:
    few, more = (run("q3", Protocol.CIC, workers=workers, seconds=8.0).overhead for workers in (2, 6))
    assert 1 < few < more
    assert run("q3", Protocol.UNCOORDINATED).overhead == 1.0


def test_of_a_cycle_no_round_can_be_had() -> None:
    with pytest.raises(CycleRefused, match="project"):
        run("reachability", Protocol.COORDINATED)


def test_without_checkpoints_all_is_processed_again() -> None:
    found = run("q1", Protocol.NONE, fails_s=20.0)
    before = found.latency_s(0.5, 5.0, 20.0)
    after = found.latency_s(0.99, 20.0)
    assert before is not None and after is not None and after > 10 * before


def test_a_load_that_workers_cannot_carry_is_left_behind() -> None:
    assert run("q12", Protocol.NONE, rate=100.0, ends_s=math.inf, seconds=20.0).behind < 100
    assert run("q12", Protocol.NONE, rate=5e6, ends_s=math.inf, seconds=20.0).behind > 5e6


def test_the_same_seed_is_the_same_run() -> None:
    assert run("q8", Protocol.CIC, fails_s=9.0, seed=7) == run("q8", Protocol.CIC, fails_s=9.0, seed=7)


def test_latencies_are_weighed_by_records() -> None:
    found = Outcome([Arrived(1.0, 99.0, 0.5), Arrived(2.0, 1.0, 9.0)], [], 0.0, 0.0, None, {}, 0.0)
    assert (found.latency_s(0.5), found.latency_s(0.99), found.latency_s(1.0)) == (0.5, 0.5, 9.0)
    assert found.latency_s(0.5, begin_s=1.5) == 9.0
    assert found.latency_s(0.5, begin_s=3.0) is None


def test_a_round_that_was_given_up_is_no_round() -> None:
    taken = [Taken("a", 1, 1.0, 1.5, False, 1), Taken("b", 1, 2.0, 3.0, False, 1), Taken("a", 2, 4.0, 4.1, False, 2)]
    assert Outcome([], taken, 0.0, 0.0, None, {}, 0.0).checkpoint_s() == 2.0
    assert Outcome([], [], 0.0, 0.0, None, {}, 0.0).checkpoint_s() is None


def test_parts_make_up_the_whole() -> None:
    for skew in (0.0, 0.3):
        assert math.isclose(sum(part_of(instance, 7, skew) for instance in range(7)), 1.0)
    assert part_of(0, 10, 0.3) > 3 * part_of(1, 10, 0.3)


def test_names_that_are_none() -> None:
    with pytest.raises(UnknownProtocol, match=r"no protocol 'coordinate': did you mean coordinated\?"):
        parse_protocol("coordinate")
    with pytest.raises(UnknownProtocol, match="cec, coordinated, uncoordinated, communication-induced, bcs, none"):
        parse_protocol("paxos")
    with pytest.raises(UnknownQuery, match="no query 'reachabilty': did you mean reachability"):
        dataflow_of("reachabilty")
    assert parse_protocol("cec") is choose.Protocol.CEC


QUICK = Course(seconds=16.0, warm_up_s=2.0, fails_s=6.0, interval_s=2.0)


def test_the_rate_that_is_sustained_is_the_largest_one() -> None:
    found = sustainable_rate(QUERIES["q1"], Protocol.NONE, 2, QUICK, Costs())
    assert run_at(found, 0.99).behind < NOT_BEHIND_S * found <= run_at(found, 1.05).behind


def run_at(rate: float, share: float) -> Outcome:
    return measured_run(QUERIES["q1"], Protocol.NONE, 2, share * rate, QUICK, Costs())


def test_a_line_for_each_protocol() -> None:
    """What costs processor time costs throughput."""
    costs = replace(Costs(), log_us=0.05)
    protocols = [Protocol.NONE, Protocol.COORDINATED, Protocol.UNCOORDINATED, Protocol.CEC]
    none, rounds, alone, cec = (next(by_workers(QUERIES["q12"], each, [2], QUICK, costs)) for each in protocols)
    assert 0.9 < rounds["rate"] / none["rate"] < 1.05, "2 of 16 s may be left to be processed"
    assert alone["rate"] < rounds["rate"], "its messages are durable"
    assert cec["processes_back"] == 3 < alone["processes_back"]
    assert rounds["checkpoint_ms"] > alone["checkpoint_ms"]
    assert none["invalid"] == none["checkpoints"] == 0
    assert all(line["restart_ms"] > 0 for line in (none, rounds, alone, cec))


def test_a_line_for_each_number_of_workers_and_each_skew() -> None:
    """A search that begins near what fewer workers can do finds what one finds that begins anywhere."""
    course = replace(QUICK, hot_workers=4)
    lines = list(by_workers(QUERIES["q12"], Protocol.NONE, [4, 2], course, Costs(), hot=(0.1, 0.3)))
    told = [(line["workers"], line["skew"], line["load"]) for line in lines]
    assert told == [(2, 0.0, 0.8), (4, 0.0, 0.8), (4, 0.1, 0.5), (4, 0.1, 0.8), (4, 0.3, 0.5), (4, 0.3, 0.8)]
    anywhere = sustainable_rate(QUERIES["q12"], Protocol.NONE, 4, course, Costs())
    assert lines[1]["rate"] == pytest.approx(anywhere, rel=0.01)
    assert lines[5]["p99_ms"] > lines[1]["p99_ms"], "one worker has more to do than it can"


def test_until_when_a_failure_is_felt() -> None:
    course = Course(seconds=10.0, fails_s=3.0)
    late = [Arrived(at + 0.5, 1.0, 5.0 if 3 <= at < 6 else 1.0) for at in range(10)]
    assert recovery_s(Outcome(late, [], 0.0, 0.0, None, {}, 0.0), 1.0, course) == 3.0
    assert recovery_s(Outcome(late[:9], [], 0.0, 0.0, None, {}, 0.0), 1.0, course) is None
    assert recovery_s(Outcome([], [], 0.0, 0.0, None, {}, 0.0), None, course) is None
