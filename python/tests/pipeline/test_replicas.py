"""What cannot run in replicas is refused before Spark starts, and so is a home of the other kind."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from spark_cec.adapters.fsspec_storage import open_storage
from spark_cec.agent.lease import CheckpointLeases
from spark_cec.pipeline import Pipeline, outside
from spark_cec.pipeline.graph import Graph, GraphError
from spark_cec.pipeline.home import PipelineHome, open_homes
from spark_cec.pipeline.replicas import (
    Replica,
    Sight,
    Verdict,
    check_replicas,
    describe_reads,
    find_interval_ms,
    judge_other_program,
    parse_replica,
    refuse_other_graph,
    refuse_some_sinks,
)
from spark_cec.pipeline.status import FlowStatus, PipelineStatus, State

MARKS = {"web": ("time", "2 seconds")}


def shop(home: Path, flow: dict[str, Any] | None = None, sink: dict[str, Any] | None = None, **how: Any) -> Pipeline:
    made = Pipeline("shop", str(home), **how)

    @made.flow
    def web(spark: Any) -> Any: ...

    flow_options: dict[str, Any] = {"bucket": "1s", "watermarks": MARKS, **(flow or {})}

    @made.flow(**flow_options)  # type: ignore[untyped-decorator]
    def totals(web: Any) -> Any: ...

    sink_options: dict[str, Any] = {"bucket": "1s", "watermarks": {"totals": ("time", "0 seconds")}, **(sink or {})}

    @made.sink(**sink_options)  # type: ignore[untyped-decorator]
    def board(totals: Any) -> Any: ...

    return made


def check(made: Pipeline) -> None:
    check_replicas(made.graph(), made.flows, is_cec=made.checkpointing.is_cec)


def test_a_pipeline_by_buckets_may_run_in_replicas(tmp_path: Path) -> None:
    check(shop(tmp_path))
    check(shop(tmp_path, {"trigger": {"processingTime": "3 seconds"}}))
    check(shop(tmp_path, {"bucket": None, "within": "30s"}, {"tentative": True}))
    check(shop(tmp_path, {"keep": "10g"}))


@pytest.mark.parametrize(("flow", "sink", "says"), [
    ({"bucket": None, "watermarks": None}, None, "totals reads whole batches"),
    ({"bucket": None, "watermarks": None, "output_mode": "update"}, None, "output_mode='update'"),
    ({"waits_at_most": "6h"}, None, "totals has waits_at_most"),
    ({"keep": "10g", "at_keep": "go on"}, None, "totals has at_keep='go on', and each replica"),
    (None, {"keep": "10g"}, "board has keep and reads either replica's channels"),
    ({"reads": {"failOnDataLoss": "false"}}, None, "failOnDataLoss=false"),
    (None, {"bucket": None, "watermarks": None}, "board reads whole batches"),
    (None, {"bucket": None, "watermarks": None, "tentative": True}, "board reads whole batches"),
    (None, {"bucket": None, "watermarks": None, "trigger": {"availableNow": True}}, "availableNow"),
])  # fmt: skip
def test_what_replicas_cannot_have_is_named(
    flow: dict[str, Any] | None, sink: dict[str, Any] | None, says: str, tmp_path: Path
) -> None:
    with pytest.raises(GraphError) as refused:
        check(shop(tmp_path, flow, sink))
    assert says in "; ".join(refused.value.complaints)
    assert all("or run the pipeline without replicas" in each for each in refused.value.complaints)


def test_a_sink_does_not_read_a_source_flow(tmp_path: Path) -> None:
    made = shop(tmp_path)

    @made.sink(bucket="1s", watermarks=MARKS)
    def raw(web: Any) -> Any: ...

    with pytest.raises(GraphError, match="let a flow by buckets stand between them"):
        check(made)


def test_no_sink_has_the_name_of_the_file_that_locks_the_sinks(tmp_path: Path) -> None:
    """Its checkpoint would be a directory in the place of that file. A flow of that name is elsewhere."""
    made = Pipeline("shop", str(tmp_path))

    @made.flow
    def web(spark: Any) -> Any: ...

    @made.flow(name="lock", bucket="1s", watermarks=MARKS, kept=True)
    def totals(web: Any) -> Any: ...

    check(made)
    made = shop(tmp_path)

    @made.sink(name="lock", bucket="1s", watermarks={"totals": ("time", "0 seconds")})
    def second(totals: Any) -> Any: ...

    lock = CheckpointLeases()
    sinks = Replica("a", str(tmp_path)).sinks
    lock.hold(sinks, open_storage(sinks))
    taken = {path.name for path in Path(sinks).iterdir()}
    lock.release(sinks)
    assert taken == {"lock"}, "no other file there has a name that a sink may have"
    with pytest.raises(GraphError, match="lock has the name of the file that locks the sinks: give it another name"):
        check(made)


def test_another_protocol_and_cycles_are_refused(tmp_path: Path) -> None:
    made = Pipeline("shop", str(tmp_path), protocol="uncoordinated")

    @made.flow(schema="n BIGINT")
    def loop(spark: Any, loop: Any) -> Any: ...

    @made.sink
    def out(loop: Any) -> Any: ...

    with pytest.raises(GraphError) as refused:
        check(made)
    text = "; ".join(refused.value.complaints)
    assert "replicas need the protocol 'cec'" in text and "loop feeds itself" in text


def test_only_two_names_are_known(tmp_path: Path) -> None:
    assert parse_replica("shop", str(tmp_path), None) is None
    with pytest.raises(GraphError, match="there is no replica 'c': give a or b"):
        parse_replica("shop", str(tmp_path), "c")


def test_a_home_stays_of_its_kind(tmp_path: Path) -> None:
    plain, doubled = tmp_path / "plain", tmp_path / "doubled"
    graph = shop(plain).graph()
    PipelineHome.of(graph, str(plain), None).take(graph, {})
    with pytest.raises(GraphError, match="was begun without replicas"):
        PipelineHome.of(graph, str(plain), Replica("a", str(plain)))
    PipelineHome.of(graph, str(doubled), Replica("b", str(doubled))).take(graph, {})
    with pytest.raises(GraphError, match="was begun with replicas"):
        PipelineHome.of(graph, str(doubled), None)
    assert list(open_homes(str(doubled))) == ["b"] and list(open_homes(str(plain))) == [""]


def test_sinks_are_outside_of_both_replicas(tmp_path: Path) -> None:
    graph = shop(tmp_path).graph()
    home = PipelineHome.of(graph, "/shop", Replica("a", "/shop"))
    assert home.flow("totals") == "/shop/replicas/a/flows/totals"
    assert home.flow("board") == "/shop/sinks/board"
    assert [each.path for each in Replica("a", "/shop").copies("totals")] == [
        "/shop/replicas/a/flows/totals", "/shop/replicas/b/flows/totals",
    ]  # fmt: skip


@pytest.mark.parametrize("runs", [True, False])
@pytest.mark.parametrize("clock_s", [-40, 0, 40])
def test_while_one_replica_runs_the_other_one_has_the_same_program(
    clock_s: int, runs: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`clock_s`: how far the clock of the other machine is ahead."""
    monkeypatch.setattr("spark_cec.pipeline.replicas.FRESH_S", 30.0 if runs else 0.5)
    first, second = shop(tmp_path), shop(tmp_path, {"bucket": "2s"})
    graph = first.graph()
    theirs = PipelineHome.of(graph, str(tmp_path), Replica("b", str(tmp_path)))
    theirs.take(graph, {}, reads=describe_reads(first.flows, {}, {}))
    ends = threading.Event()

    def write() -> None:
        wall_ms = int((time.time() + clock_s) * 1000)
        theirs.write_status(PipelineStatus("shop", theirs.home, 1, wall_ms, (FlowStatus("web", State.RUNNING),)))

    def keep_writing() -> None:
        while not ends.wait(0.05):
            write()

    write()
    writer = threading.Thread(target=keep_writing)
    if runs:
        writer.start()
    ours = PipelineHome.of(graph, str(tmp_path), Replica("a", str(tmp_path)))
    try:
        if runs:
            with pytest.raises(GraphError, match="replica b runs with other reads than replica a"):
                ours.take(graph, {}, reads=describe_reads(second.flows, {}, {}))
            ours.take(graph, {}, reads=describe_reads(first.flows, {}, {}))
        else:
            ours.take(graph, {}, reads=describe_reads(second.flows, {}, {}))
    finally:
        ends.set()
        if runs:
            writer.join()
    recorded = json.loads((tmp_path / "replicas/a/pipeline.json").read_text())
    assert recorded["reads"]["totals"]["bucket_ms"] == (1_000 if runs else 2_000)
    ours.release()
    theirs.release()


