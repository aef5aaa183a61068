"""The graph of a pipeline: flows, what each reads, and what can be wrong with it, before anything starts."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from spark_cec.checkpoint.columns import changed_columns
from spark_cec.errors import CecError
from spark_cec.extras import needed_by
from spark_cec.recovery.progressive import Query

_READERS_TOO = (
    "and those of the flows that read it, which would not know it, with the files that sinks among them have written"
)


class GraphError(CecError):
    """The graph of a pipeline cannot be run: the message lists all that is wrong. Attribute: `complaints`."""

    def __init__(self, pipeline: str, complaints: Sequence[str]) -> None:
        super().__init__(f"pipeline {pipeline}: " + "; ".join(complaints))
        self.complaints = tuple(complaints)


@dataclass(frozen=True, slots=True)
class Part:
    """Which rows one of the `count` instances of a flow takes, the `number`-th from 1: by the hash of `key`.

    `key`: as it is recorded, the column of each input.
    """

    flow: str
    number: int
    count: int
    key: str

    @property
    def name(self) -> str:
        """Of the instance, with how many there are: where that changes, the rows of a key are another one's."""
        return f"{self.flow}-{self.number}-of-{self.count}"


@dataclass(frozen=True, slots=True)
class Node:
    """A flow in the graph: the flows that it reads, in the order of its function's parameters.

    A sink's rows leave the pipeline; `priority` is prt_i of the query that it ends. The channel of a `kept` flow is
    read from outside, or later. `part`: of a flow that runs in several instances.
    """

    name: str
    inputs: tuple[str, ...] = ()
    is_sink: bool = False
    priority: float = 1.0
    kept: bool = False
    part: Part | None = None

    @property
    def is_called(self) -> frozenset[str]:
        """The names that mean it: its own, and that of the flow of which it is an instance."""
        return frozenset([self.name, self.part.flow] if self.part else [self.name])


@dataclass(frozen=True, slots=True)
class Graph:
    """Nodes by name, in the order in which they were declared."""

    name: str
    nodes: Mapping[str, Node]
    _readers: Mapping[str, tuple[str, ...]] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        readers: dict[str, list[str]] = {name: [] for name in self.nodes}
        for node in self.nodes.values():
            for read in dict.fromkeys(node.inputs):
                readers.setdefault(read, []).append(node.name)
        object.__setattr__(self, "_readers", {name: tuple(each) for name, each in readers.items()})

    def readers(self, name: str) -> tuple[str, ...]:
        """The flows that read this one."""
        return self._readers[name]

    def upstream(self, name: str) -> frozenset[str]:
        """A flow with all that it is fed by, itself among them."""
        return self._reached([name], lambda each: self.nodes[each].inputs)

    def downstream(self, name: str) -> frozenset[str]:
        """A flow with all that it feeds, itself among them."""
        return self._reached([name], self.readers)

    def queries(self) -> list[Query]:
        """Each sink with all flows upstream of it."""
        return [Query(n.name, self.upstream(n.name), n.priority) for n in self.nodes.values() if n.is_sink]

    def order(self) -> list[tuple[str, ...]]:
        """The flows, what feeds before what is fed, as they were declared; those of a cycle together."""
        with needed_by("a pipeline"):  # here, because a pipeline can be declared without networkx
            import networkx

        fed = networkx.DiGraph()
        fed.add_nodes_from(self.nodes)
        fed.add_edges_from((read, node.name) for node in self.nodes.values() for read in node.inputs)
        knots = networkx.condensation(fed)
        declared = {name: i for i, name in enumerate(self.nodes)}
        members = {
            knot: tuple(sorted(names, key=declared.__getitem__)) for knot, names in knots.nodes(data="members")
        }
        first = networkx.lexicographical_topological_sort(knots, key=lambda knot: declared[members[knot][0]])
        return [members[knot] for knot in first]

    def cycles(self) -> list[tuple[str, ...]]:
        """The flows that feed themselves, alone or through one another; one tuple for each knot of them."""
        return [each for each in self.order() if len(each) > 1 or each[0] in self.nodes[each[0]].inputs]

    def _reached(self, begin: Iterable[str], step: Any) -> frozenset[str]:
        found: set[str] = set()
        left = list(begin)
        while left:
            name = left.pop()
            if name not in found:
                found.add(name)
                left.extend(step(name))
        return frozenset(found)


def check_graph(graph: Graph, *, cycles: bool = True) -> None:
    """Raises `GraphError` with all that is wrong: unknown inputs, flows that nobody reads, sinks that are read.

    `cycles`: whether flows may feed themselves.
    """
    complaints = [] if graph.nodes else ["it has no flow: declare one with @pipeline.flow, and a @pipeline.sink"]
    complaints += [_unknown(graph, node, read) for node in graph.nodes.values() for read in node.inputs
                   if read not in graph.nodes]  # fmt: skip
    for node in graph.nodes.values():
        readers = graph.readers(node.name)
        if node.is_sink and readers:
            complaints.append(
                f"{node.name} is a sink, whose rows leave the pipeline, and is read by {_and(readers)}: make it a "
                f"flow, and let a sink read that"
            )
        if not node.is_sink and not node.kept and not [each for each in readers if each != node.name]:
            complaints.append(
                f"nobody reads flow {node.name}: give it a reader, remove it, or say @flow(kept=True) if it is read "
                f"from outside"
            )
    if not complaints and not cycles:
        complaints = [
            f"{_and(each)} feed {'itself' if len(each) == 1 else 'one another'}, and cycles=False forbids that"
            for each in graph.cycles()
        ]
    if complaints:
        raise GraphError(graph.name, complaints)


