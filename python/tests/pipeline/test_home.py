"""The home of a pipeline: one driver at a time, one graph, and the status that anybody may read."""

from __future__ import annotations

import io
import json
import re
import shutil
import signal
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import typer
from rich.console import Console
from typer.testing import CliRunner

from spark_cec.adapters.fsspec_storage import open_storage
from spark_cec.adapters.object_storage import ObjectStorage
from spark_cec.errors import Fenced, LogLocationError
from spark_cec.ids import new_id
from spark_cec.log.frame import FrameKind, OutputMeta
from spark_cec.log.home import join_log
from spark_cec.log.manifest import Manifest, publish
from spark_cec.log.record import encode_table
from spark_cec.log.writer import SegmentWriter
from spark_cec.pipeline import Pipeline
from spark_cec.pipeline.declare import FlowError
from spark_cec.pipeline.graph import Graph, GraphError, Node
from spark_cec.pipeline.home import NoHome, PipelineHome
from spark_cec.pipeline.replicas import Replica, Verdict, list_columns, read_record
from spark_cec.pipeline.status import FlowStatus, HeldFor, PipelineStatus, State
from spark_cec.pipeline_commands import run as run_command
from spark_cec.pipeline_commands.app import make_app
from spark_cec.pipeline_commands.run import SILENT_S, make_table
from spark_cec.settings import PROVIDER, PROVIDER_KEY
from tests.log.support import WRITER_ID, ObjectStore

A, OUT = Node("a"), Node("out", ("a",), is_sink=True)
GRAPH = Graph("shop", {"a": A, "out": OUT})


def status_of(home: Path, *flows: FlowStatus, age_s: float = 0.0) -> PipelineStatus:
    return PipelineStatus("shop", str(home), 4711, int((time.time() - age_s) * 1000), flows)


def test_a_home_has_one_driver_at_a_time(tmp_path: Path) -> None:
    first, second = PipelineHome(str(tmp_path)), PipelineHome(str(tmp_path))
    assert first.take(GRAPH, {}) == ["a", "out"]
    with pytest.raises(Fenced, match=rf"pipeline shop at {tmp_path} is running already: stop that driver first"):
        second.take(GRAPH, {}, wait_s=0.0)
    first.release()
    assert second.take(GRAPH, {}) == []


def test_what_is_added_is_fine_and_what_is_gone_is_named(tmp_path: Path) -> None:
    home = PipelineHome(str(tmp_path))
    home.take(GRAPH, {})
    home.release()
    more = Graph("shop", {"a": A, "b": Node("b", ("a",)), "out": OUT, "other": Node("other", ("b",), is_sink=True)})
    assert home.take(more, {}) == ["b", "other"]
    home.release()
    for name in ("b", "other"):
        (tmp_path / "flows" / name).mkdir(parents=True)
        (tmp_path / "flows" / name / "metadata").write_text("{}")
    with pytest.raises(GraphError, match="flow b was removed"):
        home.take(GRAPH, {})
    assert home.take(more, {}) == [], "a start that was refused has given the home back"
    home.release()
    for name in ("b", "other"):
        shutil.rmtree(tmp_path / "flows" / name)
    assert home.take(GRAPH, {}) == [], "they were deleted, as the message says"


def columns(**types: str) -> str:
    fields = [{"name": name, "type": kind, "nullable": True, "metadata": {}} for name, kind in types.items()]
    return json.dumps({"type": "struct", "fields": fields})


def test_a_column_that_changes_its_type_is_refused(tmp_path: Path) -> None:
    """What readers have not read yet would be read by the new type."""
    home = PipelineHome(str(tmp_path))
    home.take(GRAPH, {"a": columns(n="long", m="string")})
    home.release()
    (tmp_path / "flows" / "a").mkdir(parents=True)
    (tmp_path / "flows" / "a" / "metadata").write_text("{}")
    with pytest.raises(GraphError, match=r"column n of flow a was BIGINT, and is TIMESTAMP: give the new one another"):
        home.take(GRAPH, {"a": columns(n="timestamp")})
    home.take(GRAPH, {"a": columns(n="long", k="string")})
    home.release()
    shutil.rmtree(tmp_path / "flows" / "a")
    home.take(GRAPH, {"a": columns(n="timestamp")})
    home.release()