def test_both_replicas_may_start_with_a_changed_program(tmp_path: Path) -> None:
    """The one that starts later has not recorded the new program yet."""
    first, second = shop(tmp_path), shop(tmp_path, {"bucket": "2s"})
    graph = first.graph()
    homes = {name: PipelineHome.of(graph, str(tmp_path), Replica(name, str(tmp_path))) for name in "ab"}
    for home in homes.values():
        home.take(graph, {}, reads=describe_reads(first.flows, {}, {}))
        home.release()
    for home in homes.values():
        home.announce(graph, graph.nodes)
    reads = describe_reads(second.flows, {}, {})
    later = threading.Timer(0.3, homes["b"].take, args=(graph, {}), kwargs={"reads": reads})
    later.start()
    homes["a"].take(graph, {}, reads=reads)
    later.join()
    for home in homes.values():
        home.release()


Said = tuple[float, State, float]
"""When a replica with another program was looked at, by our clock; what it said, and when, by its clock."""

DEAD = 1_000.0
"""A time that is far away from the others."""


@pytest.mark.parametrize(("said", "wait_s", "verdict"), [
    ([(0, State.RUNNING, DEAD)], 0, Verdict.WAIT),
    ([(0, State.RUNNING, DEAD), (74, State.RUNNING, DEAD)], 0, Verdict.WAIT),
    ([(0, State.RUNNING, DEAD), (75, State.RUNNING, DEAD)], 0, Verdict.GO_ON),
    ([(0, State.RUNNING, 60), (1, State.RUNNING, 61)], 0, Verdict.REFUSE),
    ([(0, State.RUNNING, DEAD), (3, State.STARTING, 0)], 0, Verdict.GO_ON),
    ([(0, State.RUNNING, DEAD), (3, State.STARTING, 0)], 90, Verdict.WAIT),
    ([(0, State.STARTING, 0)], 0, Verdict.GO_ON),
    ([(0, State.STARTING, 0), (1, State.STARTING, 1)], 90, Verdict.WAIT),
    ([(0, State.STARTING, 0), (89, State.STARTING, 89)], 90, Verdict.WAIT),
    ([(0, State.STARTING, 0), (89, State.STARTING, 89), (90, State.STARTING, 90)], 90, Verdict.REFUSE),
    ([(0, State.STARTING, 0), (60, State.STARTING, 60), (90, State.STARTING, 60)], 90, Verdict.WAIT),
    ([(0, State.STARTING, 0), (60, State.STARTING, 60), (135, State.STARTING, 60)], 90, Verdict.GO_ON),
    ([(0, State.STARTING, 0), (75, State.STARTING, 0)], 90, Verdict.GO_ON),
    ([(0, State.STARTING, DEAD)], 90, Verdict.GO_ON),
    ([(0, State.STARTING, 0), (5, State.RUNNING, 5)], 90, Verdict.WAIT),
    ([(0, State.STARTING, 0), (5, State.RUNNING, 5), (6, State.RUNNING, 6)], 90, Verdict.REFUSE),
    ([(0, State.STARTING, 0), (5, State.RUNNING, -DEAD)], 90, Verdict.WAIT),
    ([(0, State.STARTING, 0), (5, State.RUNNING, -DEAD), (80, State.RUNNING, -DEAD)], 90, Verdict.GO_ON),
], ids=range(18))  # fmt: skip
def test_whether_a_replica_with_another_program_runs(said: list[Said], wait_s: float, verdict: Verdict) -> None:
    """Only one that writes again does. One that starts may record our program yet. One may put its old status back."""
    sight, at = None, 0.0
    for at, state, wall_s in said:
        status = PipelineStatus("shop", "", 1, int(wall_s * 1000), (FlowStatus("web", state),))
        sight = Sight.after(sight, status, at)
    assert sight is not None
    assert judge_other_program(sight, at, 0.0, at, wait_s, None) is verdict
    assert judge_other_program(sight, at, 0.0, at, wait_s, sight.status) is Verdict.GO_ON, "it was dead before"


