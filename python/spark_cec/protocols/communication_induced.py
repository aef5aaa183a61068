"""Communication-induced: each process by its own clock, and messages force checkpoints that keep the others useful.

HMNR is the protocol of Hélary, Mostéfaoui, Netzer and Raynal ("Communication-based prevention of useless checkpoints in
distributed computations", Distributed Computing 13, 2000), with its names; BCS that of Briatico, Ciuffoletti and
Simoncini (1984), which knows the Lamport clock alone. The recovery line is found as without coordination.
"""

from __future__ import annotations

import copy
import functools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from spark_cec.protocols.uncoordinated import recovery_line
from spark_cec.protocols.words import Action, Machine, Piggyback, Process, TakeCheckpoint

__all__ = ["BCS", "HMNR", "Clocks", "recovery_line"]

Names = Mapping[Process, int]
"""The processes, and the place of each in the order of names."""

Counts = NDArray[np.int64]
Flags = NDArray[np.bool_]

_NOTHING: Sequence[Action] = ()


class Clocks(Mapping[str, Any]):
    """What HMNR adds to a message: the clocks of its sender, by the order of the processes' names.

    As a mapping it is what JSON has of it: `lc`, `ckpt` by name, and the names of which `taken` and `greater` hold.
    """

    __slots__ = ("ckpt", "greater", "lc", "names", "taken")

    def __init__(self, names: Names, lc: int, ckpt: Counts, taken: Flags, greater: Flags) -> None:
        """Keeps these arrays: nobody may change them."""
        self.names, self.lc, self.ckpt, self.taken, self.greater = names, lc, ckpt, taken, greater

    @classmethod
    def of(cls, added: Piggyback, names: Names) -> Clocks:
        """From JSON; of a process that it does not know nothing has happened yet."""
        if isinstance(added, Clocks) and added.names is names:
            return added
        taken, greater, ckpt = frozenset(added["taken"]), frozenset(added["greater"]), added["ckpt"]
        return cls(
            names, int(added["lc"]), np.array([int(ckpt.get(k, 0)) for k in names], np.int64),
            np.array([k in taken for k in names]), np.array([k in greater for k in names]),
        )  # fmt: skip

    def __getitem__(self, key: str) -> Any:
        match key:
            case "lc":
                return self.lc
            case "ckpt":
                return dict(zip(self.names, self.ckpt.tolist(), strict=True))
            case "taken" | "greater":
                return [k for k, is_so in zip(self.names, getattr(self, key).tolist(), strict=True) if is_so]
        raise KeyError(key)

    def __iter__(self) -> Iterator[str]:
        return iter(("lc", "ckpt", "taken", "greater"))

    def __len__(self) -> int:
        return 4


class HMNR(Machine):
    """One process P_i.

    `lc`: its Lamport clock. `ckpt[k]`: how many checkpoints P_k has taken, as far as it knows. `taken[k]`: whether a
    causal path with a checkpoint on it leads from the last of these to its own next one. `greater[k]`: whether its
    clock is greater than that of P_k, as far as it knows. `sent_to`: to whom it has sent since its last checkpoint.
    All but the first are arrays in the order of the processes' names: with hundreds of processes, each of which reads
    all others, they are most of what a run of the simulation does.
    """

    def __init__(self, process: Process, processes: Iterable[Process], readers: Iterable[Process]) -> None:
        """`processes`: all of the pipeline; `readers`: to whom its messages go."""
        self._names = _in_order(frozenset(processes))
        self._own = self._names[process]
        self._others = np.ones(len(self._names), np.bool_)
        self._others[self._own] = False
        self._readers = np.zeros_like(self._others)
        self._readers[[self._names[each] for each in readers]] = True
        self.lc = 0
        self.ckpt = np.zeros(len(self._names), np.int64)
        self.taken = self.greater = self.sent_to = np.zeros_like(self._others)
        self._checkpoint()  # its beginning

    def timer(self) -> Sequence[Action]:
        """See `Machine`."""
        return self._take(forced=False)

    def sends(self) -> Piggyback:
        """The clocks, and the processes of which `taken` and `greater` hold."""
        self.sent_to = self._readers
        return self.state()

    def force(self, *messages: tuple[Process, Piggyback]) -> Sequence[Action]:
        """A checkpoint is forced where one of the messages would close a Z-cycle, or may.

        It comes before all of them: each is judged by the state before, in which the clock is no greater than it would
        be behind the others, so that no force is missed.
        """
        return self._take(forced=True) if any(map(self._forces, self._clocks(messages))) else _NOTHING

    def learn(self, *messages: tuple[Process, Piggyback]) -> None:
        """See `Machine`. In what order they are learnt makes no difference: they are learnt at once."""
        clocks = self._clocks(messages)
        if not clocks:
            return
        greatest = max(self.lc, *(each.lc for each in clocks))
        alike = [each.greater for each in clocks if each.lc == greatest]
        if alike:
            known = [self.greater] if self.lc == greatest else []
            self.greater = np.logical_and.reduce([*known, *alike]) & self._others
        self.lc = greatest
        ckpt = np.stack([self.ckpt, *(each.ckpt for each in clocks)])
        taken = np.stack([self.taken, *(each.taken for each in clocks)])
        newest = ckpt.max(axis=0)
        newest[self._own] = self.ckpt[self._own]
        self.taken = (taken & (ckpt == newest)).any(axis=0) & self._others
        self.ckpt = newest

    def state(self) -> Piggyback:
        """As a message has it: since the checkpoint nothing was sent."""
        return Clocks(self._names, self.lc, self.ckpt, self.taken, self.greater)

    def restore(self, state: Piggyback) -> None:
        """See `Machine`."""
        kept = Clocks.of(state, self._names)
        self.lc, self.ckpt, self.taken, self.greater = kept.lc, kept.ckpt, kept.taken, kept.greater
        self.sent_to = np.zeros_like(self._others)

    def __deepcopy__(self, memo: object) -> HMNR:
        return copy.copy(self)  # nothing in it is changed in place

    def _clocks(self, messages: Iterable[tuple[Process, Piggyback]]) -> list[Clocks]:
        return [Clocks.of(added, self._names) for _, added in messages]

    def _forces(self, added: Clocks) -> bool:
        hidden = added.lc > self.lc and bool((added.greater & self.sent_to).any())
        own = self._own
        return hidden or (bool(added.ckpt[own] == self.ckpt[own]) and bool(added.taken[own]))

    def _take(self, *, forced: bool) -> Sequence[Action]:
        self._checkpoint()
        return (TakeCheckpoint(forced=forced),)

    def _checkpoint(self) -> None:
        self.sent_to = np.zeros_like(self._others)
        self.taken = self.greater = self._others  # arrays are never changed in place: messages have them
        self.lc += 1
        self.ckpt = self.ckpt.copy()
        self.ckpt[self._own] += 1


@functools.cache
def _in_order(processes: frozenset[Process]) -> Names:
    """One and the same object for the same processes: by it clocks are known to be of them."""
    return {name: place for place, name in enumerate(sorted(processes))}


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
