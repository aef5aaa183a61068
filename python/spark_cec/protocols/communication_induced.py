"""Communication-induced: each process by its own clock, and messages force checkpoints that keep the others useful.

HMNR is the protocol of Hélary, Mostéfaoui, Netzer and Raynal ("Communication-based prevention of useless checkpoints in
distributed computations", Distributed Computing 13, 2000), with its names; BCS that of Briatico, Ciuffoletti and
Simoncini (1984), which knows the Lamport clock alone. The recovery line is found as without coordination.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from spark_cec.protocols.uncoordinated import recovery_line
from spark_cec.protocols.words import Action, Machine, Piggyback, Process, TakeCheckpoint

__all__ = ["BCS", "HMNR", "recovery_line"]

_NOTHING: Sequence[Action] = ()


class HMNR(Machine):
    """One process P_i.

    `lc`: its Lamport clock. `ckpt[k]`: how many checkpoints P_k has taken, as far as it knows. `taken[k]`: whether a
    causal path with a checkpoint on it leads from the last of these to its own next one. `greater[k]`: whether its
    clock is greater than that of P_k, as far as it knows. `sent_to`: to whom it has sent since its last checkpoint.
    """

    def __init__(self, process: Process, processes: Iterable[Process], readers: Iterable[Process]) -> None:
        """`processes`: all of the pipeline; `readers`: to whom its messages go."""
        self.process = process
        self._readers = frozenset(readers)
        everybody = list(processes)
        self.lc = 0
        self.ckpt = dict.fromkeys(everybody, 0)
        self.taken = dict.fromkeys(everybody, False)
        self.greater = dict.fromkeys(everybody, False)
        self.sent_to: frozenset[Process] = frozenset()
        self._checkpoint()  # its beginning

    def timer(self) -> Sequence[Action]:
        """See `Machine`."""
        return self._take(forced=False)

    def sends(self) -> Piggyback:
        """The clocks, and the processes of which `taken` and `greater` hold."""
        self.sent_to = self._readers
        return self._clocks()

    def _clocks(self) -> Piggyback:
        return {
            "lc": self.lc,
            "ckpt": dict(self.ckpt),
            "taken": [k for k, is_so in self.taken.items() if is_so],
            "greater": [k for k, is_so in self.greater.items() if is_so],
        }

    def force(self, *messages: tuple[Process, Piggyback]) -> Sequence[Action]:
        """A checkpoint is forced where one of the messages would close a Z-cycle, or may.

        It comes before all of them: each is judged by the state before, in which the clock is no greater than it would
        be behind the others, so that no force is missed.
        """
        return self._take(forced=True) if any(self._forces(added) for _, added in messages) else _NOTHING

    def learn(self, *messages: tuple[Process, Piggyback]) -> None:
        """See `Machine`."""
        for _, added in messages:
            self._learn(int(added["lc"]), added["ckpt"], frozenset(added["taken"]), frozenset(added["greater"]))

    def state(self) -> Piggyback:
        """As a message has it: since the checkpoint nothing was sent."""
        return self._clocks()

    def restore(self, state: Piggyback) -> None:
        """See `Machine`."""
        self.lc, self.ckpt = int(state["lc"]), {k: int(state["ckpt"].get(k, 0)) for k in self.ckpt}
        self.taken = {k: k in state["taken"] for k in self.taken}
        self.greater = {k: k in state["greater"] for k in self.greater}
        self.sent_to = frozenset()

    def _forces(self, added: Piggyback) -> bool:
        hidden = added["lc"] > self.lc and any(k in added["greater"] for k in self.sent_to)
        return hidden or (added["ckpt"][self.process] == self.ckpt[self.process] and self.process in added["taken"])

    def _learn(self, lc: int, ckpt: Piggyback, taken: frozenset[Process], greater: frozenset[Process]) -> None:
        others = [k for k in self.ckpt if k != self.process]
        if lc > self.lc:
            self.lc = lc
            self.greater.update({k: k in greater for k in others})
        elif lc == self.lc:
            self.greater.update({k: self.greater[k] and k in greater for k in others})
        for k in others:
            if ckpt[k] > self.ckpt[k]:
                self.ckpt[k], self.taken[k] = ckpt[k], k in taken
            elif ckpt[k] == self.ckpt[k]:
                self.taken[k] = self.taken[k] or k in taken

    def _take(self, *, forced: bool) -> Sequence[Action]:
        self._checkpoint()
        return (TakeCheckpoint(forced=forced),)

    def _checkpoint(self) -> None:
        self.sent_to = frozenset()
        for k in self.ckpt:
            if k != self.process:
                self.taken[k] = True
                self.greater[k] = True
        self.lc += 1
        self.ckpt[self.process] += 1


class BCS(Machine):
    """One process: checkpoints with the same clock are a consistent line."""

    def __init__(self) -> None:
        self.lc = 0

    def timer(self) -> Sequence[Action]:
        """See `Machine`."""
        self.lc += 1
        return (TakeCheckpoint(),)

    def sends(self) -> Piggyback:
        """The clock."""
        return {"lc": self.lc}

    def state(self) -> Piggyback:
        """See `Machine`."""
        return self.sends()

    def restore(self, state: Piggyback) -> None:
        """See `Machine`."""
        self.lc = int(state["lc"])

    def force(self, *messages: tuple[Process, Piggyback]) -> Sequence[Action]:
        """A checkpoint is forced where a sender's clock is ahead."""
        ahead = max((int(added["lc"]) for _, added in messages), default=0)
        if ahead <= self.lc:
            return _NOTHING
        self.lc = ahead
        return (TakeCheckpoint(forced=True),)
