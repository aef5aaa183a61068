"""One flow's life: restarts, giving up, and its end. No Spark here: queries are scripted."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

from spark_cec.errors import TransientError, Unsupported
from spark_cec.pipeline.declare import FlowError
from spark_cec.pipeline.graph import Graph, Node
from spark_cec.pipeline.query_errors import is_fatal, java_error
from spark_cec.pipeline.status import FlowStatus, PipelineStatus, State, mark_starving, mark_waiting
from spark_cec.pipeline.supervise import Patience, Supervisor
from tests.pipeline.support import WAIT_S, Java, Query, Source, becomes

QUICK = Patience(most=3, window_s=100.0, wait_s=0.001)


def life(start: Callable[[], Any], patience: Patience = QUICK, clock: Callable[[], float] = lambda: 0.0) -> Supervisor:
    supervisor = Supervisor("counts", start, patience, lambda: None, clock)
    supervisor.start()
    return supervisor


def ended(supervisor: Supervisor) -> FlowStatus:
    supervisor.join(WAIT_S)
    assert not supervisor.is_alive()
    return supervisor.status()


def test_a_flow_that_fails_is_started_again() -> None:
    queries = iter([Query(RuntimeError("lost an executor")), Query(RuntimeError("again")), Query()])
    status = ended(life(lambda: next(queries)))
    assert (status.state, status.restarts, status.error) == (State.ENDED, 2, "again")


def test_it_is_given_up_after_too_many_failures() -> None:
    starts: list[int] = []

    def start() -> Query:
        starts.append(1)
        return Query(RuntimeError(f"failure {len(starts)}"))

    status = ended(life(start))
    assert (status.state, status.restarts, status.error) == (State.FAILED, 3, "failure 4")
    assert len(starts) == 4


def test_failures_of_long_ago_do_not_count() -> None:
    times = iter(range(0, 2000, 60))
    starts: list[int] = []

    def start() -> Query:
        starts.append(1)
        return Query(RuntimeError("now and then")) if len(starts) < 20 else Query()

    status = ended(life(start, clock=lambda: float(next(times))))
    assert (status.state, status.restarts) == (State.ENDED, 19)


def test_what_a_restart_cannot_mend_fails_at_once() -> None:
    damage = Java("SparkException", Java("CecException", kind="DamagedLog"))
    status = ended(life(lambda: Query(RuntimeError("damaged"), damage)))
    assert (status.state, status.restarts, status.error) == (State.FAILED, 0, "damaged")


def test_a_start_that_fails_counts_as_a_failure_too() -> None:
    starts: list[int] = []

    def start() -> Query:
        starts.append(1)
        if len(starts) == 1:
            raise RuntimeError("no brokers")
        return Query()

    status = ended(life(start))
    assert (status.state, status.restarts) == (State.ENDED, 1)


CONNECT = Java("ConnectException", package="java.net.")
LOST_CONNECTIONS = [
    Java("AWSClientIOException", CONNECT),
    Java("HttpHostConnectException", above=CONNECT),
    Java("UnknownHostException", package="java.net."),
    Java("SocketTimeoutException", package="java.net.", message="Connect timed out"),
    Java("ConnectTimeoutException", package="org.apache.hadoop.net.", message="20000 millis timeout"),
    Java("SparkException", Java("CecException", kind="NoAnswer")),
    Java("KafkaException", Java("ConfigException", message="No resolvable bootstrap urls given in bootstrap.servers")),
]


def test_a_source_that_does_not_answer_is_tried_for_as_long_as_it_takes() -> None:
    """It answers at last; then a failure counts again."""
    silence = Java("QueryException", Java("TimeoutException", package="org.apache.kafka.common.errors."))
    seen: list[FlowStatus] = []
    starts: list[int] = []
    answers = threading.Event()
    fine = Query(lasts=True)
    fine.batch, fine.watermark = 7, "2026-11-27T12:04:10.250Z"

    def start() -> Any:
        starts.append(1)
        if len(starts) > 1:
            seen.append(supervisor.status())
        if len(starts) < 20:
            return Query(RuntimeError("no answer"), silence)
        answers.set()
        return fine

    supervisor = Supervisor("counts", start, QUICK, lambda: None, lambda: 0.0, servers=("k1:9092",))
    supervisor.start()
    assert answers.wait(WAIT_S)
    becomes(supervisor, State.RUNNING)
    assert len(starts) == 20
    assert {each.servers for each in seen} == {("k1:9092",)}
    since = {each.away_since_ms for each in seen}
    assert len(since) == 1 and None not in since, "since the first time"
    assert all(each.state is State.RESTARTING and each.error == "no answer" for each in seen)
    status = supervisor.status()
    assert (status.away_since_ms, status.servers, status.batch, status.restarts) == (None, (), 7, 19)
    assert status.complete_to_ms == 1_795_781_050_250
    supervisor.stop()
    assert ended(supervisor).complete_to_ms == status.complete_to_ms


@pytest.mark.parametrize("package", ["java.util.concurrent.", ""])
def test_another_timeout_counts(package: str) -> None:
    timeout = Java("TimeoutException", package=package)
    status = ended(life(lambda: Query(RuntimeError("late"), timeout)))
    assert (status.state, status.away_since_ms) == (State.FAILED, None)


@pytest.mark.parametrize("lost", LOST_CONNECTIONS)
def test_an_address_without_an_answer_counts_until_the_flow_has_had_a_batch(lost: Java) -> None:
    """It may be wrong. The batch may be one of an earlier run."""
    status = ended(life(lambda: Query(RuntimeError("nobody is there"), lost)))
    assert (status.state, status.away_since_ms) == (State.FAILED, None)
    starts: list[int] = []
    servers = set[tuple[str, ...]]()

    def start() -> Any:
        starts.append(1)
        servers.add(supervisor.status().servers)
        return Query(RuntimeError("nobody is there"), lost) if len(starts) < 20 else Query()

    supervisor = Supervisor(
        "counts", start, QUICK, lambda: None, lambda: 0.0, has_run=lambda: True, servers=("k1:9092",)
    )
    supervisor.start()
    assert ended(supervisor).state is State.ENDED and len(starts) == 20
    below = lost.getCause()
    is_of_kafka = below is not None and "bootstrap" in str(below.getMessage())
    assert servers == ({(), ("k1:9092",)} if is_of_kafka else {()}), "the storage may be away"


def test_a_request_that_takes_too_long_counts() -> None:
    late = Java("SocketTimeoutException", package="java.net.", message="Read timed out")

    def start() -> Any:
        return Query(RuntimeError("late"), late)

    supervisor = Supervisor("counts", start, QUICK, lambda: None, lambda: 0.0, has_run=lambda: True)
    supervisor.start()
    assert ended(supervisor).state is State.FAILED


def test_an_address_that_had_answered_in_this_run_is_right() -> None:
    starts: list[int] = []
    first = Query(RuntimeError("nobody is there any more"), LOST_CONNECTIONS[0])
    first.batch = 3

    def start() -> Query:
        starts.append(1)
        if len(starts) == 1:
            return first
        return Query(RuntimeError("nobody is there"), LOST_CONNECTIONS[0]) if len(starts) < 20 else Query()

    assert ended(life(start)).state is State.ENDED and len(starts) == 20


def test_stop_ends_a_query_that_runs_and_nothing_starts_again() -> None:
    begun = threading.Event()

    def start() -> Query:
        begun.set()
        return Query(lasts=True)

    supervisor = life(start)
    assert begun.wait(WAIT_S)
    supervisor.stop()
    assert ended(supervisor).state is State.STOPPED


def test_stop_ends_the_wait_before_a_restart() -> None:
    failed = threading.Event()

    def start() -> Query:
        failed.set()
        return Query(RuntimeError("down"))

    supervisor = life(start, Patience(most=5, window_s=1e9, wait_s=1e6))
    assert failed.wait(WAIT_S)
    supervisor.stop()
    assert ended(supervisor).state is State.STOPPED


def test_an_error_while_it_is_being_stopped_is_no_failure() -> None:
    query = Query(RuntimeError("interrupted"), lasts=True)
    begun = threading.Event()

    def start() -> Query:
        begun.set()
        return query

    supervisor = life(start)
    assert begun.wait(WAIT_S)
    supervisor.stop()
    assert ended(supervisor).state is State.STOPPED


@pytest.mark.parametrize(
    ("java", "error", "fatal"),
    [
        (None, RuntimeError("x"), False),
        (None, NameError("x"), True),
        (Java("AnalysisException"), RuntimeError("x"), True),
        (Java("AnalysisException", Java("CecException", kind="Fenced")), RuntimeError("x"), True),
        (Java("CecException", kind="AgentUnavailable"), RuntimeError("x"), False),
        (Java("CecException", kind="RestartNeeded"), RuntimeError("x"), False),
        (Java("QueryException", Java("SparkException", Java("CecException", kind="NotKept"))), RuntimeError("x"), True),
        (Java("QueryException", Java("IOException")), RuntimeError("x"), False),
        (Java("CecException", Java("CecException", kind="DamagedLog"), kind="ReplayFailed"), RuntimeError("x"), True),
        (Java("CecException", Java("IOException"), kind="ReplayFailed"), RuntimeError("x"), False),
        (Java("QueryException", Java("CecException", kind="Divergence")), RuntimeError("x"), True),
        (Java("CecException", kind="NoLine"), RuntimeError("x"), True),
        (Java("CecException", kind="Fenced"), RuntimeError("x"), False),
        (None, Unsupported("x"), True),
        (None, TransientError("x"), False),
    ],
)
def test_what_is_fatal(java: Java | None, error: Exception, fatal: bool) -> None:
    assert is_fatal(java, error) is fatal


def test_what_is_behind_a_functions_failure_says_whether_it_is_fatal() -> None:
    def failed(error: Exception) -> FlowError:
        flow = FlowError("flow a: ...")
        flow.__cause__ = error
        return flow

    refused = RuntimeError("x")
    refused._origin = Java("AnalysisException")  # type: ignore[attr-defined]
    for error, fatal in ((NameError("x"), True), (OSError("x"), False), (refused, True)):
        assert is_fatal(java_error(failed(error)), failed(error)) is fatal


def test_causes_that_go_in_a_circle() -> None:
    first = Java("IOException")
    first._cause = Java("IOException", first)
    assert is_fatal(first, RuntimeError("x")) is False


def test_those_that_a_failed_flow_feeds_starve() -> None:
    graph = Graph("shop", {
        "a": Node("a"), "b": Node("b", ("a",)),
        "c": Node("c", ("b",), is_sink=True), "d": Node("d", ("a",), is_sink=True),
    })  # fmt: skip
    flows = [FlowStatus("a", State.RUNNING), FlowStatus("b", State.FAILED), FlowStatus("c", State.RUNNING),
             FlowStatus("d", State.RUNNING)]  # fmt: skip
    assert [(flow.state, flow.starves_for) for flow in mark_starving(graph, flows)] == [
        (State.RUNNING, ()), (State.FAILED, ()), (State.STARVING, ("b",)), (State.RUNNING, ()),
    ]  # fmt: skip


def test_those_below_a_source_that_does_not_answer_wait_for_it() -> None:
    graph = Graph("shop", {
        "web": Node("web"), "app": Node("app"), "counts": Node("counts", ("web", "app")),
        "other": Node("other", ("web",)), "board": Node("board", ("counts",), is_sink=True),
    })  # fmt: skip
    flows = [
        FlowStatus("web", State.RUNNING, complete_to_ms=9), FlowStatus("app", State.RESTARTING, away_since_ms=7),
        FlowStatus("counts", State.RUNNING, complete_to_ms=5), FlowStatus("other", State.RUNNING, complete_to_ms=5),
        FlowStatus("board", State.RUNNING),
    ]  # fmt: skip
    assert [flow.waits_for for flow in mark_waiting(graph, flows)] == [(), (), ("app",), (), ()]
    held = {"other": ("counts",), "counts": ("app",)}
    assert [flow.waits_for for flow in mark_waiting(graph, flows, held)] == [(), (), ("app",), ("counts",), ()]
    flows[2] = FlowStatus("counts", State.STOPPED, complete_to_ms=5)
    assert not any(flow.waits_for for flow in mark_waiting(graph, flows)), "it has ended"


def test_a_status_is_read_as_it_was_written() -> None:
    status = PipelineStatus("shop", "/data", 7, 1000, (
        FlowStatus("a", State.FAILED, 3, 2, "why"), FlowStatus("b", State.STARVING, None, 0, None, ("a",)),
    ))  # fmt: skip
    assert PipelineStatus.from_json(status.to_json()) == status
    assert [flow.name for flow in status.failed] == ["a"]
    assert not status.is_over


def test_a_flow_that_is_held_back_waits_and_runs_again() -> None:
    queries = [Query(lasts=True), Query(lasts=True), Query()]
    started = threading.Semaphore(0)

    def start() -> Query:
        started.release()
        return queries[3 - left.pop()]

    left = [1, 2, 3]
    supervisor = life(start)
    for _ in range(2):
        assert started.acquire(timeout=WAIT_S)
        supervisor.hold()
        becomes(supervisor, State.WAITING)
        supervisor.hold()
        supervisor.let_go()
    assert ended(supervisor).state is State.ENDED
    assert left == []


def test_a_flow_that_is_let_go_before_its_end_was_noticed_runs_again() -> None:
    """Its query has ended because it was held back: that is no end of the flow."""
    noticed = threading.Event()

    class Slow(Query):
        def awaitTermination(self) -> None:  # noqa: N802
            super().awaitTermination()
            assert noticed.wait(WAIT_S)

    queries = [Query(), Slow(lasts=True)]
    supervisor = life(queries.pop)
    becomes(supervisor, State.RUNNING)
    supervisor.hold()
    supervisor.let_go()
    noticed.set()
    assert ended(supervisor).state is State.ENDED
    assert queries == []


def test_an_error_while_a_flow_is_held_back_is_no_failure() -> None:
    queries = [Query(), Query(error=RuntimeError("cancelled"), lasts=True)]
    supervisor = life(queries.pop, Patience(most=0))
    becomes(supervisor, State.RUNNING)
    supervisor.hold()
    becomes(supervisor, State.WAITING)
    supervisor.let_go()
    assert ended(supervisor) == FlowStatus("counts", State.ENDED)


def test_a_flow_that_waits_can_be_stopped() -> None:
    supervisor = life(lambda: Query(lasts=True))
    becomes(supervisor, State.RUNNING)
    supervisor.hold()
    becomes(supervisor, State.WAITING)
    supervisor.stop()
    assert ended(supervisor).state is State.STOPPED


def test_a_flow_that_is_not_where_it_was_replays() -> None:
    first, second = Query(lasts=True), Query(lasts=True)
    queries = [second, first]
    supervisor = life(queries.pop)
    first.batch = 9
    becomes(supervisor, State.RUNNING)
    supervisor.hold()
    becomes(supervisor, State.WAITING)
    second.batch = 7
    supervisor.let_go()
    becomes(supervisor, State.REPLAYING)
    second.batch = 9
    becomes(supervisor, State.RUNNING)
    supervisor.stop()
    assert ended(supervisor).batch == 9


def test_lost_executors_are_no_reason_to_give_a_flow_up() -> None:
    """Each time state was lost with an executor, and a restart has it again."""
    lost = Java("StreamingQueryException", Java("CecException", kind="RestartNeeded"))
    queries = [Query(), *(Query(error=RuntimeError("lost"), java=lost) for _ in range(9))]
    done = ended(life(queries.pop, Patience(most=2, wait_s=0.001)))
    assert done.state is State.ENDED
    assert done.restarts == 9


def test_a_checkpoint_that_can_never_be_taken_is() -> None:
    failing = Java("StreamingQueryException", Java("CecException", kind="CheckpointFailed"))
    queries = [Query(error=RuntimeError("the disk is full"), java=failing) for _ in range(9)]
    done = ended(life(queries.pop, Patience(most=2, wait_s=0.001)))
    assert (done.state, done.error, done.restarts) == (State.FAILED, "the disk is full", 2)


def test_a_session_that_ends_under_a_flow_fails_it() -> None:
    class Gone(Query):
        def exception(self) -> Query:
            raise ConnectionError("the JVM is gone")

    failed = ended(life(lambda: Gone(error=ConnectionError("the JVM is gone")), Patience(most=0)))
    assert failed.state is State.FAILED
    assert failed.error == "the JVM is gone"


@pytest.mark.parametrize(
    ("sources", "behind"),
    [
        ([Source("7", "7"), Source("3", "9")], 6),
        ([Source("7", "7")], 0),
        ([Source('{"batch":3,"of":"1f1f1f1f-00c0ffee"}', "9")], 6),
        ([Source('{"orders":{"0":5,"1":9}}', '{"orders":{"0":50,"1":9}}', rows=20)], 3),
        ([Source('{"orders":{"0":5}}', '{"orders":{"0":50}}')], 0),  # it had none of them: nothing to go by
        ([Source('{"logOffset":5}', '{"logOffset":9}', rows=1)], 0),
        ([Source("12", None)], 0),
        ([], 0),
    ],
)
def test_how_far_a_flow_is_behind(sources: list[Source], behind: int) -> None:
    query = Query(lasts=True)
    query.read = sources
    supervisor = life(lambda: query)
    becomes(supervisor, State.RUNNING)
    assert supervisor.status().behind is None, "before its first batch"
    query.batch = 0
    assert supervisor.status().behind == behind
    supervisor.stop()
    assert ended(supervisor).behind == behind


def test_a_flow_that_is_held_as_it_fails_rests_until_it_is_let_go() -> None:
    """As where all have to go back before any of them starts again."""
    queries = iter([Query(RuntimeError("lost an executor")), Query()])
    waits, names = threading.Event(), list[str]()

    def changed() -> None:
        if supervisor.status().state is State.WAITING:
            waits.set()

    def failed(name: str) -> None:
        assert not supervisor.is_at_rest, "it is told before that"
        names.append(name)
        supervisor.hold()

    def start() -> Any:
        return next(queries)

    supervisor = Supervisor("counts", start, QUICK, changed, lambda: 0.0, failed)
    assert supervisor.is_at_rest
    supervisor.start()
    assert waits.wait(WAIT_S)
    assert supervisor.is_at_rest and names == ["counts"]
    supervisor.let_go()
    status = ended(supervisor)
    assert (status.state, status.restarts) == (State.ENDED, 1)
    assert supervisor.is_at_rest


def test_a_flow_that_is_given_up_has_failed_and_says_why() -> None:
    def start() -> Any:
        return Query(RuntimeError("lost an executor"))

    supervisor = Supervisor("counts", start, QUICK, lambda: None, lambda: 0.0, lambda _: supervisor.give_up("no line"))
    supervisor.start()
    status = ended(supervisor)
    assert (status.state, status.error) == (State.FAILED, "no line")


def test_a_flow_that_fails_for_good_is_not_at_rest_before_it_is_over() -> None:
    """Else the other flows of a protocol would be taken back, and would go on without it."""
    before_the_end: list[tuple[bool, bool]] = []

    class Watched(Supervisor):
        def _end(self, state: State, error: str | None = None) -> None:
            before_the_end.append((self.is_at_rest, self.is_over))
            super()._end(state, error)

    start: Callable[[], Any] = lambda: Query(RuntimeError("x"), Java("AnalysisException"))  # noqa: E731
    supervisor = Watched("counts", start, QUICK, lambda: None)
    supervisor.start()
    assert ended(supervisor).state is State.FAILED
    assert before_the_end == [(False, False)]
    assert supervisor.is_at_rest and supervisor.is_over
