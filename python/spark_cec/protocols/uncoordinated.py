"""Uncoordinated: each process checkpoints by its own clock, and a search after a failure finds the recovery line."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise

from spark_cec.errors import NoLine
from spark_cec.protocols.messages import Action, Checkpoint, Line, Machine, Process, TakeCheckpoint


class UncoordinatedMachine(Machine):
    """Checkpoints when its interval has passed, whatever the other processes do."""

    def timer(self) -> Sequence[Action]:
        """See `Machine`."""
        return (TakeCheckpoint(),)


Node = tuple[Process, int]
"""A checkpoint in the graph: its process and its number."""


def checkpoint_graph(checkpoints: Mapping[Process, Sequence[Checkpoint]]) -> dict[Node, set[Node]]:
    """The edges of the checkpoint graph, by their first node. Source: CheckMate, section III-B.

    An edge leads from c(i, x) to c(j, y) if j processed before c(j, y) a message that i sent after c(i, x). Another
    leads from each checkpoint to the next one of its process. Of several such c(j, y) only the first has an edge,
    because the others are reached from it. With all edges the graph would grow with the square of the checkpoints.
    """
    edges: dict[Node, set[Node]] = {}
    for process, own in checkpoints.items():
        for at, following in pairwise(own):
            edges.setdefault((process, at.number), set()).add((process, following.number))
        for receiver, theirs in checkpoints.items():
            received = [each.received.get(process, 0) for each in theirs] if receiver != process else []
            for at in own if received and received[-1] else ():
                late = bisect_right(received, at.sent)
                if late < len(theirs):
                    edges.setdefault((process, at.number), set()).add((receiver, theirs[late].number))
    return edges


def recovery_line(checkpoints: Mapping[Process, Sequence[Checkpoint]]) -> Line:
    """The newest consistent line, by rollback propagation (CheckMate, Algorithm 1).

    `checkpoints`: of each process, oldest first. The first is the beginning, which is consistent with all others. If a
    beginning was deleted, all first checkpoints must be consistent with one another; else `NoLine`. A process that has
    not failed may give its present state as its newest checkpoint. A process that reads its own channel never has an
    orphan there, because it had sent each message before it received it.
    """
    edges = checkpoint_graph(checkpoints)
    newest = {process: len(own) - 1 for process, own in checkpoints.items()}
    known = {process: {each.number: at for at, each in enumerate(own)} for process, own in checkpoints.items()}
    while True:
        root = [(process, checkpoints[process][at].number) for process, at in newest.items()]
        marked = _strictly_reachable(edges, root)
        hit = [node for node in root if node in marked]
        if not hit:
            return {process: checkpoints[process][at] for process, at in newest.items()}
        for process, number in hit:
            at = known[process][number]
            while (process, checkpoints[process][at].number) in marked:
                at -= 1  # no edge leads to the beginning: nothing was received before it
                if at < 0:
                    raise NoLine(checkpoints)
            newest[process] = at


def _strictly_reachable(edges: Mapping[Node, set[Node]], roots: Iterable[Node]) -> set[Node]:
    """The nodes that a path of at least one edge reaches from a root."""
    found: set[Node] = set()
    open_nodes = list(roots)
    while open_nodes:
        for node in edges.get(open_nodes.pop(), ()):
            if node not in found:
                found.add(node)
                open_nodes.append(node)
    return found
