"""Coordinated, aligned: markers travel with the messages, and each round of checkpoints is a consistent line.

Source: Chandy and Lamport (1985), as dataflow engines have it: CheckMate, section III-A.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from spark_cec.errors import NoLine
from spark_cec.protocols.messages import (
    Action,
    Block,
    Checkpoint,
    Line,
    Machine,
    PassMarker,
    Piggyback,
    Process,
    TakeCheckpoint,
    Unblock,
)

_ROUNDS_OF_A_RUN = 1 << 40
"""More rounds than a run can have."""


class CycleRefused(ValueError):
    """In a cycle, markers would wait for themselves: the first process blocks the input that its marker must pass."""

    def __init__(self, cycle: Sequence[Process]) -> None:
        way = " -> ".join([*cycle, cycle[0]])
        super().__init__(
            f"coordinated checkpoints cannot run on a cycle of flows ({way}): choose another protocol, or break the "
            "cycle"
        )


class CoordinatedMachine(Machine):
    """Blocks each input at its marker until all markers have come; then checkpoints, and passes the marker on."""

    def __init__(self, inputs: Iterable[Process]) -> None:
        """`inputs`: the processes whose messages this one reads. A source has none, and begins the rounds."""
        self._inputs = frozenset(inputs)
        self._round = 0
        self._come: set[Process] = set()

    def timer(self) -> Sequence[Action]:
        """Begins a round at a source; all other processes wait for markers."""
        if self._inputs:
            return ()
        self._round += 1
        return TakeCheckpoint(round=self._round), PassMarker(self._round)

    def stop(self, run: int) -> Sequence[Action]:
        """Takes a checkpoint for a round above all earlier ones. It needs no markers, because nothing more is sent."""
        self._round, self._come = run * _ROUNDS_OF_A_RUN, set()
        return (TakeCheckpoint(round=self._round),)

    @property
    def round(self) -> int:
        """The last round for which the process has checkpointed."""
        return self._round

    def force(self, *messages: tuple[Process, Piggyback]) -> Sequence[Action]:
        """Raises `ValueError` for a message of a blocked input."""
        for sender in {sender for sender, _ in messages} & self._come:
            raise ValueError(f"a message of {sender} was processed, but it is blocked for round {self._round + 1}")
        return ()

    def marker(self, sender: Process, round_: int) -> Sequence[Action]:
        """See `Machine`. Markers of one input come in the order of their rounds."""
        if round_ != self._round + 1 or sender not in self._inputs or sender in self._come:
            raise ValueError(f"the marker of round {round_} from {sender}, but round {self._round + 1} is under way")
        self._come.add(sender)
        if self._come != self._inputs:
            return (Block(sender),)
        self._round, self._come = round_, set()
        return TakeCheckpoint(round=round_), PassMarker(round_), Unblock()

    def state(self) -> Piggyback:
        """See `Machine`."""
        return {"round": self._round}

    def restore(self, state: Piggyback) -> None:
        """See `Machine`."""
        self._round, self._come = int(state["round"]), set()


def refuse_cycles(inputs: Mapping[Process, Iterable[Process]]) -> None:
    """Raises `CycleRefused` with the first cycle. `inputs`: the processes that each process reads."""
    done: set[Process] = set()
    path: list[Process] = []

    def visit(process: Process) -> None:
        if process in path:
            raise CycleRefused(path[path.index(process) :][::-1])
        if process not in done:
            path.append(process)
            for each in inputs.get(process, ()):
                visit(each)
            path.pop()
            done.add(process)

    for process in inputs:
        visit(process)


def recovery_line(checkpoints: Mapping[Process, Sequence[Checkpoint]]) -> Line:
    """The checkpoints of the last round that all processes have completed; round 0 is the beginning.

    Raises `NoLine` if no round is complete.
    """
    by_round = {
        process: {each.round if each.round is not None else 0: each for each in own}
        for process, own in checkpoints.items()
    }
    complete = max(set.intersection(*(set(rounds) for rounds in by_round.values())), default=None)
    if complete is None:
        raise NoLine(checkpoints)
    return {process: rounds[complete] for process, rounds in by_round.items()}
