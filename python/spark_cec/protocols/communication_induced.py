"""Communication-induced: each process has its own clock, and messages force checkpoints so that none is useless.

HMNR is the protocol of Hélary, Mostéfaoui, Netzer and Raynal ("Communication-based prevention of useless checkpoints in
distributed computations", Distributed Computing 13, 2000), with its names; BCS that of Briatico, Ciuffoletti and
Simoncini (1984), which has the Lamport clock alone. The search for the recovery line is that of `uncoordinated`.
"""

from __future__ import annotations

import copy
import functools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from spark_cec.protocols.messages import Action, Machine, Piggyback, Process, TakeCheckpoint
from spark_cec.protocols.uncoordinated import recovery_line

__all__ = ["BCS", "HMNR", "Clocks", "recovery_line"]

Names = Mapping[Process, int]
"""Each process, with its place in the order of names."""

Counts = NDArray[np.int64]
Flags = NDArray[np.bool_]

_NOTHING: Sequence[Action] = ()


class Clocks(Mapping[str, Any]):
    """The clocks of a sender, which HMNR adds to a message, in the order of the processes' names.

    As a mapping it has the JSON's fields: `lc`, `ckpt` by name, and the names for which `taken` and `greater` hold.
    """

    __slots__ = ("ckpt", "greater", "lc", "names", "taken")

    def __init__(self, names: Names, lc: int, ckpt: Counts, taken: Flags, greater: Flags) -> None:
        """Keeps these arrays; no caller may change them."""
        self.names, self.lc, self.ckpt, self.taken, self.greater = names, lc, ckpt, taken, greater

    @classmethod
    def of(cls, added: Piggyback, names: Names) -> Clocks:
        """Parses JSON. A process that the JSON lacks has taken no checkpoint yet."""
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

    `lc`: its Lamport clock. `ckpt[k]`: how many checkpoints of P_k it knows. `taken[k]`: whether a causal path with a
    checkpoint on it leads from the last of them to P_i's next checkpoint. `greater[k]`: whether its clock is greater
    than that of P_k, as far as it knows. `sent_to`: the readers to which it has sent since its last checkpoint. All but
    `lc` are arrays in the order of the processes' names. A simulation of hundreds of processes spends most of its time
    on them.
    """

    def __init__(self, process: Process, processes: Iterable[Process], readers: Iterable[Process]) -> None:
        """`processes`: all processes of the pipeline; `readers`: the processes that read its messages."""
        self._names = _in_order(frozenset(processes))
        self._own = self._names[process]
        self._others = np.ones(len(self._names), np.bool_)
        self._others[self._own] = False
        self._readers = np.zeros_like(self._others)
        self._readers[[self._names[each] for each in readers]] = True
        self.lc = 0
        self.ckpt = np.zeros(len(self._names), np.int64)
        self.taken = self.greater = self.sent_to = np.zeros_like(self._others)
        self._checkpoint()  # the beginning

    def timer(self) -> Sequence[Action]:
        """See `Machine`."""
        return self._take(forced=False)

    def sends(self) -> Piggyback:
        """The clocks of this process."""
        self.sent_to = self._readers
        return self.state()

    def force(self, *messages: tuple[Process, Piggyback]) -> Sequence[Action]:
        """Forces a checkpoint if one of the messages can close a Z-cycle.

        The checkpoint comes before all messages, so each is judged by the state before them. There the clock is at most
        as great as behind the other messages, so no forced checkpoint is missed.
        """
        return self._take(forced=True) if any(map(self._forces, self._clocks(messages))) else _NOTHING

    def learn(self, *messages: tuple[Process, Piggyback]) -> None:
        """See `Machine`. The order of the messages makes no difference, so this learns all of them at once."""
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
        """The clocks, as a message has them; after a checkpoint nothing has been sent."""
        return Clocks(self._names, self.lc, self.ckpt, self.taken, self.greater)

    def restore(self, state: Piggyback) -> None:
        """See `Machine`."""
        kept = Clocks.of(state, self._names)
        self.lc, self.ckpt, self.taken, self.greater = kept.lc, kept.ckpt, kept.taken, kept.greater
        self.sent_to = np.zeros_like(self._others)

    def __deepcopy__(self, memo: object) -> HMNR:
        return copy.copy(self)  # no array is changed in place

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
        self.taken = self.greater = self._others  # no array is changed in place, because messages have them
        self.lc += 1
        self.ckpt = self.ckpt.copy()
        self.ckpt[self._own] += 1


@functools.cache
def _in_order(processes: frozenset[Process]) -> Names:
    """The same object for the same processes, so that `Clocks.of` compares identities."""
    return {name: place for place, name in enumerate(sorted(processes))}


class BCS(Machine):
    """One process. Checkpoints with the same clock are a consistent line."""

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
        """Forces a checkpoint if a sender's clock is ahead."""
        ahead = max((int(added["lc"]) for _, added in messages), default=0)
        if ahead <= self.lc:
            return _NOTHING
        self.lc = ahead
        return (TakeCheckpoint(forced=True),)
