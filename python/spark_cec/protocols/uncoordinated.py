"""Uncoordinated: each process checkpoints by its own clock, and the recovery line is looked for after a failure."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise

from spark_cec.errors import NoLine
from spark_cec.protocols.words import Action, Checkpoint, Line, Machine, Process, TakeCheckpoint


class UncoordinatedMachine(Machine):
    """Checkpoints when its interval has passed, and asks nobody."""

    def timer(self) -> Sequence[Action]:
        """See `Machine`."""
        return (TakeCheckpoint(),)


Node = tuple[Process, int]
"""A checkpoint in the graph: its process and number."""


def checkpoint_graph(checkpoints: Mapping[Process, Sequence[Checkpoint]]) -> dict[Node, set[Node]]:
    """The edges of the checkpoint graph, by where they begin.

    From c(i, x) to c(j, y) where a message that i sent after c(i, x) was processed by j before c(j, y); and from each
    checkpoint to the next one of its process. Of several such c(j, y) the first has the edge: the others are reached
    from there, and their number would grow with the square of that of the checkpoints. Source: CheckMate, section
    III-B.
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

    `checkpoints`: of each process, oldest first; the first is its beginning, which is consistent with everything, or
    where that is not given any more, all the first ones are consistent with one another; `NoLine` if they are not. A
    process that has not failed may give its present state as the newest one. A process that reads its own channel
    never has an orphan there: what it received it had sent before.
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
                at -= 1  # the beginning is reached by nobody: nothing was received before it
                if at < 0:
                    raise NoLine(checkpoints)
            newest[process] = at


def _strictly_reachable(edges: Mapping[Node, set[Node]], roots: Iterable[Node]) -> set[Node]:
    """All nodes to which a path of at least one edge leads from a root."""
    found: set[Node] = set()
    open_nodes = list(roots)
    while open_nodes:
        for node in edges.get(open_nodes.pop(), ()):
            if node not in found:
                found.add(node)
                open_nodes.append(node)
    return found
