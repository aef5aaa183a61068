"""How a user says what a pipeline is: functions, decorated, whose parameters name the flows that they read."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar, overload

from spark_cec.pipeline.graph import Graph, GraphError, Node, check_graph

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

_Function = TypeVar("_Function", bound=Callable[..., Any])

SESSION = "spark"
"""The parameter that is the Spark session, and no flow."""

READ_OPTIONS = frozenset({"maxRowsPerTrigger", "maxBatchesPerTrigger", "failOnDataLoss"})
"""What a flow may say of how it reads others."""

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_-]{0,99}")


@dataclass(frozen=True, slots=True)
class Flow:
    """A declared flow or sink: its node, its function, and how its query runs.

    `function` takes, as `parameters`, the session and a streaming DataFrame for each input; a flow answers a streaming
    DataFrame, a sink a DataStreamWriter. `trigger` are the keywords of Spark's `trigger`, `partitions` of its state,
    `reads` options of the reads of its inputs; `schema` are a flow's columns, which only a cycle needs to be told.
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


class Declaration:
    """What a pipeline is made of; `spark_cec.pipeline.Pipeline` is one that can be run."""

    def __init__(self, name: str, home: str, *, cycles: bool = True) -> None:
        """Raises `GraphError` for a name that cannot be that of a directory."""
        _check_name(name, name)
        self.name = name
        self.home = home.rstrip("/") or home
        self.cycles = cycles
        self._flows: dict[str, Flow] = {}

    @property
    def flows(self) -> Mapping[str, Flow]:
        """What was declared, by name."""
        return dict(self._flows)

    @overload
    def flow(self, function: _Function) -> _Function: ...

    @overload
    def flow(
        self, *, name: str | None = None, trigger: Mapping[str, Any] | None = None, output_mode: str | None = None,
        conf: Mapping[str, str] | None = None, partitions: int | None = None,
        reads: Mapping[str, str] | None = None, kept: bool = False, schema: str | StructType | None = None,
    ) -> Callable[[_Function], _Function]: ...  # fmt: skip

    def flow(self, function: _Function | None = None, *, kept: bool = False, **options: Any) -> Any:
        """Declares a flow: a function of flows, and of the session where it reads a source, that answers a DataFrame.

        `kept`: its channel is read from outside. `reads`: options of its reads of other flows, `maxRowsPerTrigger` and
        `maxBatchesPerTrigger`. `schema`, where the flow feeds itself: its columns, as a StructType or
        as text, `id BIGINT, name STRING`. Raises `GraphError` for a second flow of one name.
        """
        def declare(made: _Function) -> _Function:
            return self._declare(made, is_sink=False, kept=kept, priority=1.0, **options)

        return declare if function is None else declare(function)

    @overload
    def sink(self, function: _Function) -> _Function: ...

    @overload
    def sink(
        self, *, name: str | None = None, priority: float = 1.0, trigger: Mapping[str, Any] | None = None,
        output_mode: str | None = None, conf: Mapping[str, str] | None = None, partitions: int | None = None,
        reads: Mapping[str, str] | None = None,
    ) -> Callable[[_Function], _Function]: ...  # fmt: skip

    def sink(self, function: _Function | None = None, *, priority: float = 1.0, **options: Any) -> Any:
        """Declares a sink: a function of flows that answers a DataStreamWriter; its rows leave the pipeline.

        `priority`: what the query that it ends is worth after a failure, above 0. Raises `GraphError`.
        """
        def declare(made: _Function) -> _Function:
            return self._declare(made, is_sink=True, kept=False, priority=priority, **options)

        return declare if function is None else declare(function)

    def graph(self) -> Graph:
        """The graph, checked. Raises `GraphError` with all that is wrong."""
        graph = Graph(self.name, {name: flow.node for name, flow in self._flows.items()})
        check_graph(graph, cycles=self.cycles)
        return graph

    def _declare(
        self, function: _Function, *, is_sink: bool, kept: bool, priority: float, name: str | None = None,
        trigger: Mapping[str, Any] | None = None, output_mode: str | None = None,
        conf: Mapping[str, str] | None = None, partitions: int | None = None,
        reads: Mapping[str, str] | None = None, schema: str | StructType | None = None,
    ) -> _Function:  # fmt: skip
        own = name or function.__name__
        _check_name(self.name, own)
        if own in self._flows:
            raise GraphError(self.name, [f"there are two flows of the name {own}: give one another, with name="])
        if not priority > 0:
            raise GraphError(self.name, [f"sink {own} has priority={priority:g}: give a number above 0"])
        if partitions is not None and partitions < 1:
            raise GraphError(self.name, [f"{own} has partitions={partitions}: give 1 or more"])
        parameters = _parameters(self.name, own, function)
        inputs = tuple(each for each in parameters if each != SESSION)
        if is_sink and not inputs:
            raise GraphError(self.name, [f"sink {own} reads no flow: name one as a parameter of its function"])
        if not is_sink and not parameters:
            raise GraphError(
                self.name, [f"flow {own} has no parameter: take {SESSION} to read a source, or name flows to read"]
            )
        unknown = sorted((reads or {}).keys() - READ_OPTIONS)
        if unknown:
            known = ", ".join(sorted(READ_OPTIONS))
            raise GraphError(self.name, [f"{own} has reads={{'{unknown[0]}': ...}}: the options of a read are {known}"])
        node = Node(own, inputs, is_sink, priority, kept)
        self._flows[own] = Flow(
            node, function, parameters, trigger, output_mode, dict(conf or {}), partitions, dict(reads or {}), schema
        )
        return function


def _parameters(pipeline: str, name: str, function: Callable[..., Any]) -> tuple[str, ...]:
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
