"""The simulator of correlated failures: recoveries worked by hand, and what must hold for every one."""

from __future__ import annotations

import json
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from spark_cec.cli.app import app
from spark_cec.recovery.progressive import Failure, Query
from spark_cec_lab.simulation.pipelines.comparison import distance, play, summary
from spark_cec_lab.simulation.pipelines.simulate import (
    PAPER_ARRIVALS_S,
    Arrivals,
    Case,
    Cluster,
    Strategy,
    fail,
    recover,
)
from spark_cec_lab.simulation.pipelines.topologies import random_topology

CLUSTER = Cluster(nodes=2, lost=2, cores=1.0, restore_s=10.0, catch_up=2.0)
ONE = Failure({"a": 1.0, "b": 1.0}, [Query("a", frozenset("a")), Query("b", frozenset("ab"))])


def times(case: Case, strategy: Strategy) -> dict[str, float]:
    return dict(recover(case, CLUSTER, strategy).available_s)


def test_by_hand() -> None:
    """Cores come at 100 and 200 s. Started at s, with 10 s to restore, at twice the rate: current at 2 (s + 10)."""
    case = Case(ONE, 0.0, [(100.0, 1.0), (200.0, 1.0)])
    assert times(case, Strategy.PROGRESSIVE) == {"a": 220.0, "b": 420.0}
    assert times(case, Strategy.BLOCKING) == {"a": 420.0, "b": 420.0}
    # From 100 s at half the share: restored at 120 s, 120 s behind, and no faster than the input. From 200 s on: 1 s/s.
    assert times(case, Strategy.AT_ONCE) == {"a": 320.0, "b": 320.0}


def test_by_hand_with_room_at_once() -> None:
    case = Case(ONE, 2.0, [])
    for strategy in Strategy:
        assert times(case, strategy) == {"a": 20.0, "b": 20.0}


def test_by_hand_where_half_a_share_falls_behind() -> None:
    """A third of what is needed: restored after 30 s, then 2/3 of the input's rate until the rest comes at 90 s."""
    case = Case(Failure({"a": 3.0}, [Query("a", frozenset("a"))]), 1.0, [(90.0, 2.0)])
    assert times(case, Strategy.AT_ONCE)["a"] == pytest.approx(90.0 + (30.0 + 60.0 / 3.0))


@pytest.mark.parametrize("strategy", list(Strategy))
def test_what_never_has_room_never_comes(strategy: Strategy) -> None:
    case = Case(Failure({"a": 3.0}, [Query("a", frozenset("a"))]), 0.0, [(10.0, 1.0)])
    outcome = recover(case, CLUSTER, strategy)
    assert outcome.available_s == {"a": math.inf}
    assert outcome.until(1.0) == math.inf and outcome.share(1e9) == 0.0


@given(
    st.integers(15, 80), st.integers(2, 20), st.floats(0.1, 1.0), st.sampled_from(Arrivals), st.integers(0, 10_000)
)
@settings(deadline=None, max_examples=60)
def test_every_recovery(operators: int, nodes: int, part: float, arrivals: Arrivals, seed: int) -> None:
    cluster = Cluster(nodes=nodes, lost=max(1, int(nodes * part)))
    topology = random_topology(operators, nodes * cluster.cores * cluster.load, seed)
    assert topology == random_topology(operators, nodes * cluster.cores * cluster.load, seed)
    assert math.fsum(topology.costs.values()) == pytest.approx(nodes * cluster.cores * cluster.load)
    read = {name for each in topology.inputs.values() for name in each}
    assert {query.name for query in topology.queries} == topology.inputs.keys() - read
    case = fail(topology, cluster, arrivals, seed)
    progressive, blocking, at_once = (recover(case, cluster, strategy) for strategy in Strategy)
    assert len(case.arrivals) == cluster.lost
    if arrivals is Arrivals.PAPER:
        assert all(PAPER_ARRIVALS_S[0] <= at <= PAPER_ARRIVALS_S[1] for at, _ in case.arrivals)
    # A load below 1 fits when all nodes are back, so everything comes back, and nothing before it was started.
    for outcome in (progressive, blocking, at_once):
        assert outcome.available_s.keys() == {query.name for query in case.failure.queries}
        assert all(cluster.restore_s <= each < math.inf for each in outcome.available_s.values())
    # Whoever waits for room for all waits as long as the last of those who do not, and no query is worse off for that.
    for name, at in progressive.available_s.items():
        assert at <= blocking.available_s[name] + 1e-6
    started = [flow for _, _, plan in progressive.decided for flow in plan.flows]
    assert len(started) == len(set(started))
    assert all(plan.cost <= free * (1 + 1e-6) + 1e-6 for free, _, plan in progressive.decided)


def test_a_query_has_all_that_its_operators_read() -> None:
    topology = random_topology(200, 10.0, 7)
    for query in topology.queries:
        assert all(set(topology.inputs[flow]) <= query.flows for flow in query.flows)


def test_the_comparison_with_the_optimum() -> None:
    rounds = play(20, Cluster(), Arrivals.PAPER, list(Strategy), range(3))
    found = distance(rounds, 10.0, lambda done, of: None)
    assert found["unsolved"] == 0 and found["decisions"] > 0
    assert 0.0 < found["ratio"][1] <= found["ratio"][2] <= 1.0 + 1e-9
    assert [line["strategy"] for line in summary(rounds)] == ["progressive", "blocking", "at-once"]


def test_the_command() -> None:
    done = CliRunner().invoke(app, ["pipeline", "simulate", "--rounds", "2", "--seed", "5", "--json"])
    assert done.exit_code == 0, done.stderr
    again = CliRunner().invoke(app, ["pipeline", "simulate", "--rounds", "2", "--seed", "5", "--json"])
    first, second = (json.loads(each.stdout) for each in (done, again))
    for answer in (first, second):
        for line in answer["strategies"]:
            line.pop("planner_ms")
    assert first == second
    assert first["strategies"][1]["until_50%_s"] == first["strategies"][1]["until_100%_s"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [(["--lost", "11"], "--lost 11: there are 10 nodes"), (["--catch-up", "1"], "--catch-up 1: give more than 1")],
)
def test_wrong_arguments_are_refused_in_a_line(arguments: list[str], words: str) -> None:
    done = CliRunner().invoke(app, ["pipeline", "simulate", *arguments])
    assert (done.exit_code, done.stdout) == (2, "")
    assert words in done.stderr and len(done.stderr.splitlines()) == 1
