"""Declares a pipeline: decorated functions, whose parameters name the flows that they read."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, TypeVar, overload

from spark_cec.availability.keep import AtKeep
from spark_cec.errors import CecError
from spark_cec.pipeline.checkpointing import (
    check_blocking,
    check_bounds,
    check_buckets,
    check_flows,
    parse_checkpointing,
)
from spark_cec.pipeline.graph import Graph, GraphError, Node, Part, check_graph
from spark_cec.pipeline.input_checks import check_inputs
from spark_cec.pipeline.options import (
    FLOW_OPTIONS,
    SINK_OPTIONS,
    Keep,
    Within,
    check_names,
    check_options,
    check_tentative,
    parse_bucket,
    parse_keep,
    parse_wait,
    parse_within,
)

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

_Function = TypeVar("_Function", bound=Callable[..., Any])

SESSION = "spark"
"""The name of the parameter that takes the Spark session instead of a flow."""

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_-]{0,99}")


class FlowError(CecError):
    """The function of a flow fails, or answers a wrong value: see the message."""


@dataclass(frozen=True, slots=True)
class Flow:
    """A declared flow or sink: its node, its function, and the options of its query.

    `function` takes, by `parameters`, the session and a streaming DataFrame for each input. A flow answers a streaming
    DataFrame, a sink a DataStreamWriter. `trigger`: the keywords of Spark's `trigger`. `partitions`: of the state.
    `reads`: options of the reads of its inputs. `schema`: the flow's columns, which only a cycle must declare.
    `instances`: the number of queries, each on the rows of some keys. `key`: by input, the column with the key.
    `channels`: by parameter, the channels of a flow in instances. `watermarks`: by parameter, a column and a delay for
    each channel. `bucket_ms`: the length of the buckets by which it reads its inputs; None if it reads whole batches.
    `within`: how long rows may wait for an input; None if they wait until it is back. `tentative`: whether a sink reads
    tentative rows, too. `most_wait_ms`: how long rows wait before the flow goes on without an input; None if it never
    does. `keep`: the bound for what waits for it; None without one.
    """

    node: Node
    function: Callable[..., Any]
    parameters: tuple[str, ...]
    trigger: Mapping[str, Any] | None = None
    output_mode: str | None = None
    conf: Mapping[str, str] = field(default_factory=dict)
    partitions: int | None = None
    reads: Mapping[str, str] = field(default_factory=dict)
    schema: str | StructType | None = None
    instances: int = 1
    key: Mapping[str, str] = field(default_factory=dict)
    watermarks: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    bucket_ms: int | None = None
    channels: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    within: Within | None = None
    tentative: bool = False
    most_wait_ms: int | None = None
    keep: Keep | None = None

    @property
    def blocks(self) -> bool:
        """Whether it holds flows upstream if too much waits for it."""
        return self.keep is not None and self.keep.at_keep is AtKeep.BLOCK

    def list_channels(self, parameter: str) -> tuple[str, ...]:
        """The channels that a parameter reads."""
        return self.channels.get(parameter, (parameter,))


class Declaration:
    """The flows of a pipeline and its settings; `spark_cec.pipeline.Pipeline` can also run it."""

    def __init__(
        self, name: str, home: str, *, cycles: bool = True, protocol: str = "cec",
        checkpoint_interval: str | float = "5s", release: str = "checkpoint",
    ) -> None:  # fmt: skip
        """Raises `GraphError` for a name that no directory can have, and for an unknown protocol."""
        _check_name(name, name)
        self.name = name
        self.home = home.rstrip("/") or home
        self.cycles = cycles
        self.checkpointing = parse_checkpointing(name, protocol, checkpoint_interval, release)
        self._flows: dict[str, Flow] = {}

    @property
    def flows(self) -> Mapping[str, Flow]:
        """The declared flows by name; a flow in instances is replaced by its instances."""
        return _expand_instances(self._flows)

    @overload
    def flow(self, function: _Function) -> _Function: ...

    @overload
    def flow(
        self, *, name: str | None = None, trigger: Mapping[str, Any] | None = None, output_mode: str | None = None,
        conf: Mapping[str, str] | None = None, partitions: int | None = None,
        reads: Mapping[str, str] | None = None, kept: bool = False, schema: str | StructType | None = None,
        instances: int = 1, key: str | Mapping[str, str] | None = None,
        watermarks: Mapping[str, tuple[str, str]] | None = None, bucket: str | None = None,
        waits_at_most: str | None = None, within: str | None = None, alpha: float | None = None,
        while_away: str | None = None, while_correcting: str | None = None,
        keep: str | int | None = None, at_keep: str | None = None,
    ) -> Callable[[_Function], _Function]: ...  # fmt: skip

    def flow(self, function: _Function | None = None, *, kept: bool = False, **options: Any) -> Any:
        """Declares a flow: a function of flows, or of the session to read a source, that answers a DataFrame.

        `kept`: its channel has readers outside the pipeline. `reads`: options of its reads of other flows,
        `maxRowsPerTrigger`, `maxBatchesPerTrigger` and `failOnDataLoss`. `schema`: the columns of a flow in a cycle, as
        a StructType or as text, `id BIGINT, name STRING`. `instances`: the number of queries as which it runs, each on
        the rows of some keys. Each has a checkpoint, a watermark and a channel of its own. `key`: the column with the
        key, for all inputs, or by the name of each input. `watermarks`: by input, a column and a delay, as for Spark's
        `withWatermark`; a flow that reads instances needs it, and the slowest instance counts. `bucket`: a duration;
        the flow reads its inputs by buckets of that length, once no row of a bucket will come from any of them. It
        needs a watermark of each input. `waits_at_most`: a duration; once rows have waited so long for an input, the
        flow goes on without it, until it is back. `keep`: a size; how many stored bytes of its inputs may wait for the
        flow. `at_keep`: when more do, "block" holds the flows upstream that write what waits, and "go on" goes on
        without the input for which it waits. `within`: X, a duration; if an input is away, the flow answers
        without it, tentatively, before its rows have waited for so long. `alpha`: the share of X after which it begins
        to, 0.9. `while_away`: "delay" if each row is to wait so long, and not only the first ones. `while_correcting`:
        the same once the input is back, or "suspend" if the flow is to answer so no more. Raises `GraphError` for a
        second flow of one name.
        """
        check_names(self.name, "flow", options, FLOW_OPTIONS)

        def declare(made: _Function) -> _Function:
            return self._declare(made, is_sink=False, kept=kept, priority=1.0, **options)

        return declare if function is None else declare(function)

    @overload
    def sink(self, function: _Function) -> _Function: ...

    @overload
    def sink(
        self, *, name: str | None = None, priority: float = 1.0, trigger: Mapping[str, Any] | None = None,
        output_mode: str | None = None, conf: Mapping[str, str] | None = None, partitions: int | None = None,
        reads: Mapping[str, str] | None = None, watermarks: Mapping[str, tuple[str, str]] | None = None,
        bucket: str | None = None, waits_at_most: str | None = None, tentative: bool = False,
        keep: str | int | None = None, at_keep: str | None = None,
    ) -> Callable[[_Function], _Function]: ...  # fmt: skip

    def sink(self, function: _Function | None = None, *, priority: float = 1.0, **options: Any) -> Any:
        """Declares a sink: a function of flows that answers a DataStreamWriter. Its rows leave the pipeline.

        `priority`: the worth, after a failure, of the query that it ends, above 0. `tentative`: whether it reads
        tentative rows, too, with the columns `_kind` and `_epoch`. Raises `GraphError`.
        """
        check_names(self.name, "sink", options, SINK_OPTIONS)

        def declare(made: _Function) -> _Function:
            return self._declare(made, is_sink=True, kept=False, priority=priority, **options)

        return declare if function is None else declare(function)

    def graph(self) -> Graph:
        """Checks the graph, and answers it. Raises `GraphError` with all faults."""
        check_graph(Graph(self.name, {name: flow.node for name, flow in self._flows.items()}), cycles=self.cycles)
        graph = Graph(self.name, {name: flow.node for name, flow in self.flows.items()})
        check_flows(graph, self.checkpointing, {name: flow.trigger for name, flow in self.flows.items()})
        check_buckets(graph, self.checkpointing, [name for name, flow in self.flows.items() if flow.bucket_ms])
        check_inputs(graph, self.flows)
        check_blocking(graph, [name for name, flow in self.flows.items() if flow.blocks])
        bounded = [name for name, flow in self.flows.items() if flow.within is not None]
        check_bounds(graph, bounded, [name for name, flow in self.flows.items() if flow.tentative or flow.within])
        return graph

    def _declare(
        self, function: _Function, *, is_sink: bool, kept: bool, priority: float, name: str | None = None,
        trigger: Mapping[str, Any] | None = None, output_mode: str | None = None,
        conf: Mapping[str, str] | None = None, partitions: int | None = None,
        reads: Mapping[str, str] | None = None, schema: str | StructType | None = None, instances: int = 1,
        key: str | Mapping[str, str] | None = None, watermarks: Mapping[str, tuple[str, str]] | None = None,
        bucket: str | None = None, waits_at_most: str | None = None, tentative: bool = False,
        within: str | None = None, alpha: float | None = None, while_away: str | None = None,
        while_correcting: str | None = None, keep: str | int | None = None, at_keep: str | None = None,
    ) -> _Function:  # fmt: skip
        own = name or function.__name__
        _check_name(self.name, own)
        if own in self._flows:
            raise GraphError(self.name, [f"there are two flows of the name {own}: give one another name, with name="])
        if not (isinstance(priority, int | float) and priority > 0):
            raise GraphError(self.name, [f"sink {own} has priority={priority!r}: give a number above 0"])
        if partitions is not None and not (isinstance(partitions, int) and partitions >= 1):
            raise GraphError(self.name, [f"{own} has partitions={partitions!r}: give 1 or more"])
        parameters = _list_parameters(self.name, own, function)
        inputs = tuple(each for each in parameters if each != SESSION)
        if is_sink and not inputs:
            raise GraphError(self.name, [f"sink {own} reads no flow: name one as a parameter of its function"])
        if not is_sink and not parameters:
            raise GraphError(
                self.name, [f"flow {own} has no parameter: take {SESSION} to read a source, or name flows to read"]
            )
        for read in sorted((watermarks or {}).keys() - set(inputs)):
            raise GraphError(self.name, [f"{own} has a watermark of {read}, but it reads {inputs}"])
        check_options(self.name, own, trigger, output_mode, conf, reads)
        bound = parse_within(self.name, own, output_mode, trigger, within, alpha, while_away, while_correcting)
        reads_tentative = check_tentative(self.name, own, tentative, bucket, watermarks)
        bucket_ms = parse_bucket(self.name, own, bucket, within, inputs, watermarks or {}, trigger, reads)
        most_wait_ms = parse_wait(self.name, own, waits_at_most, bucket_ms, bound)
        keys = _parse_key(self.name, own, inputs, instances, key)
        node = Node(own, inputs, is_sink, priority, kept)
        made = Flow(
            node, function, parameters, trigger, output_mode, dict(conf or {}), partitions, dict(reads or {}), schema,
            instances, keys, dict(watermarks or {}), bucket_ms, within=bound, tentative=reads_tentative,
            most_wait_ms=most_wait_ms, keep=parse_keep(self.name, own, keep, at_keep, bucket_ms),
        )  # fmt: skip
        taken = {each for flow in self._flows.values() for each in _list_names(flow)}
        for each in _list_names(made):
            _check_name(self.name, each)
            if each in taken:
                raise GraphError(self.name, [f"an instance and a flow are both called {each}: give one another name"])
        self._flows[own] = made
        return function


def _parse_key(
    pipeline: str, name: str, inputs: tuple[str, ...], instances: int, key: str | Mapping[str, str] | None
) -> dict[str, str]:
    """The key column of each input; none for a flow that runs as one query."""
    if not isinstance(instances, int) or instances < 1:
        raise GraphError(pipeline, [f"{name} has instances={instances}: give 1 or more"])
    if instances == 1:
        return {}
    if not inputs:
        mend = "let another flow read it, and run that flow in instances"
        raise GraphError(pipeline, [f"{name} reads a source, so it cannot run in instances: {mend}"])
    found = dict.fromkeys(inputs, key) if isinstance(key, str) else dict(key or {})
    wrong = sorted(set(inputs) ^ found.keys())
    if wrong:
        each = f"key={{{', '.join(f'{read!r}: ...' for read in inputs)}}}"
        mend = f"give the column that assigns its rows, key='column', or a column for each input, {each}"
        raise GraphError(pipeline, [f"{name} runs in {instances} instances: {mend}"])
    return found


def _expand_instances(flows: Mapping[str, Flow]) -> dict[str, Flow]:
    """Replaces flows in instances by their instances, as flows and as inputs."""
    parts = {name: _make_parts(flow) for name, flow in flows.items()}
    channels = {name: tuple(each.name for each in made) for name, made in parts.items() if made}
    found = {}
    for name, flow in flows.items():
        inputs = tuple(one for read in flow.node.inputs for one in channels.get(read, (read,)))
        of = {read: channels[read] for read in flow.node.inputs if read in channels}
        for part in parts[name] or (None,):
            node = replace(flow.node, name=part.name if part else name, inputs=inputs, part=part)
            found[node.name] = replace(flow, node=node, channels=of)
    return found


def _list_names(flow: Flow) -> list[str]:
    """The names of the queries that run for a flow."""
    return [each.name for each in _make_parts(flow)] or [flow.node.name]


def _make_parts(flow: Flow) -> tuple[Part, ...]:
    if flow.instances == 1:
        return ()
    key = ", ".join(f"{read}.{column}" for read, column in sorted(flow.key.items()))
    return tuple(Part(flow.node.name, number + 1, flow.instances, key) for number in range(flow.instances))


def _list_parameters(pipeline: str, name: str, function: Callable[..., Any]) -> tuple[str, ...]:
    found = []
    for parameter in inspect.signature(function).parameters.values():
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            raise GraphError(pipeline, [f"{name} has the parameter *{parameter.name}: name each flow that it reads"])
        if parameter.default is parameter.empty:
            found.append(parameter.name)
    return tuple(found)


def _check_name(pipeline: str, name: str) -> None:
    if not _NAME.fullmatch(name) or name == SESSION:
        raise GraphError(
            pipeline, [f"{name!r} cannot be a name: give letters, digits, _ and -, a letter first, and not 'spark'"]
        )