def test_what_would_be_refused_is_known_before_anything_is_begun(tmp_path: Path) -> None:
    """Before Spark is started, which takes its time; nothing is taken, and the status says that it is starting."""
    home, second = PipelineHome(str(tmp_path / "shop")), PipelineHome(str(tmp_path / "shop"))
    home.announce(GRAPH, {"a"})
    assert not (tmp_path / "shop" / "pipeline.json").exists()
    assert [(flow.name, flow.state) for flow in second.status().flows] == [("a", State.STARTING)]
    home.take(GRAPH, {})
    home.announce(GRAPH, GRAPH.nodes)
    home.write_status(status_of(tmp_path, FlowStatus("a", State.RUNNING)))
    with pytest.raises(Fenced, match="is running already: stop that driver first"):
        second.announce(GRAPH, GRAPH.nodes, wait_s=0.0)
    assert [flow.state for flow in second.status().flows] == [State.RUNNING]
    home.release()
    second.announce(GRAPH, GRAPH.nodes, wait_s=0.0)
    (tmp_path / "shop" / "flows" / "out").mkdir(parents=True)
    (tmp_path / "shop" / "flows" / "out" / "metadata").write_text("{}")
    with pytest.raises(GraphError, match="sink out was removed"):
        home.announce(Graph("shop", {"a": Node("a", kept=True)}), {"a"})
    (tmp_path / "file").write_text("")
    with pytest.raises(LogLocationError):
        PipelineHome(str(tmp_path / "file" / "shop")).announce(GRAPH, GRAPH.nodes)


