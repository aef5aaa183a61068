"""A failure of one flow under a protocol: all go back together, or all stop. No Spark here: queries are scripted."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection
from typing import Any

import pytest

from spark_cec.errors import DamagedLog, NewerFormat, TransientError
from spark_cec.pipeline import joint_recovery
from spark_cec.pipeline.joint_recovery import JointRecovery
from spark_cec.pipeline.status import State
from spark_cec.pipeline.supervise import Patience, Supervisor
from tests.pipeline.support import WAIT_S, Java, Query, becomes, eventually

GRACE_S = 0.3
"""So long a step takes that another thread may overtake."""

Start = Callable[[], Any]


class Runs:
    """The runs of a protocol: how often one has begun, after which failures. `sink` takes no part."""

    def __init__(self, *errors: Exception) -> None:
        self.begun: list[frozenset[str]] = []
        self._errors = list(errors)

    def takes_part(self, flow: str) -> bool:
        return flow != "sink"

    def begin_run(self, failed: Collection[str]) -> None:
        if self._errors:
            raise self._errors.pop(0)
        self.begun.append(frozenset(failed))


class Flows:
    """The threads of flows, and the one that recovers them."""

    def __init__(self, runs: Runs, changed: Callable[[], None] = lambda: None, **starts: Start) -> None:
        self.supervisors: dict[str, Supervisor] = {}
        self.recovery = JointRecovery("shop", self.supervisors, runs)  # type: ignore[arg-type]
        for name, start in starts.items():
            patience = Patience(most=3, wait_s=0.001)
            self.supervisors[name] = Supervisor(name, start, patience, changed, failed=self.recovery.note_failure)

    def __getitem__(self, name: str) -> Supervisor:
        return self.supervisors[name]

    def start(self) -> None:
        for each in (*self.supervisors.values(), self.recovery):
            each.start()

    def end(self) -> None:
        for each in self.supervisors.values():
            each.stop()
        for thread in (*self.supervisors.values(), self.recovery):
            thread.join(WAIT_S)
            assert not thread.is_alive()


@pytest.fixture(autouse=True)
def quickly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(joint_recovery, "POLL_S", 0.001)
    monkeypatch.setattr(joint_recovery, "RETRY_S", 0.001)


def lasting() -> Query:
    return Query(lasts=True)


def scripted(*queries: Query) -> Start:
    """These queries, and behind them queries that last."""
    left = list(queries)
    return lambda: left.pop(0) if left else lasting()


def test_all_go_back_after_a_failure() -> None:
    runs = Runs()
    flows = Flows(runs, a=scripted(Query(RuntimeError("lost"))), b=lasting, sink=lasting)
    flows.start()
    eventually(lambda: len(runs.begun) == 1)
    assert runs.begun == [{"a"}]
    for name in ("a", "b", "sink"):
        becomes(flows[name], State.RUNNING)
    assert flows["sink"].status().restarts == 0
    flows.end()


def test_a_failure_of_a_flow_that_takes_no_part_concerns_that_flow() -> None:
    runs = Runs()
    flows = Flows(runs, a=lasting, sink=scripted(Query(RuntimeError("lost"))))
    flows.start()
    eventually(lambda: flows["sink"].status().restarts == 1)
    becomes(flows["sink"], State.RUNNING)
    flows.end()
    assert runs.begun == []


def test_flows_go_back_again_until_it_is_done() -> None:
    runs = Runs(TransientError("the storage is slow"), OSError("the storage is gone"))
    flows = Flows(runs, a=scripted(Query(RuntimeError("lost"))), b=lasting)
    flows.start()
    eventually(lambda: len(runs.begun) == 1)
    becomes(flows["b"], State.RUNNING)
    flows.end()


@pytest.mark.parametrize("error", [DamagedLog("x", -1, "y"), NewerFormat("protocol.json", "version 9")])
def test_flows_without_a_line_are_given_up(error: Exception) -> None:
    """No later try would find one."""
    flows = Flows(Runs(error), a=scripted(Query(RuntimeError("lost"))), b=lasting, sink=lasting)
    flows.start()
    eventually(lambda: not any(each.is_alive() for each in flows.supervisors.values()))
    for name in ("a", "b"):
        assert flows[name].status().state is State.FAILED
        assert f"the flows cannot go back to one line: {error}" in str(flows[name].status().error)
    assert flows["sink"].status().state is State.STOPPED
    flows.end()


def test_a_flow_that_fails_for_good_stops_the_others() -> None:
    """Also if its thread takes time to end: they must not go on without it."""
    runs = Runs()
    fatal = Query(RuntimeError("no such column"), Java("AnalysisException"))

    def changed() -> None:
        if flows["a"].status().state is State.FAILED:
            time.sleep(GRACE_S)

    flows = Flows(runs, changed, a=scripted(fatal), b=lasting)
    flows.start()
    eventually(lambda: not any(each.is_alive() for each in flows.supervisors.values()))
    assert [flows[name].status().state for name in ("a", "b")] == [State.FAILED, State.STOPPED]
    assert runs.begun == []
    flows.end()


def test_a_flow_that_fails_while_the_others_are_let_go_holds_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else they would run on, and it would wait for them for ever."""
    runs, fails_again = Runs(), threading.Event()
    left = [Query(RuntimeError("lost")), None]

    def start() -> Query:
        query = left.pop(0) if left else lasting()
        if query is None:
            fails_again.set()
            raise RuntimeError("lost again")
        return query

    flows = Flows(runs, a=start, b=lasting)
    let_go = flows["b"].let_go

    def let_go_late() -> None:
        assert fails_again.wait(WAIT_S)
        time.sleep(GRACE_S)
        let_go()

    monkeypatch.setattr(flows["b"], "let_go", let_go_late)
    flows.start()
    eventually(lambda: len(runs.begun) == 2)
    for name in ("a", "b"):
        becomes(flows[name], State.RUNNING)
    flows.end()


def test_sinks_stop_with_the_only_flow_that_takes_part() -> None:
    """They would wait for rows for ever, and so would the pipeline's driver."""
    flows = Flows(Runs(), a=scripted(Query(RuntimeError("no such column"), Java("AnalysisException"))), sink=lasting)
    flows.start()
    eventually(lambda: not any(each.is_alive() for each in flows.supervisors.values()))
    assert [flows[name].status().state for name in ("a", "sink")] == [State.FAILED, State.STOPPED]
    flows.end()
