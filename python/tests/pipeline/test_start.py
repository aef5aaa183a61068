"""A start of a pipeline: all flows run, or nothing is left of it. No Spark here: queries are scripted."""

from __future__ import annotations

import threading
import time
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import pytest

from spark_cec.pipeline import start
from spark_cec.pipeline.capacity import ClusterLook
from spark_cec.pipeline.capacity_keeper import CapacityKeeper
from spark_cec.pipeline.declare import Declaration
from spark_cec.pipeline.graph import GraphError
from spark_cec.pipeline.home import PipelineHome
from spark_cec.pipeline.options import Within
from spark_cec.pipeline.running import PipelineFailed, RunningPipeline
from spark_cec.pipeline.runs import ProtocolRuns
from spark_cec.pipeline.start import start_pipeline
from spark_cec.pipeline.status import FlowStatus, PipelineStatus, State
from spark_cec.pipeline.supervise import Supervisor
from tests.pipeline.support import WAIT_S, Query, becomes


class Cluster:
    """One executor, in `attached` until nobody looks any more."""

    is_elastic = False

    def __init__(self, attached: list[Cluster]) -> None:
        self._attached = attached
        attached.append(self)

    def look(self, _: Mapping[str, str]) -> ClusterLook:
        return ClusterLook(time.monotonic(), {"1": 4}, {})

    def precede(self, flow: str, others: bool) -> None:
        pass

    def detach(self) -> None:
        if self in self._attached:
            self._attached.remove(self)