@pytest.mark.parametrize("how", ["command", "program", "no lease"])
def test_a_start_that_fails_puts_the_status_back(how: str, tmp_path: Path) -> None:
    graph = shop(tmp_path).graph()
    said = PipelineStatus("shop", str(tmp_path), 1, 7, (FlowStatus("web", State.FAILED, error="divided by zero"),))
    PipelineHome(str(tmp_path)).write_status(said)
    if how == "command":
        PipelineHome(str(tmp_path)).announce(graph, graph.nodes)
    home = PipelineHome(str(tmp_path))
    home.take(graph, {})
    assert {each.state for each in home.status().flows} == {State.STARTING}
    if how == "no lease":
        home.release()
        home.write_status(said)
    home.withdraw(graph)
    assert home.status() == said
    PipelineHome(str(tmp_path)).take(graph, {})


def test_a_damaged_status_is_no_obstacle(tmp_path: Path) -> None:
    graph, home = shop(tmp_path).graph(), PipelineHome(str(tmp_path))
    (tmp_path / "status.json").write_text("{")
    home.take(graph, {})
    assert {each.state for each in home.status().flows} == {State.STARTING}
    home.withdraw(graph)
    assert {each.state for each in home.status().flows} == {State.STOPPED}


def run_once(homes: Iterable[PipelineHome], graph: Graph, program: Pipeline) -> None:
    """Replicas have run a program, and were stopped in good order."""
    for home in homes:
        home.take(graph, {}, reads=describe_reads(program.flows, {}, {}))
        stopped = tuple(FlowStatus(name, State.STOPPED) for name in graph.nodes)
        home.write_status(PipelineStatus("shop", home.home, 1, int(time.time() * 1000), stopped))
        home.release()