@pytest.mark.parametrize("before", [State.STOPPED, None])
@pytest.mark.parametrize("error", [FlowError("it answers no stream"), KeyboardInterrupt()], ids=type)
def test_a_command_whose_start_fails_leaves_the_status_as_it_was(
    error: BaseException, before: State | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While Spark starts, or while the flows are made. If another driver runs by then, its status stays."""
    base, handler = str(tmp_path / "shop"), signal.getsignal(signal.SIGTERM)
    home, other = PipelineHome(base), PipelineHome(base)
    if before is not None:
        home.take(GRAPH, {})
        home.write_status(status_of(tmp_path, FlowStatus("a", before)))
        home.release()
    declared = Pipeline("shop", base)
    declared.flow(name="a")(lambda spark: spark)
    declared.sink(name="out")(lambda a: a)
    monkeypatch.setattr(run_command, "load_pipeline", lambda _: declared)
    has_other = [False, True]

    def fail(*_: Any) -> Any:
        assert {flow.state for flow in other.status().flows} == {State.STARTING}
        if has_other.pop(0):
            other.take(declared.graph(), {})
            other.write_status(status_of(tmp_path, FlowStatus("a", State.RUNNING)))
        raise error

    monkeypatch.setattr(run_command, "_spark", fail)
    for expected in (before or State.STOPPED, State.RUNNING):
        with pytest.raises((typer.Exit, KeyboardInterrupt)):
            run_command.run("shop.py")
        assert {flow.state for flow in PipelineHome(base).status().flows} == {expected}
    other.release()
    signal.signal(signal.SIGTERM, handler)


@pytest.mark.parametrize(
    ("now", "words"),
    [
        ([A], r"sink out was removed: bring it back .*delete {base}/sinks/out, with its checkpoint"),
        ([A, replace(OUT, name="other")], r"sink out was removed"),
        ([A, Node("b", ("a",)), replace(OUT, inputs=("b",))], r"out was rewired.*: give the new one another name$"),
        ([A, Node("out", ("a",))], r"out was rewired, from a sink of a to a flow of a: give the new one another name$"),
    ],
    ids=["removed", "renamed", "rewired", "a flow now"],
)
def test_a_sink_of_replicas_that_is_not_what_it_was_is_named(now: list[Node], words: str, tmp_path: Path) -> None:
    """Its checkpoint is in a folder that both replicas share. Begun anew, it would give out rows a second time."""
    homes = [PipelineHome.of(GRAPH, str(tmp_path), Replica(name, str(tmp_path))) for name in "ab"]
    for home in homes:
        home.take(GRAPH, {})
        home.write_status(status_of(tmp_path))
        home.release()
    (tmp_path / "sinks" / "out").mkdir(parents=True)
    (tmp_path / "sinks" / "out" / "metadata").write_text("{}")
    graph = Graph("shop", {node.name: node for node in now})
    again = PipelineHome.of(graph, str(tmp_path), Replica("a", str(tmp_path)))
    with pytest.raises(GraphError, match=words.format(base=tmp_path)):
        again.announce(graph, graph.nodes)
    with pytest.raises(GraphError, match=words.format(base=tmp_path)):
        again.take(graph, {})
    shutil.rmtree(tmp_path / "sinks")
    again.take(graph, {})  # the user has deleted it


B, OUT_OF_B = Node("b"), replace(OUT, inputs=("b",))
BEFORE = Graph("shop", {"a": A, "b": B, "out": OUT})
REWIRED = Graph("shop", {"a": A, "b": B, "out": OUT_OF_B})


def run_replica(base: Path, name: str, graph: Graph, schemas: Mapping[str, str] | None = None) -> None:
    """A replica has run a program, and was stopped. It has left the folders of its flows, and those of the sinks."""
    home = PipelineHome.of(graph, str(base), Replica(name, str(base)))
    home.take(graph, schemas or {})
    for flow in graph.nodes:
        place = Path(home.flow(flow))
        place.mkdir(parents=True, exist_ok=True)
        (place / "metadata").write_text("{}")
    home.write_status(status_of(base, *(FlowStatus(flow, State.STOPPED) for flow in graph.nodes)))
    home.release()


def test_a_replica_that_never_ran_knows_what_the_sinks_have_read(tmp_path: Path) -> None:
    """It takes over their checkpoints, whose offsets are batches of other channels."""
    run_replica(tmp_path, "a", BEFORE)
    rewired = r"out was rewired, from a sink of a to a sink of b: give the new one another name$"
    with pytest.raises(GraphError, match=rewired):
        run_replica(tmp_path, "b", REWIRED)
    with pytest.raises(GraphError, match=rewired):
        PipelineHome.of(REWIRED, str(tmp_path), Replica("b", str(tmp_path))).announce(REWIRED, REWIRED.nodes)
    with pytest.raises(GraphError, match="is the home of pipeline shop"):
        run_replica(tmp_path, "b", Graph("mall", BEFORE.nodes))
    run_replica(tmp_path, "b", BEFORE)


def test_a_replica_that_was_away_knows_what_the_sinks_have_read_since(tmp_path: Path) -> None:
    """A sink was dropped with its checkpoint, and came again with other inputs."""
    for name in "ab":
        run_replica(tmp_path, name, BEFORE)
    shutil.rmtree(tmp_path / "sinks" / "out")
    run_replica(tmp_path, "a", REWIRED)
    with pytest.raises(GraphError, match=r"out was rewired, from a sink of b to a sink of a"):
        run_replica(tmp_path, "b", BEFORE)
    run_replica(tmp_path, "b", REWIRED)


def test_a_sink_that_was_dropped_does_not_count_for_a_flow_of_its_name(tmp_path: Path) -> None:
    """Replica b was away while there was such a sink, the only one."""
    flow, sink = (Graph("shop", {"a": replace(A, kept=True), "x": replace(OUT, name="x", is_sink=how, kept=not how)})
                  for how in (False, True))  # fmt: skip
    for name in "ab":
        run_replica(tmp_path, name, flow)
    shutil.rmtree(tmp_path / "replicas" / "a" / "flows" / "x")
    run_replica(tmp_path, "a", sink)
    shutil.rmtree(tmp_path / "sinks" / "x")
    run_replica(tmp_path, "a", Graph("shop", {"a": replace(A, kept=True)}))
    for name in "ab":
        run_replica(tmp_path, name, flow)


def test_a_start_that_is_refused_does_not_say_what_the_sinks_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two replicas start at once with two programs, and b runs its sinks between the two looks of a."""

    def look(pipeline: str, replica: Replica, _wanted: Mapping[str, Any], *of_second_look: Any) -> None:
        if replica.name == "a" and of_second_look:
            raise GraphError(pipeline, ["replica b runs with other flows than replica a"])
        if replica.name == "a":
            run_replica(tmp_path, "b", BEFORE)

    with monkeypatch.context() as at_once, pytest.raises(GraphError, match="runs with other flows"):
        at_once.setattr("spark_cec.pipeline.home.refuse_other_graph", look)
        run_replica(tmp_path, "a", REWIRED)
    for name in "ba":
        run_replica(tmp_path, name, BEFORE)


@pytest.mark.parametrize(
    "recorded", ["{", "[]", "{}", '{"name": "shop"}', '{"name": "shop", "reads": []}', '{"reads": {"out": ["a"]}}',
                 '{"name": "shop", "reads": {"out": 1}}'],
)  # fmt: skip
@pytest.mark.parametrize("has_run", [True, False])
def test_a_record_of_the_sinks_that_is_none_is_named(has_run: bool, recorded: str, tmp_path: Path) -> None:
    if has_run:
        run_replica(tmp_path, "a", GRAPH)
    (tmp_path / "sinks").mkdir(exist_ok=True)
    (tmp_path / "sinks" / "reads.json").write_text(recorded)
    home = PipelineHome.of(GRAPH, str(tmp_path), Replica("a", str(tmp_path)))
    told = rf"{tmp_path}/sinks/reads\.json.*restore it from a copy"
    with pytest.raises(LogLocationError, match=told):
        home.announce(GRAPH, GRAPH.nodes)
    with pytest.raises(LogLocationError, match=told):
        home.take(GRAPH, {})


@pytest.mark.parametrize("recorded", ["{}", '{"name": "shop"}', '{"name": "shop", "flows": {"a": {}}}'])
def test_a_record_of_a_replica_that_is_none_is_named(recorded: str, tmp_path: Path) -> None:
    """Also where the replicas' record of the sinks can be read."""
    run_replica(tmp_path, "a", GRAPH)
    (tmp_path / "replicas" / "a" / "pipeline.json").write_text(recorded)
    with pytest.raises(LogLocationError, match=r"replicas/a/pipeline\.json.*restore it from a copy"):
        run_replica(tmp_path, "a", GRAPH)


def test_columns_that_came_and_went_in_one_replica_are_none_of_the_other_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They may still be in its channel. The replicas run one program all the same."""
    now, more = {"a": columns(n="long")}, {"a": columns(n="long", k="string")}
    for name, schemas in (("a", now), ("b", now), ("a", more), ("a", now)):
        run_replica(tmp_path, name, GRAPH, schemas)
    theirs = PipelineHome.of(GRAPH, str(tmp_path), Replica("b", str(tmp_path)))
    theirs.take(GRAPH, now)
    theirs.write_status(status_of(tmp_path, FlowStatus("a", State.RUNNING)))
    monkeypatch.setattr("spark_cec.pipeline.replicas.judge_other_program", lambda *_: Verdict.REFUSE)
    run_replica(tmp_path, "a", GRAPH, now)
    record = read_record(Replica("a", str(tmp_path)))
    assert record["schemas"] == now and list_columns(record) == more
    assert list_columns(read_record(Replica("b", str(tmp_path)))) == now
    with pytest.raises(GraphError, match=r"column k of flow a was STRING, and is BIGINT: .* another name$"):
        run_replica(tmp_path, "a", GRAPH, {"a": columns(n="long", k="long")})
    with pytest.raises(GraphError, match="replica b runs with other schemas than replica a"):
        run_replica(tmp_path, "a", GRAPH, more)


def test_another_pipelines_home_is_refused(tmp_path: Path) -> None:
    home = PipelineHome(str(tmp_path))
    home.take(GRAPH, {})
    home.release()
    with pytest.raises(GraphError, match="is the home of pipeline shop"):
        home.take(Graph("mall", GRAPH.nodes), {})


def test_a_record_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    (tmp_path / "pipeline.json").write_text("{")
    with pytest.raises(LogLocationError, match=r"pipeline\.json"):
        PipelineHome(str(tmp_path)).take(GRAPH, {})


def test_a_storage_that_cannot_create_if_absent_is_no_home(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two drivers would each take the pipeline for their own."""
    filesystem = ObjectStore()
    filesystem.conditional = False
    storage = ObjectStorage("s3://bucket/shop", filesystem, "bucket/shop", exclusive=True)
    monkeypatch.setattr("spark_cec.pipeline.home.open_storage", lambda _: storage)
    with pytest.raises(LogLocationError, match="use a store with conditional writes"):
        PipelineHome("s3://bucket/shop").take(GRAPH, {})
    assert storage.list("") == [], "nothing was begun there"


def run(*arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(make_app(), list(arguments))
    return result.exit_code, result.output


@pytest.mark.parametrize(
    "recorded", ["{}", '{"name": "shop"}', '{"name": "shop", "flows": []}', '{"name": "shop", "flows": {"a": {}}}']
)
def test_a_record_that_is_none_is_named(tmp_path: Path, recorded: str) -> None:
    (tmp_path / "pipeline.json").write_text(recorded)
    told = r"pipeline\.json.*restore it from a copy"
    with pytest.raises(LogLocationError, match=told):
        PipelineHome(str(tmp_path)).take(GRAPH, {})
    with pytest.raises(LogLocationError, match=told):
        PipelineHome(str(tmp_path)).announce(GRAPH, GRAPH.nodes)


def test_status_shows_what_the_driver_has_written(tmp_path: Path) -> None:
    home = PipelineHome(str(tmp_path))
    home.write_status(status_of(tmp_path, FlowStatus("a", State.RUNNING, 12, 1), FlowStatus("out", State.RUNNING, 11)))
    code, text = run("status", str(tmp_path))
    assert code == 0
    assert "pipeline shop" in text
    assert "running" in text
    assert "12" in text
    code, text = run("status", str(tmp_path), "--json")
    assert code == 0
    assert [flow["batch"] for flow in json.loads(text)["flows"]] == [12, 11]


def test_a_failed_flow_is_in_the_exit_code_and_so_is_a_driver_that_is_gone(tmp_path: Path) -> None:
    home = PipelineHome(str(tmp_path))
    home.write_status(status_of(tmp_path, FlowStatus("a", State.FAILED, 12, 1, "no brokers")))
    code, text = run("status", str(tmp_path))
    assert code == 1
    assert "no brokers" in text
    home.write_status(status_of(tmp_path, FlowStatus("a", State.RUNNING, 12), age_s=SILENT_S + 10))
    code, text = run("status", str(tmp_path))
    assert code == 1
    assert "process 4711" in text
    home.write_status(status_of(tmp_path, FlowStatus("a", State.STOPPED, 12), age_s=SILENT_S + 10))
    assert run("status", str(tmp_path))[0] == 0


@pytest.mark.parametrize(("state", "age_s", "code"), [("starting", 90, 0), ("starting", 610, 1), ("running", 90, 1)])
def test_a_driver_that_waits_for_a_cluster_is_not_gone(tmp_path: Path, state: str, age_s: float, code: int) -> None:
    """It writes its status once before Spark starts."""
    PipelineHome(str(tmp_path)).write_status(status_of(tmp_path, FlowStatus("a", State(state)), age_s=age_s))
    assert run("status", str(tmp_path))[0] == code


def test_status_and_verify_show_both_replicas(tmp_path: Path) -> None:
    homes = {name: PipelineHome.of(GRAPH, str(tmp_path), Replica(name, str(tmp_path))) for name in "ab"}
    for home in homes.values():
        home.take(GRAPH, {})
        home.write_status(status_of(tmp_path, FlowStatus("a", State.RUNNING, 12), FlowStatus("out", State.STANDBY)))
    code, text = run("status", str(tmp_path))
    assert code == 0
    assert "pipeline shop, replica a" in text and "pipeline shop, replica b" in text and "standby" in text
    homes["b"].write_status(status_of(tmp_path, FlowStatus("a", State.RUNNING, 12), age_s=SILENT_S + 10))
    code, text = run("status", str(tmp_path), "--json")
    assert code == 1, "one of them is gone"
    found = json.loads(text)["replicas"]
    assert (found["a"]["silent_s"] < SILENT_S < found["b"]["silent_s"]) and found["a"]["flows"][1]["state"] == "standby"
    written_flow(tmp_path / "replicas" / "b" / "flows" / "a", 3)
    written_flow(tmp_path / "sinks" / "out", 2)
    code, text = run("verify", str(tmp_path), "--json")
    assert code == 0, text
    assert [(each["name"], each["log"]) for each in json.loads(text)["flows"]] == [
        ("a/a", False), ("a/out", True), ("b/a", True),
    ]  # fmt: skip


def test_a_flow_that_there_is_not_is_wrong_usage(tmp_path: Path) -> None:
    file = tmp_path / "p.py"
    file.write_text(
        f"from spark_cec.pipeline import Pipeline\np = Pipeline('p', {str(tmp_path / 'home')!r})\n"
        "@p.flow(kept=True)\ndef bids(spark): ...\n"
    )
    code, text = run("run", str(file), "--only", "bidz")
    assert code == 2
    assert "did you mean bids" in text
    assert not (tmp_path / "home").exists()


def test_where_there_is_no_pipeline(tmp_path: Path) -> None:
    with pytest.raises(NoHome, match=r"no home of a pipeline that was ever started"):
        PipelineHome(str(tmp_path)).status()
    PipelineHome(str(tmp_path))._storage.replace("status.json", b"{}")
    with pytest.raises(NoHome, match=r"status\.json cannot be read"):
        PipelineHome(str(tmp_path)).status()


def test_what_spark_says_of_an_error_is_shown_as_it_is(tmp_path: Path) -> None:
    """Brackets are no markup: a topic's partition, a path, half a tag."""
    said = "[UNRESOLVED] topic [orders-0] of [/data/in] [/]"
    shown = io.StringIO()
    Console(width=200, file=shown).print(make_table(status_of(tmp_path, FlowStatus("a", State.FAILED, error=said))))
    assert said in shown.getvalue()


def test_how_far_a_flow_is_and_which_source_does_not_answer(tmp_path: Path) -> None:
    away = int(time.time() * 1000) - 40_000
    flows = (
        FlowStatus("a", State.RUNNING, complete_to_ms=1_795_781_050_250),
        FlowStatus(
            "b", State.RESTARTING, restarts=3, error="Timed out", away_since_ms=away, servers=("k1:9092", "k2:9092")
        ),
        FlowStatus("c", State.RUNNING, complete_to_ms=1_795_781_040_000, waits_for=("b",)),
    )
    shown = io.StringIO()
    status = status_of(tmp_path, *flows)
    Console(width=200, file=shown).print(make_table(status))
    assert "2026-11-27 12:04:10Z" in shown.getvalue()
    assert re.search(r"waits for b, away 4\d s, reads k1:9092, k2:9092", shown.getvalue())
    assert re.search(r"has not answered for 4\d s, reads k1:9092, k2:9092: Timed out", shown.getvalue())
    assert PipelineStatus.from_json(status.to_json()) == status


def test_for_whom_a_flow_is_held_and_what_waits_there(tmp_path: Path) -> None:
    held = (HeldFor("per_minute", 10 << 30), HeldFor("per_day", 5 << 20))
    shown, status = io.StringIO(), status_of(tmp_path, FlowStatus("web", State.WAITING, held_for=held))
    Console(width=200, file=shown).print(make_table(status))
    assert "held: 10.0 GiB wait for per_minute; 5.0 MiB wait for per_day" in shown.getvalue()
    assert status.to_json()["flows"][0]["held_for"][0] == {"flow": "per_minute", "bytes": 10 << 30}
    assert PipelineStatus.from_json(status.to_json()) == status
    earlier = status.to_json()
    del earlier["flows"][0]["held_for"]
    assert PipelineStatus.from_json(earlier).flows[0].held_for == (), "of a driver of an earlier release"


def test_without_which_inputs_a_flow_goes_on(tmp_path: Path) -> None:
    app = FlowStatus("app", State.RUNNING)
    flow = FlowStatus("a", State.RUNNING, given_up=("tel", "web"))
    shown = io.StringIO()
    status = status_of(tmp_path, app, flow, replace(flow, name="b", waits_for=("app",)))
    Console(width=300, file=shown).print(make_table(status))
    assert re.search(r" goes on without tel, web +", shown.getvalue())
    assert "waits for app; goes on without tel, web" in shown.getvalue()
    assert PipelineStatus.from_json(status.to_json()) == status
    earlier = status.to_json()
    for each in earlier["flows"]:
        del each["given_up"]
    assert {each.given_up for each in PipelineStatus.from_json(earlier).flows} == {()}, "of an earlier release"


def test_how_far_a_flow_answers_tentatively_and_what_waits_in_a_join(tmp_path: Path) -> None:
    app = FlowStatus("app", State.RUNNING)
    flow = FlowStatus(
        "a", State.RUNNING, waits_for=("app",), epoch=3, tentative_to_ms=1_795_781_050_250, absent=("app",),
        blocked=("tel", "web"),
    )  # fmt: skip
    shown, status = io.StringIO(), status_of(tmp_path, app, flow)
    Console(width=300, file=shown).print(make_table(status))
    said = "waits for app; tentative up to 2026-11-27 12:04:10Z without app; "
    assert said + "new rows of tel, web may wait in a join" in shown.getvalue()
    assert PipelineStatus.from_json(status.to_json()) == status


def written_flow(place: Path, batches: int) -> Path:
    """A flow's checkpoint with a channel; the only segment of its log."""
    storage = open_storage(str(place / "cec" / "log"))
    log = SegmentWriter(storage, join_log(storage), WRITER_ID, lambda: 7)
    for batch in range(batches):
        frame = new_id()
        meta = OutputMeta(frame, batch, 0, 0, 1, 1, 7)
        log.append(FrameKind.OUTPUT, meta, encode_table(pa.table({"n": [batch]})))
        publish(storage, Manifest(batch, (frame.hex(),), 1, "{}", False, 1, 7))
    log.close()
    (segment,) = (place / "cec" / "log" / "segments").iterdir()
    return segment


def test_verify_says_that_a_flow_has_lost_its_log(tmp_path: Path) -> None:
    PipelineHome(str(tmp_path)).take(GRAPH, {})
    flow = tmp_path / "flows" / "a"
    for log in ("offsets", "commits"):
        (flow / log).mkdir(parents=True)
        (flow / log / "0").write_text('v1\n{"conf":{}}')
    code, text = run("verify", str(tmp_path), "--json")
    (a, out) = json.loads(text)["flows"]
    assert (code, a["ok"], out["ok"]) == (1, False, True), "a sink without state has no log"
    assert [each["kind"] for each in a["damages"]] == ["lost"] and "restore it" in a["damages"][0]["reason"]
    (flow / "state" / "0" / "_metadata").mkdir(parents=True)
    (flow / "state" / "0" / "_metadata" / "metadata").write_text("v1\n{}")
    (flow / "offsets" / "0").write_text(f'v1\n{{"conf":{{"{PROVIDER_KEY}":"{PROVIDER}"}}}}')
    code, text = run("verify", str(tmp_path))
    assert code == 1 and "whose cec directory is gone" in " ".join(text.split()) and "damage in a" in text


def test_verify_goes_on_after_a_flow_that_cannot_be_read(tmp_path: Path) -> None:
    PipelineHome(str(tmp_path)).take(GRAPH, {})
    (tmp_path / "flows" / "a" / "cec").mkdir(parents=True)
    (tmp_path / "flows" / "a" / "cec" / "query.json").write_text("{")
    written_flow(tmp_path / "flows" / "out", 2)
    code, text = run("verify", str(tmp_path), "--json")
    (a, out) = json.loads(text)["flows"]
    assert (code, a["ok"], out["ok"], out["output_batches"]) == (2, False, True, 2)
    assert "query.json cannot be read" in a["error"]


def test_verify_reads_the_logs_of_all_flows(tmp_path: Path) -> None:
    with pytest.raises(NoHome, match=r"has no pipeline\.json"):
        PipelineHome(str(tmp_path)).recorded_flows()
    PipelineHome(str(tmp_path)).take(GRAPH, {})
    segment = written_flow(tmp_path / "flows" / "a", 3)
    code, text = run("verify", str(tmp_path))
    assert code == 0, text
    told = text.splitlines()
    assert (told[0], told[2:]) == ("a", ["out", "no log"])
    assert "ok: " in told[1] and "3 output batches" in told[1]
    whole = segment.read_bytes()
    segment.write_bytes(whole[:-9] + bytes([whole[-9] ^ 1]) + whole[-8:])
    code, text = run("verify", str(tmp_path))
    assert code == 1
    assert "damage in a: stop the pipeline, then `cec repair`" in text
    code, text = run("verify", str(tmp_path), "--json")
    found = json.loads(text)
    assert (code, found["ok"]) == (1, False)
    told_of = [(flow["name"], flow["ok"], flow["log"]) for flow in found["flows"]]
    assert told_of == [("a", False, True), ("out", True, False)]