def choose_flows(graph: Graph, only: Collection[str] | None) -> frozenset[str]:
    """The flows to run; all flows if `only` is None. The name of a flow in instances stands for all of them.

    Raises `GraphError` for a name that no flow has, and for an empty choice.
    """
    if only is None:
        return frozenset(graph.nodes)
    known = frozenset[str]().union(*(node.is_called for node in graph.nodes.values()))
    unknown = [f"there is no flow {name}: {nearest(name, known)}" for name in sorted(frozenset(only) - known)]
    if unknown or not only:
        raise GraphError(graph.name, unknown or ["no flow was chosen to run"])
    return frozenset(node.name for node in graph.nodes.values() if node.is_called & frozenset(only))


def to_json(graph: Graph) -> dict[str, Any]:
    """What is recorded of a graph, in `pipeline.json`."""
    return {
        "name": graph.name,
        "flows": {
            node.name: {
                "inputs": list(node.inputs), "sink": node.is_sink, "kept": node.kept, "priority": node.priority,
                **({"part": asdict(node.part)} if node.part else {}),
            }
            for node in graph.nodes.values()
        },
    }  # fmt: skip


def check_recorded(
    graph: Graph, recorded: Mapping[str, Any], home: str, gone: Callable[[str], bool] = lambda _: False
) -> list[str]:
    """Compares a graph with the one that its home was begun with; answers the flows that are new, which is fine.

    A recorded flow that is `gone`, checkpoint and channel, was never there.

    Raises `GraphError` for another pipeline's home, and for flows that are gone or rewired: their readers' offsets are
    batches of channels that they would not read any more.
    """
    if recorded["name"] != graph.name:
        other = recorded["name"]
        raise GraphError(graph.name, [f"{home} is the home of pipeline {other}: give each a home of its own"])
    complaints = []
    known = {name: before for name, before in recorded["flows"].items() if name in graph.nodes or not gone(name)}
    for name, before in known.items():
        node = graph.nodes.get(name)
        kind = "sink" if before["sink"] else "flow"
        if node is None and (again := _in_other_parts(graph, name, before)):
            complaints += [again] if again not in complaints and not gone(name) else []
        elif node is None:
            files = ", and the files that it has written" if before["sink"] else ""
            complaints.append(
                f"{kind} {name} was removed: bring it back (if its function was renamed, say "
                f"@{kind}(name={name!r})), or delete {home}/flows/{name}, with its checkpoint and its channel{files}, "
                f"if its rows are not wanted any more"
            )
        elif _key(before) != (node.part.key if node.part else None) and not gone(name):
            complaints.append(
                f"{name} took its rows by {_key(before)}, and now by {node.part.key if node.part else None}: those of "
                f"one key would be in two instances; give the flow another name, or delete {home}/flows/{name} and its "
                f"like ({_READERS_TOO})"
            )
        elif (list(node.inputs) != before["inputs"] or node.is_sink != before["sink"]) and not gone(name):
            now = f"{'sink' if node.is_sink else 'flow'} of {_and(node.inputs) or 'a source'}"
            then = f"{kind} of {_and(before['inputs']) or 'a source'}"
            complaints.append(
                f"{name} was rewired, from a {then} to a {now}: give what it is now another name, or delete "
                f"{home}/flows/{name} to begin it anew ({_READERS_TOO})"
            )
    if complaints:
        raise GraphError(graph.name, complaints)
    return [name for name in graph.nodes if name not in known]


def _key(recorded: Mapping[str, Any]) -> str | None:
    part = recorded.get("part")
    return part["key"] if part else None


def _in_other_parts(graph: Graph, name: str, recorded: Mapping[str, Any]) -> str | None:
    """What is wrong where a flow runs in another number of instances now; None if that is not it."""
    part = Part(**recorded["part"]) if recorded.get("part") else Part(name, 1, 1, "")
    count = sum(part.flow in node.is_called for node in graph.nodes.values())
    if not count:
        return None
    return (
        f"flow {part.flow} ran in {_instances(part.count)}, and is to run in {_instances(count)}: the rows of one key "
        f"would be in two of them; go back to {part.count}, give it another name, or delete the folders of all "
        f"({_READERS_TOO})"
    )


def _instances(count: int) -> str:
    return "one instance" if count == 1 else f"{count} instances"


def check_columns(
    graph: Graph, recorded: Mapping[str, str], schemas: Mapping[str, str], home: str, gone: Callable[[str], bool]
) -> None:
    """Compares what flows answer with what their channels may still hold; columns may come and go.

    `recorded`, `schemas`: by flow, Spark's JSON. A flow that is `gone`, checkpoint and channel, was never there.

    Raises `GraphError` where one has another type: its readers would not know which of its rows are which.
    """
    complaints = [
        f"column {column} of flow {name} was {before}, and is {now}: give it another name, or delete "
        f"{home}/flows/{name} to begin it anew ({_READERS_TOO})"
        for name in graph.nodes
        if name in recorded and name in schemas and graph.readers(name)
        for column, before, now in changed_columns(recorded[name], schemas[name])
        if not gone(name)
    ]
    if complaints:
        raise GraphError(graph.name, complaints)


def _unknown(graph: Graph, node: Node, read: str) -> str:
    hint = nearest(read, [name for name in graph.nodes if not graph.nodes[name].is_sink])
    return f"{'sink' if node.is_sink else 'flow'} {node.name} reads {read}, which is no flow: {hint}"


def nearest(name: str, known: Iterable[str]) -> str:
    """What may have been meant by a name that is not known."""
    names = list(known)
    near = difflib.get_close_matches(name, names, n=1)
    return f"did you mean {near[0]}?" if near else f"there are {_and(names)}"


def _and(names: Iterable[str]) -> str:
    each = list(names)
    return " and ".join([", ".join(each[:-1]), each[-1]] if len(each) > 1 else each)