class Application:
    """An application without Spark: the queries that were started, and who looks at its executors."""

    def __init__(self, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.home = str(home)
        self.queries: list[Query] = []
        self.attached: list[Cluster] = []
        self.supervisors: list[Supervisor] = []
        monkeypatch.setattr(start, "Cluster", lambda _: Cluster(self.attached))
        monkeypatch.setattr(start, "Flows", lambda *_: self)
        monkeypatch.setattr(start, "use_storage_settings", lambda _: None)
        made = Supervisor.__init__

        def make(supervisor: Supervisor, *arguments: Any, **named: Any) -> None:
            made(supervisor, *arguments, **named)
            self.supervisors.append(supervisor)

        monkeypatch.setattr(Supervisor, "__init__", make)

    def schemas(self) -> dict[str, str]:
        return {}

    def keeps(self) -> dict[str, int]:
        return {}

    def bounds(self) -> dict[str, Within]:
        return {}

    def servers(self) -> dict[str, tuple[str, ...]]:
        return {"a": ("kafka-2:9092",)}

    def settings(self) -> dict[str, dict[str, str]]:
        return {}

    def constants(self) -> dict[str, tuple[str, ...]]:
        return {}

    def bounded(self) -> dict[str, frozenset[str]]:
        return {}

    def find_blocked(self, _flow: str, _absent: Collection[str]) -> tuple[str, ...]:
        return ()

    def start(self, _: str) -> Query:
        self.queries.append(Query(lasts=True))
        return self.queries[-1]

    def start_pipeline(self, protocol: str = "cec", **how: Any) -> RunningPipeline:
        made = Declaration("shop", self.home, protocol=protocol)
        made.flow(name="a")(lambda spark: spark)
        made.sink(name="out")(lambda a: a)
        return start_pipeline(made, None, **how)  # type: ignore[arg-type]

    def has_nothing_left(self) -> bool:
        """Whether no query runs, nobody looks at the executors, and another driver can have the home."""
        other = PipelineHome(self.home)
        is_free = other._leases.hold(self.home, other._storage, wait_s=0.0)
        other.release()
        ended = all(query._ended.is_set() for query in self.queries)
        return is_free and ended and not self.attached and not any(each.is_alive() for each in self.supervisors)


@pytest.fixture
def application(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Application:
    return Application(tmp_path, monkeypatch)


@pytest.mark.parametrize("protocol", ["cec", "uncoordinated"])
def test_all_flows_run_until_they_are_stopped(protocol: str, application: Application) -> None:
    running = application.start_pipeline(protocol)
    for supervisor in application.supervisors:
        becomes(supervisor, State.RUNNING)
    assert not running.is_over and application.attached
    assert [flow.state for flow in running.stop().flows] == [State.STOPPED, State.STOPPED]
    assert running.is_over and application.has_nothing_left()
    assert running.status().protocol == protocol


def test_a_start_that_fails_leaves_the_status_as_it_was(
    application: Application, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may say that a flow has failed. Nobody would see that in a status that says "stopped"."""
    home = PipelineHome(application.home)
    with monkeypatch.context() as failing:
        failing.setattr(CapacityKeeper, "prioritize_caught_up_flows", fail)
        with pytest.raises(OSError, match="the step fails"):
            application.start_pipeline()
        assert {flow.state for flow in home.status().flows} == {State.STOPPED}, "there was none"
        said = PipelineStatus("shop", application.home, 1, 7, (FlowStatus("a", State.FAILED, error="divided by zero"),))
        home.write_status(said)
        with pytest.raises(OSError, match="the step fails"):
            application.start_pipeline()
        assert home.status() == said
    assert application.has_nothing_left()


def fail(*_: Any, **__: Any) -> None:
    raise OSError("the step fails")


@pytest.mark.parametrize("failing", [
    (start, "Cluster"), (PipelineHome, "take"), (ProtocolRuns, "begin_run"), (start, "Capacity"),
    (CapacityKeeper, "prioritize_caught_up_flows"),
], ids=lambda failing: failing[1])  # fmt: skip
def test_a_step_that_fails_undoes_the_steps_before(
    failing: tuple[Any, str], application: Application, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(*failing, fail)
    with pytest.raises(OSError, match="the step fails"):
        application.start_pipeline("uncoordinated")
    assert application.has_nothing_left()


@pytest.mark.parametrize("error", [RuntimeError("can't start new thread"), KeyboardInterrupt()], ids=repr)
@pytest.mark.parametrize("started", range(5))
def test_a_thread_that_cannot_start_stops_the_flows_that_run(
    started: int, error: BaseException, application: Application, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The caller has nothing with which to stop them, and the next driver would be refused."""
    begin, begun, raised = threading.Thread.start, list[threading.Thread](), list[BaseException]()

    def begin_some(thread: threading.Thread) -> None:
        if len(begun) == started and not (raised and isinstance(error, KeyboardInterrupt)):
            raised.append(error)
            raise error
        begun.append(thread)
        begin(thread)

    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", begin_some)
        with pytest.raises(type(error)):
            application.start_pipeline("uncoordinated")
    assert application.has_nothing_left()
    running = application.start_pipeline("uncoordinated")
    running.stop()


def test_a_protocol_runs_all_flows_or_none(application: Application) -> None:
    with pytest.raises(GraphError, match="1 of its flows were chosen: under protocol='uncoordinated' all flows run"):
        application.start_pipeline("uncoordinated", only=["a"])


@pytest.mark.parametrize("protocol", ["cec", "uncoordinated"])
def test_a_driver_whose_home_another_one_has_taken_stops_and_writes_nothing_more(
    protocol: str, application: Application
) -> None:
    """It was away for long, as in a pause, and its lock went to another driver, which notes itself."""
    running, home = application.start_pipeline(protocol), Path(application.home)
    deadline, pause = time.monotonic() + WAIT_S, threading.Event()
    while [flow.state for flow in PipelineHome(application.home).status().flows] != [State.RUNNING, State.RUNNING]:
        assert time.monotonic() < deadline
        pause.wait(0.02)
    (home / "lock").write_text("4711 0123456789abcdef")
    with pytest.raises(PipelineFailed, match=f"another driver runs the pipeline at {home}, so this one stops"):
        running.wait(30.0)
    running.stop()
    assert [flow.state for flow in PipelineHome(application.home).status().flows] == [State.RUNNING, State.RUNNING]
    assert all(query._ended.is_set() for query in application.queries)


def test_a_driver_that_has_lost_its_home_stops_each_query_once(
    application: Application, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each stop has a thread, and a query may take minutes to end."""
    monkeypatch.setattr("spark_cec.pipeline.running.STATUS_EVERY_S", 0.02)
    running, home, stops = application.start_pipeline(), Path(application.home), list[Query]()
    for supervisor in application.supervisors:
        becomes(supervisor, State.RUNNING)
    monkeypatch.setattr(Query, "stop", lambda query: stops.append(query))
    looks, status = threading.Semaphore(0), running.status

    def look() -> PipelineStatus:
        looks.release()
        return status()

    monkeypatch.setattr(running, "status", look)
    (home / "lock").write_text("4711 0123456789abcdef")
    for _ in range(20):
        assert looks.acquire(timeout=WAIT_S)
    assert len(stops) == len(application.queries)
    for query in application.queries:
        query._ended.set()
    running.stop()
