"""The commands that run a pipeline, and say how it is: `cec pipeline run`, `cec pipeline status`."""

from __future__ import annotations

import json
import re
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from types import FrameType
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from spark_cec.admin.words import format_time
from spark_cec.cli.live import follow
from spark_cec.cli.show import counted, size
from spark_cec.errors import CecError
from spark_cec.extras import need
from spark_cec.pipeline.capacity import RecoveryMode, RecoveryPolicy
from spark_cec.pipeline.declare import FlowError
from spark_cec.pipeline.graph import Graph, GraphError, choose_flows
from spark_cec.pipeline.home import PipelineHome, open_homes
from spark_cec.pipeline.load import load_pipeline
from spark_cec.pipeline.replicas import FRESH_S, check_replicas, parse_replica
from spark_cec.pipeline.status import CapacityStatus, FlowStatus, PipelineStatus, State

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from spark_cec.pipeline.running import RunningPipeline

RUN_HELP = """Run a pipeline until it is stopped (Ctrl-C, SIGTERM), or all of its flows are over.

FILE is a Python file that declares a Pipeline; with several in it, FILE:name says which. A flow that fails is started
again alone, while the others go on; run again after a crash, every flow goes on from where it was. Where executors are
lost in numbers (two, and a third of all) and the rest cannot carry all flows, the sinks that are worth most for what
they cost run first, and each executor that comes brings back more (--recovery progressive). With --replica, a second
application runs the same flows, and takes the sinks over if this one is gone.

\b
Examples:
  cec pipeline run shop.py
  cec pipeline run shop.py --master spark://head:7077 --conf spark.executor.memory=4g
  cec pipeline run shop.py:shop --only bids --only per_minute
  cec pipeline run shop.py --recovery at-once
  cec pipeline run shop.py --replica a

\b
Exit codes:
  0  stopped, or all flows have ended by themselves
  1  the graph cannot be run, a function of a flow fails or answers no stream, or a flow has failed for good
  2  wrong usage, no pipeline there, or its home cannot be used
"""

STATUS_HELP = """Show what each flow of a pipeline is doing, from what its driver has written into HOME.

With replicas, the flows of each one are shown.

\b
Examples:
  cec pipeline status /data/shop
  cec pipeline status /data/shop --watch
  cec pipeline status s3://bucket/shop --json | jq '.flows[] | select(.state == "failed")'

\b
Exit codes:
  0  it runs, or was stopped
  1  a flow has failed, or the driver has said nothing for 75 seconds, or for ten minutes of its start; in replicas, of
     one of them
  2  wrong usage, or there is no pipeline
"""

SILENT_S, STARTS_S = FRESH_S, 600.0
"""A driver that has said nothing for so long, and has not said that it is over, is gone. While Spark starts, which may
wait for a cluster, it says nothing."""

_LOOK_S = 0.5
_COLOURS = {
    State.RUNNING: "green",
    State.REPLAYING: "cyan",
    State.WAITING: "yellow",
    State.STANDBY: "cyan",
    State.RESTARTING: "yellow",
    State.STARVING: "yellow",
    State.FAILED: "bold red",
}
_ERROR_CHARS = 160
_OF_SPARK = re.compile(r"\[STREAM_FAILED\] Query \[id = [^\]]*\] terminated with exception: ")


