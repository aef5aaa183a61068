"""The graph of a pipeline: its flows, their inputs, and the checks before a start."""

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
    "and the folders of the flows that read it, because they have read the old channel, with the files that sinks "
    "among them have written"
)


class GraphError(CecError):
    """The graph of a pipeline cannot run. The message lists all faults. Attribute: `complaints`."""

    def __init__(self, pipeline: str, complaints: Sequence[str]) -> None:
        super().__init__(f"pipeline {pipeline}: " + "; ".join(complaints))
        self.complaints = tuple(complaints)


@dataclass(frozen=True, slots=True)
class Part:
    """The rows of one instance of a flow, the `number`-th of `count` from 1, by the hash of `key`.

    `key`: the column of each input, as the home records it.
    """

    flow: str
    number: int
    count: int
    key: str

    @property
    def name(self) -> str:
        """The name of the instance. It has the count, because with another count the rows of a key change instances."""
        return f"{self.flow}-{self.number}-of-{self.count}"


@dataclass(frozen=True, slots=True)
class Node:
    """A flow in the graph. `inputs`: the flows that it reads, in the order of its function's parameters.

    `is_sink`: its rows leave the pipeline. `priority`: prt_i of the query that it ends. `kept`: its channel has readers
    outside the pipeline, or later ones. `part`: the part of an instance; None for a flow that runs as one query.
    """

    name: str
    inputs: tuple[str, ...] = ()
    is_sink: bool = False
    priority: float = 1.0
    kept: bool = False
    part: Part | None = None

    @property
    def names(self) -> frozenset[str]:
        """The names by which a user chooses it: its own, and that of the flow in instances."""
        return frozenset([self.name, self.part.flow] if self.part else [self.name])


@dataclass(frozen=True, slots=True)
class Graph:
    """The nodes by name, in the order of their declaration."""

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
        """The flows that read this flow."""
        return self._readers[name]

    def upstream(self, name: str) -> frozenset[str]:
        """A flow with all flows that feed it, directly or not."""
        return self._reached([name], lambda each: self.nodes[each].inputs)

    def downstream(self, name: str) -> frozenset[str]:
        """A flow with all flows that it feeds, directly or not."""
        return self._reached([name], self.readers)

    def queries(self) -> list[Query]:
        """Each sink with all flows upstream of it."""
        return [Query(n.name, self.upstream(n.name), n.priority) for n in self.nodes.values() if n.is_sink]

    def order(self) -> list[tuple[str, ...]]:
        """The flows, each after those that feed it, else as declared; the flows of a cycle share a tuple."""
        with needed_by("a pipeline"):  # a declaration works without networkx
            import networkx

        fed = networkx.DiGraph()
        fed.add_nodes_from(self.nodes)
        fed.add_edges_from((read, node.name) for node in self.nodes.values() for read in node.inputs)
        parts = networkx.condensation(fed)
        declared = {name: i for i, name in enumerate(self.nodes)}
        members = {
            part: tuple(sorted(names, key=declared.__getitem__)) for part, names in parts.nodes(data="members")
        }
        first = networkx.lexicographical_topological_sort(parts, key=lambda part: declared[members[part][0]])
        return [members[part] for part in first]

    def cycles(self) -> list[tuple[str, ...]]:
        """The flows in cycles, one tuple for each strongly connected part."""
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
    """Raises `GraphError` with all faults: unknown inputs, flows without readers, sinks with readers.

    `cycles`: whether the graph may have cycles.
    """
    complaints = [] if graph.nodes else ["it has no flow: declare one with @pipeline.flow, and a @pipeline.sink"]
    complaints += [
        _describe_unknown(graph, node, read)
        for node in graph.nodes.values()
        for read in node.inputs
        if read not in graph.nodes
    ]
    for node in graph.nodes.values():
        readers = graph.readers(node.name)
        if node.is_sink and readers:
            complaints.append(
                f"{node.name} is a sink, whose rows leave the pipeline, and is read by {join_and(readers)}: make it a "
                "flow, and let a sink read that flow"
            )
        if not node.is_sink and not node.kept and not [each for each in readers if each != node.name]:
            complaints.append(
                f"no flow reads flow {node.name}: give it a reader, remove it, or declare @flow(kept=True) if it has "
                "readers outside the pipeline"
            )
    if not complaints and not cycles:
        complaints = [
            f"{join_and(each)} feed {'itself' if len(each) == 1 else 'one another'}, and cycles=False forbids that"
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
    known = frozenset[str]().union(*(node.names for node in graph.nodes.values()))
    unknown = [f"there is no flow {name}: {nearest(name, known)}" for name in sorted(frozenset(only) - known)]
    if unknown or not only:
        raise GraphError(graph.name, unknown or ["no flow was chosen to run"])
    return frozenset(node.name for node in graph.nodes.values() if node.names & frozenset(only))


def to_json(graph: Graph) -> dict[str, Any]:
    """The record of a graph, in `pipeline.json`."""
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
    graph: Graph, recorded: Mapping[str, Any], home: str, gone: Callable[[str], bool] = lambda _: False,
    base: str | None = None,
) -> list[str]:  # fmt: skip
    """Compares a graph with the one that its home was begun with; answers the new flows, which a graph may have.

    A recorded flow counts only if its checkpoint or its channel exists; `gone` says that both are gone. `base`: the
    home of both replicas, None without replicas. There nothing begins anew under its name: sinks would go on with the
    old channel of the other replica, and the old agreements would stay.

    Raises `GraphError` for another pipeline's home, and for removed or rewired flows: their readers' offsets are
    batches of channels that they would no longer read.
    """
    if recorded["name"] != graph.name:
        other = recorded["name"]
        raise GraphError(graph.name, [f"{home} is the home of pipeline {other}: give each a home of its own"])
    complaints = []
    known = {name: before for name, before in recorded["flows"].items() if name in graph.nodes or not gone(name)}
    for name, before in known.items():
        node = graph.nodes.get(name)
        kind = "sink" if before["sink"] else "flow"
        folder = f"{base}/sinks/{name}" if before["sink"] and base is not None else f"{home}/flows/{name}"
        if node is None and (again := _find_other_count(graph, name, before, base)):
            complaints += [again] if again not in complaints and not gone(name) else []
        elif node is None:
            complaints.append(
                f"{kind} {name} was removed: bring it back (if its function was renamed, declare "
                f"@{kind}(name={name!r})), or delete {folder}, with its checkpoint and its channel"
                f"{_name_rest(name, before, base)}, if you no longer want its rows"
            )
        elif _read_key(before) != (node.part.key if node.part else None) and not gone(name):
            complaints.append(
                f"{name} took its rows by {_read_key(before)}, and now by {node.part.key if node.part else None}: the "
                f"rows of one key would be in two instances; give the flow another name"
                + _or_delete(f"{home}/flows/{name} and the folders of the other instances", base)
            )
        elif (list(node.inputs) != before["inputs"] or node.is_sink != before["sink"]) and not gone(name):
            now = f"{'sink' if node.is_sink else 'flow'} of {join_and(node.inputs) or 'a source'}"
            then = f"{kind} of {join_and(before['inputs']) or 'a source'}"
            anew = _or_delete(f"{folder} to begin it anew", base)
            complaints.append(f"{name} was rewired, from a {then} to a {now}: give the new one another name{anew}")
    if complaints:
        raise GraphError(graph.name, complaints)
    return [name for name in graph.nodes if name not in known]