def is_refused(home: PipelineHome, graph: Graph, program: Pipeline) -> bool:
    """Starts a replica as far as its home goes."""
    try:
        home.take(graph, {}, reads=describe_reads(program.flows, {}, {}))
    except GraphError:
        return True
    return False


@pytest.mark.parametrize("announced", [True, False], ids=["by the command", "by a program"])
@pytest.mark.parametrize("before", [True, False], ids=["both have run", "both are new"])
def test_two_programs_that_start_at_once_are_refused(
    before: bool, announced: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Even if neither runs yet: at least the one that records its program later finds the other one's."""
    monkeypatch.setattr("spark_cec.pipeline.replicas.FRESH_S", 1.5)
    monkeypatch.setattr("spark_cec.pipeline.home.STARTS_WITHIN_S", 3.0)
    graph = shop(tmp_path).graph()
    homes = {name: PipelineHome.of(graph, str(tmp_path), Replica(name, str(tmp_path))) for name in "ab"}
    if before:
        run_once(homes.values(), graph, shop(tmp_path))
    have_both_recorded = threading.Barrier(2)

    def look(*arguments: Any) -> PipelineStatus | None:
        if len(arguments) > 3:  # the second look of a start
            have_both_recorded.wait(30.0)
        return refuse_other_graph(*arguments)

    monkeypatch.setattr("spark_cec.pipeline.home.refuse_other_graph", look)
    if announced:
        for home in homes.values():
            home.announce(graph, graph.nodes)

    programs = [shop(tmp_path, {"bucket": bucket}) for bucket in ("1s", "2s")]
    with ThreadPoolExecutor(2) as both:
        refused = list(both.map(is_refused, homes.values(), [graph] * 2, programs))
    assert any(refused), "one may go on when the other one is gone"
    for home, was_refused in zip(homes.values(), refused, strict=True):
        state = State.STOPPED if was_refused else State.STARTING
        assert {each.state for each in home.status().flows} == {state}, "as before"


class Reader:
    """A session that notes the columns of the stream that it is asked for."""

    def __init__(self) -> None:
        self.names: list[str] = []

    @property
    def readStream(self) -> Reader:  # noqa: N802
        return self

    def schema(self, wanted: Any) -> Reader:
        self.names = wanted.names
        return self

    def __getattr__(self, _: str) -> Any:
        return lambda *_, **__: self


def test_a_reader_outside_has_the_columns_of_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are in rows that it may not have read yet."""
    made = shop(tmp_path, {"kept": True})
    home = PipelineHome.of(made.graph(), str(tmp_path), Replica("a", str(tmp_path)))
    (tmp_path / "replicas/a/flows/totals/cec").mkdir(parents=True)
    (tmp_path / "replicas/a/flows/totals/metadata").write_text("{}")
    reads = describe_reads(made.flows, {}, {"totals": ["time"]})
    for names in (["time", "n", "page"], ["time", "n"]):
        fields = [{"name": name, "type": "timestamp", "nullable": True, "metadata": {}} for name in names]
        home.take(made.graph(), {"totals": json.dumps({"type": "struct", "fields": fields})}, reads=reads)
        home.release()
    monkeypatch.setattr(outside, "use_storage_settings", lambda _: None)
    reader = Reader()
    outside.read_replicas(reader, str(tmp_path), "totals", "time")  # type: ignore[arg-type]
    assert reader.names == ["time", "n", "page"]


def test_settings_that_change_rows_are_compared(tmp_path: Path) -> None:
    flows = shop(tmp_path).flows
    zones = [{"totals": {"spark.sql.session.timeZone": zone}} for zone in ("UTC", "Asia/Tokyo")]
    assert describe_reads(flows, zones[0], {}) != describe_reads(flows, zones[1], {})


def test_all_sinks_are_chosen_or_none(tmp_path: Path) -> None:
    made = shop(tmp_path)

    @made.sink(bucket="1s", watermarks={"totals": ("time", "0 seconds")})
    def second(totals: Any) -> Any: ...

    graph = made.graph()
    refuse_some_sinks(graph, graph.nodes)
    refuse_some_sinks(graph, {"web", "totals"})
    with pytest.raises(GraphError, match="replicas run all sinks or none, and second was left out"):
        refuse_some_sinks(graph, {"totals", "board"})


def test_the_pause_of_a_source_is_its_trigger(tmp_path: Path) -> None:
    made = Pipeline("shop", str(tmp_path))

    @made.flow(trigger={"processingTime": "5 seconds"})
    def web(spark: Any) -> Any: ...

    @made.flow
    def app(spark: Any) -> Any: ...

    assert {name: find_interval_ms(flow) for name, flow in made.flows.items()} == {"web": 5_000, "app": 1_000}