def run(
    file: Annotated[str, typer.Argument(metavar="FILE[:name]", help="Where the pipeline is declared.")],
    only: Annotated[list[str] | None, typer.Option(metavar="FLOW", help="This flow alone; more than once.")] = None,
    master: Annotated[str | None, typer.Option(help="Spark's master; default: spark.master, or local[*].")] = None,
    conf: Annotated[list[str] | None, typer.Option(metavar="KEY=VALUE", help="More Spark conf.")] = None,
    recovery: Annotated[
        RecoveryMode, typer.Option(help="Which flows run when many executors are lost: see above.")
    ] = RecoveryMode.PROGRESSIVE,
    replica: Annotated[str | None, typer.Option(metavar="a|b", help="Run it as one of two replicas.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print a line of JSON at each change.")] = False,
) -> None:
    """Run a pipeline."""
    need("cec pipeline run", "pipeline")
    pairs = [_pair(each) for each in conf or ()]
    pipeline = load_pipeline(file)
    try:
        graph = pipeline.graph()
        own = parse_replica(pipeline.name, pipeline.home, replica)
        if own is not None:
            check_replicas(graph, pipeline.flows, is_cec=pipeline.checkpointing.is_cec)
        home = PipelineHome.of(graph, pipeline.home, own)
        home.announce(graph, _chosen(graph, only), pipeline.checkpointing)
        print(f"pipeline {pipeline.name}: Spark is being started", file=sys.stderr)
        signal.signal(signal.SIGTERM, _interrupt)
        with ExitStack() as undo:
            undo.callback(home.take_back, graph)
            with _spark(pipeline.name, master, pairs) as spark:
                running = pipeline.start(spark, only, RecoveryPolicy(recovery), replica)
                undo.pop_all()
                signal.signal(signal.SIGINT, _interrupt)  # PySpark's own handler calls the JVM, and prints tracebacks
                _follow(running, as_json, lambda: spark.sparkContext.setLogLevel("OFF"))
                failed = running.status().failed
    except GraphError as error:
        for complaint in error.complaints:
            print(f"error: {complaint}", file=sys.stderr)
        raise typer.Exit(1) from None
    except FlowError as error:
        print(f"error: {error}", file=sys.stderr)
        raise typer.Exit(1) from None
    for flow in failed:
        print(f"error: flow {flow.name} has failed: {flow.error}", file=sys.stderr)
    if failed:
        raise typer.Exit(1)


def _chosen(graph: Graph, only: list[str] | None) -> frozenset[str]:
    try:
        return choose_flows(graph, only)
    except GraphError as error:
        raise typer.BadParameter("; ".join(error.complaints), param_hint="--only") from None