def _read_key(recorded: Mapping[str, Any]) -> str | None:
    part = recorded.get("part")
    return part["key"] if part else None


def _name_rest(name: str, recorded: Mapping[str, Any], base: str | None) -> str:
    """What to delete with the folder of a removed flow or sink. `base` as in `check_recorded`."""
    if recorded["sink"]:
        return ", and the files that it has written"
    is_agreed_on = base is not None and not recorded["inputs"]
    return f", and {base}/agreed/{name}" if is_agreed_on else ""


def _or_delete(folders: str, base: str | None) -> str:
    """The way to begin a flow anew under its name, which replicas do not have. `base` as in `check_recorded`."""
    return f", or delete {folders} ({_READERS_TOO})" if base is None else ""


def _find_other_count(graph: Graph, name: str, recorded: Mapping[str, Any], base: str | None) -> str | None:
    """The complaint about a changed number of instances; None if the number did not change."""
    part = Part(**recorded["part"]) if recorded.get("part") else Part(name, 1, 1, "")
    count = sum(part.flow in node.names for node in graph.nodes.values())
    if not count:
        return None
    return (
        f"flow {part.flow} ran in {_count_instances(part.count)}, and is to run in {_count_instances(count)}: the rows "
        f"of one key would be in two instances; go back to {part.count}, {'or ' if base is not None else ''}give it "
        f"another name{_or_delete('the folders of all instances', base)}"
    )


def _count_instances(count: int) -> str:
    return "one instance" if count == 1 else f"{count} instances"


def check_columns(
    graph: Graph, recorded: Mapping[str, str], schemas: Mapping[str, str], home: str, gone: Callable[[str], bool],
    base: str | None = None,
) -> None:  # fmt: skip
    """Compares the columns of flows with the recorded ones, which their channels may still hold.

    Columns may come and go. `recorded`, `schemas`: by flow, Spark's JSON. `gone` and `base` as in `check_recorded`.

    Raises `GraphError` if a column has another type: its readers could not tell old rows from new ones.
    """
    complaints = [
        f"column {column} of flow {name} was {before}, and is {now}: give the new one another name"
        + _or_delete(f"{home}/flows/{name} to begin it anew", base)
        for name in graph.nodes
        if name in recorded and name in schemas and graph.readers(name)
        for column, before, now in changed_columns(recorded[name], schemas[name])
        if not gone(name)
    ]
    if complaints:
        raise GraphError(graph.name, complaints)


def _describe_unknown(graph: Graph, node: Node, read: str) -> str:
    hint = nearest(read, [name for name in graph.nodes if not graph.nodes[name].is_sink])
    return f"{'sink' if node.is_sink else 'flow'} {node.name} reads {read}, which is no flow: {hint}"


def nearest(name: str, known: Iterable[str]) -> str:
    """A hint for an unknown name: the nearest known one, or all."""
    names = list(known)
    near = difflib.get_close_matches(name, names, n=1)
    return f"did you mean {near[0]}?" if near else f"there are {join_and(names)}"


def join_and(names: Iterable[str]) -> str:
    each = list(names)
    return " and ".join([", ".join(each[:-1]), each[-1]] if len(each) > 1 else each)
