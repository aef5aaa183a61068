"""HMNR as its paper writes it: one process at a time, one message after the other, to compare the arrays with."""

from __future__ import annotations

from collections.abc import Iterable

from spark_cec.protocols.messages import Piggyback, Process


class PlainHMNR:
    """The clocks of one process, by name; see `HMNR`."""

    def __init__(self, process: Process, processes: Iterable[Process], readers: Iterable[Process]) -> None:
        everybody = list(processes)
        self.process, self.readers = process, frozenset(readers)
        self.lc = 0
        self.ckpt = dict.fromkeys(everybody, 0)
        self.taken = dict.fromkeys(everybody, False)
        self.greater = dict.fromkeys(everybody, False)
        self.sent_to: frozenset[Process] = frozenset()
        self.checkpoint()

    def checkpoint(self) -> None:
        """One is taken."""
        self.sent_to = frozenset()
        for k in self.ckpt:
            self.taken[k] = self.greater[k] = k != self.process
        self.lc += 1
        self.ckpt[self.process] += 1

    def sends(self) -> Piggyback:
        """A message goes out."""
        self.sent_to = self.readers
        return self.clocks()

    def clocks(self) -> Piggyback:
        """As a message has them."""
        return {
            "lc": self.lc, "ckpt": dict(self.ckpt), "taken": {k for k, is_so in self.taken.items() if is_so},
            "greater": {k for k, is_so in self.greater.items() if is_so},
        }  # fmt: skip

    def is_forced(self, added: Piggyback) -> bool:
        """Whether a message would have a checkpoint before it."""
        hidden = added["lc"] > self.lc and any(k in added["greater"] for k in self.sent_to)
        return hidden or (added["ckpt"][self.process] == self.ckpt[self.process] and self.process in added["taken"])

    def learn(self, added: Piggyback) -> None:
        """A message is processed."""
        others = [k for k in self.ckpt if k != self.process]
        if added["lc"] > self.lc:
            self.lc = added["lc"]
            self.greater.update({k: k in added["greater"] for k in others})
        elif added["lc"] == self.lc:
            self.greater.update({k: self.greater[k] and k in added["greater"] for k in others})
        for k in others:
            if added["ckpt"][k] > self.ckpt[k]:
                self.ckpt[k], self.taken[k] = added["ckpt"][k], k in added["taken"]
            elif added["ckpt"][k] == self.ckpt[k]:
                self.taken[k] = self.taken[k] or k in added["taken"]