def status(
    home: Annotated[str, typer.Argument(metavar="HOME", help="The pipeline's home.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
    watch: Annotated[bool, typer.Option("--watch", help="Show it until Ctrl-C, as it changes.")] = False,
) -> None:
    """Show the status."""
    if watch and as_json:
        raise typer.BadParameter("one of them: --json is for one look", param_hint="--watch")
    places = open_homes(home.rstrip("/") or home)
    now = {name: place.status() for name, place in places.items()}
    if as_json:
        print(json.dumps(status_json(now)))
    elif watch:
        now = follow_pipeline(places, now, _LOOK_S)
    else:
        out = Console(highlight=False)
        out.print(make_tables(now))
        for flow in (flow for found in now.values() for flow in found.failed):
            out.print(Text(f"flow {flow.name} has failed: {_plain(flow.error or '')}"), soft_wrap=True)
    if not is_well(now):
        raise typer.Exit(1)


def make_tables(now: Mapping[str, PipelineStatus]) -> RenderableType:
    """A table for each replica, or the only one."""
    return Group(*(make_table(found, replica) for replica, found in now.items()))


def follow_pipeline(
    places: Mapping[str, PipelineHome], now: dict[str, PipelineStatus], every_s: float
) -> dict[str, PipelineStatus]:
    """Shows the status as it changes, until the user leaves; answers the newest one that could be read.

    `places`: the homes, by replica; one without a name if there are no replicas.
    """

    def look() -> RenderableType:
        try:
            now.update({name: place.status() for name, place in places.items()})
        except (CecError, OSError) as error:  # it may be there again a moment later
            return Group(make_tables(now), Text(f"cannot be read now: {error}", "bold red"))
        return make_tables(now)

    follow(look, every_s)
    return now


def status_json(now: Mapping[str, PipelineStatus]) -> dict[str, Any]:
    """The fields of `cec pipeline status --json`: of the pipeline, or of each replica by its name."""
    each = {name: {**found.to_json(), "silent_s": _silent_s(found)} for name, found in now.items()}
    return each.get("", {"replicas": each})


def is_well(now: Mapping[str, PipelineStatus]) -> bool:
    """Whether no flow has failed, and each driver is there or has stopped in good order."""
    return not any(each.failed or _is_gone(each) for each in now.values())


def _follow(running: RunningPipeline, as_json: bool, silence: Callable[[], None]) -> None:
    """Shows the status as it changes, until all is over or an interruption, which stops it.

    `silence`: what Spark says of tasks that are interrupted because somebody wanted it so is of no use.
    """
    out = Console(stderr=True, highlight=False)
    lines = _Lines(as_json)
    try:
        if as_json or not out.is_terminal:
            while not running.is_over:
                lines.show(running.status())
                time.sleep(_LOOK_S)
        else:
            with Live(console=out, auto_refresh=False, transient=True) as live:
                while not running.is_over:
                    live.update(make_table(running.status()), refresh=True)
                    time.sleep(_LOOK_S)
    except KeyboardInterrupt:
        for number in (signal.SIGINT, signal.SIGTERM):  # a second one would leave a stop that is half done
            signal.signal(number, signal.SIG_IGN)
        print(f"pipeline {running.status().name}: stopping", file=sys.stderr)
        silence()
        running.stop()
    lines.show(running.status())


class _Lines:
    """A line for each change: of text to standard error, or of JSON to standard output."""

    def __init__(self, as_json: bool) -> None:
        self._as_json = as_json
        self._shown: list[tuple[object, ...]] = []
        self._errors: dict[str, str] = {}

    def show(self, now: PipelineStatus) -> None:
        """Prints the status, if it is another one than before; a batch more is no change."""
        states: list[tuple[object, ...]] = [(flow.state, flow.restarts, flow.error) for flow in now.flows]
        if states == self._shown:
            return
        self._shown = states
        if self._as_json:
            print(json.dumps(now.to_json()), flush=True)
        else:
            print(_line(now), file=sys.stderr, flush=True)
            for flow in now.flows:
                if flow.error and flow.error != self._errors.get(flow.name):
                    print(f"flow {flow.name}: {_plain(flow.error)}", file=sys.stderr, flush=True)
                    self._errors[flow.name] = flow.error


def make_table(now: PipelineStatus, replica: str = "") -> Table:
    """A row for each flow, and below them the cluster, or that the driver is gone."""
    since = f"its driver (process {now.pid}) has said nothing for {_silent_s(now):,.0f} s" if _is_gone(now) else None
    caption = since or (None if now.capacity is None else _has(now.capacity) + _protocol(now))
    name = f"pipeline {now.name}, replica {replica}" if replica else f"pipeline {now.name}"
    title, below = Text(name), None if caption is None else Text(caption)
    table = Table(box=None, pad_edge=False, header_style="bold", title=title, caption=below)
    for column in ("flow", "state", "batch", "behind", "complete to", "cores", "restarts", ""):
        table.add_column(column, justify="left" if column in ("flow", "state", "") else "right")
    for flow in now.flows:
        colour = _COLOURS.get(flow.state)
        state = f"[{colour}]{flow.state.value}[/]" if colour else flow.state.value
        cores = "-" if flow.cores is None else f"{flow.cores:.2f}"
        batch, behind = ("-" if each is None else str(each) for each in (flow.batch, flow.behind))
        # What Spark says of an error has brackets of its own.
        complete = "-" if flow.complete_to_ms is None else format_time(flow.complete_to_ms)
        table.add_row(flow.name, state, batch, behind, complete, cores, str(flow.restarts), Text(_why(flow, now.flows)))
    return table


def _protocol(now: PipelineStatus) -> str:
    if now.protocol == "cec":
        return ""
    times = counted(now.rollbacks, "time")
    return f"; checkpoints: {now.protocol}" + (f", back to a line {times}" if now.rollbacks else "")


def _has(capacity: CapacityStatus) -> str:
    executors, cores = counted(capacity.executors, "executor"), counted(capacity.cores, "core")
    text = f"{executors}, {cores}, {capacity.wanted:.1f} wanted"
    if capacity.recovering_s is None:
        return text
    more = f"; one more executor brings back {', '.join(capacity.coming)}" if capacity.coming else ""
    return f"in recovery for {capacity.recovering_s:,.0f} s: {text}{more}"


def _why(flow: FlowStatus, flows: Sequence[FlowStatus]) -> str:
    if flow.held_for and not flow.state.is_over:
        return f"held: {'; '.join(f'{size(each.bytes)} wait for {each.flow}' for each in flow.held_for)}"
    given_up = f"; goes on without {', '.join(flow.given_up)}" if flow.given_up else ""
    if flow.starves_for:
        return f"for {', '.join(flow.starves_for)}"
    if flow.waits_for:
        missing = [
            f"{each.name}, away {_away_s(each):,.0f} s{_reads(each)}" if each.away_since_ms is not None else each.name
            for each in flows
            if each.name in flow.waits_for
        ]
        return f"waits for {'; '.join(missing)}{given_up}{_tentative(flow)}"
    if given_up or flow.epoch is not None:
        return f"{given_up}{_tentative(flow)}".removeprefix("; ")
    away = ""
    if flow.away_since_ms is not None and not flow.state.is_over:
        away = f"a source has not answered for {_away_s(flow):,.0f} s{_reads(flow)}: "
    if flow.error and (flow.state in (State.FAILED, State.RESTARTING) or (flow.restarts and not flow.state.is_over)):
        text = away + _plain(flow.error)
        return text if len(text) <= _ERROR_CHARS else text[:_ERROR_CHARS] + " …"
    return ""


def _tentative(flow: FlowStatus) -> str:
    """How far a flow answers without the inputs that it waits for."""
    if flow.epoch is None:
        return ""
    to = "" if flow.tentative_to_ms is None else f" up to {format_time(flow.tentative_to_ms)}"
    without = f" without {', '.join(flow.absent)}" if flow.absent else ""
    blocked = f"; new rows of {', '.join(flow.blocked)} may wait in a join" if flow.blocked else ""
    return f"; tentative{to}{without}{blocked}"


def _reads(flow: FlowStatus) -> str:
    """Whom to look for if the source of a flow does not answer."""
    return f", reads {', '.join(flow.servers)}" if flow.servers else ""


def _away_s(flow: FlowStatus) -> float:
    return max(time.time() - (flow.away_since_ms or 0) / 1000, 0.0)


def _plain(error: str) -> str:
    """In one line, without the names that Spark gives a query and its run."""
    return " ".join(_OF_SPARK.sub("", error).split())


def _line(now: PipelineStatus) -> str:
    return f"pipeline {now.name}: " + ", ".join(f"{flow.name} {flow.state.value}" for flow in now.flows)


def _silent_s(now: PipelineStatus) -> float:
    return round(max(time.time() - now.wall_ms / 1000, 0.0), 1)


def _is_gone(now: PipelineStatus) -> bool:
    starts = all(flow.state is State.STARTING for flow in now.flows)
    return not now.is_over and _silent_s(now) > (STARTS_S if starts else SILENT_S)


@contextmanager
def _spark(name: str, master: str | None, conf: list[tuple[str, str]]) -> Iterator[SparkSession]:
    from pyspark.sql import SparkSession

    from spark_cec.session import configure

    builder = configure(SparkSession.builder.appName(f"pipeline {name}")).config("spark.scheduler.mode", "FAIR")
    builder = builder.config("spark.ui.showConsoleProgress", "false")  # which would run into our own lines
    if master:
        builder = builder.master(master)
    for key, value in conf:
        builder = builder.config(key, value)
    session = builder.getOrCreate()
    try:
        yield session
    finally:
        session.stop()


def _interrupt(_: int, __: FrameType | None) -> None:
    raise KeyboardInterrupt


def _pair(text: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not (key and equals):
        raise typer.BadParameter(f"{text!r}: give KEY=VALUE", param_hint="--conf")
    return key, value

