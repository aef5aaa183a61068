"""Stateful operators for random histories: what a batch makes of the windows that the operator sees."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Protocol, TypeAlias

from store_it.jvm import Key, Step, Value

State: TypeAlias = "dict[Key, Value]"


@dataclass(frozen=True, slots=True)
class Batch:
    """Tuples (key, number) of one micro-batch, and its watermark."""

    tuples: tuple[tuple[int, int], ...]
    watermark: int


class Operator(Protocol):
    """An operator whose changes depend on nothing but the windows that it sees and the batch."""

    @property
    def grouped(self) -> bool:
        """Whether its store has a prefix."""

    def batch(self, rng: random.Random, batch_id: int) -> Batch:
        """A random batch."""

    def changes(self, visible: Mapping[Key, Value], batch: Batch) -> list[Step]:
        """The puts and removes of the batch, in order."""


def apply_changes(state: State, changes: list[Step]) -> None:
    """What puts and removes do to a state."""
    for name, key, *value in changes:
        if name == "put":
            state[tuple(key)] = value[0]
        else:
            state.pop(tuple(key), None)


def _tuples(rng: random.Random, keys: int, most: int, low: int, high: int) -> tuple[tuple[int, int], ...]:
    return tuple((rng.randrange(keys), rng.randint(low, high)) for _ in range(rng.randint(0, most)))


@dataclass(frozen=True, slots=True)
class CountWindows:
    """A window of a key is (count, sum); it closes with its `size`-th tuple, and the key's next tuple opens another."""

    keys: int
    size: int
    most: int = 8
    grouped: bool = False

    def batch(self, rng: random.Random, batch_id: int) -> Batch:
        """Up to `most` tuples."""
        return Batch(_tuples(rng, self.keys, self.most, 1, 9), batch_id)

    def changes(self, visible: Mapping[Key, Value], batch: Batch) -> list[Step]:
        """One put or remove per key, as `applyInPandasWithState` does."""
        work: dict[Key, Value | None] = {}
        for key, number in batch.tuples:
            count, total = work.get((key,), visible.get((key,))) or (0, 0)
            work[(key,)] = None if count + 1 >= self.size else (count + 1, total + number)
        return [("remove", key) if window is None else ("put", key, window) for key, window in work.items()]


@dataclass(frozen=True, slots=True)
class Sessions:
    """Sessions (key, start) -> (end, count): tuples less than `gap` apart are one; the watermark ends it."""

    keys: int
    gap: int
    most: int = 6
    grouped: bool = True

    def batch(self, rng: random.Random, batch_id: int) -> Batch:
        """Event times around the batch's own, some of them late."""
        now = 4 * batch_id + 10
        return Batch(_tuples(rng, self.keys, self.most, now - 8, now + 4), now - 6)

    def changes(self, visible: Mapping[Key, Value], batch: Batch) -> list[Step]:
        """Merges each key's sessions, replaces those that changed, then evicts, as Spark's session windows do."""
        changes: list[Step] = []
        after = dict(visible)
        on_time = [(key, at) for key, at in batch.tuples if at + self.gap > batch.watermark]
        for key in sorted({key for key, _ in on_time}):
            before = {at: value for at, value in visible.items() if at[0] == key}
            merged = self._merge(key, before, [at for each, at in on_time if each == key])
            changes += [("remove", at) for at in before if at not in merged]
            changes += [("put", at, value) for at, value in merged.items() if before.get(at) != value]
            for at in before:
                del after[at]
            after.update(merged)
        return changes + [("remove", at) for at, (end, _) in after.items() if end <= batch.watermark]

    def _merge(self, key: int, sessions: State, times: list[int]) -> State:
        spans = sorted(
            [(start, end, count) for (_, start), (end, count) in sessions.items()]
            + [(at, at + self.gap, 1) for at in times]
        )
        merged: list[tuple[int, int, int]] = []
        for start, end, count in spans:
            if merged and start < merged[-1][1]:
                first, last, so_far = merged[-1]
                merged[-1] = (first, max(last, end), so_far + count)
            else:
                merged.append((start, end, count))
        return {(key, start): (end, count) for start, end, count in merged}


@dataclass(frozen=True, slots=True)
class Deduplication:
    """A key is kept from its first tuple until the watermark has passed it; nothing is ever updated."""

    keys: int
    most: int = 8
    grouped: bool = False

    def batch(self, rng: random.Random, batch_id: int) -> Batch:
        """Numbers are expiry times."""
        return Batch(_tuples(rng, self.keys, self.most, batch_id, batch_id + 12), batch_id)

    def changes(self, visible: Mapping[Key, Value], batch: Batch) -> list[Step]:
        """A put per new key, a remove per key that expired."""
        after = dict(visible)
        for key, expiry in batch.tuples:
            if expiry > batch.watermark:
                after.setdefault((key,), (expiry, 0))
        puts: list[Step] = [("put", key, value) for key, value in after.items() if key not in visible]
        return puts + [("remove", key) for key, (expiry, _) in after.items() if expiry <= batch.watermark]


@dataclass(frozen=True, slots=True)
class Lying:
    """An operator whose query gives other results in a replay: `lie` says how."""

    honest: Operator
    lie: str

    @property
    def grouped(self) -> bool:
        """As the honest one."""
        return self.honest.grouped

    def batch(self, rng: random.Random, batch_id: int) -> Batch:
        """As the honest one."""
        return self.honest.batch(rng, batch_id)

    def changes(self, visible: Mapping[Key, Value], batch: Batch) -> list[Step]:
        """`sum`: other values; `skip`: half of the tuples are lost; `close`: every window that is touched closes."""
        if self.lie == "skip":
            return self.honest.changes(visible, replace(batch, tuples=batch.tuples[::2]))
        changes = self.honest.changes(visible, batch)
        if self.lie == "close":
            return [("remove", each[1]) for each in changes]
        return [("put", each[1], (each[2][0], each[2][1] + 1)) if each[0] == "put" else each for each in changes]


@dataclass(frozen=True, slots=True)
class Baskets:
    """Group k has `sizes[k]` rows from its first tuple on, and never closes; each tuple changes one of them."""

    sizes: tuple[int, ...]
    most: int = 3
    grouped: bool = True

    def batch(self, rng: random.Random, batch_id: int) -> Batch:
        """All groups at first, then up to `most` tuples."""
        if batch_id == 0:
            return Batch(tuple((key, 0) for key in range(len(self.sizes))), 0)
        keys = [rng.randrange(len(self.sizes)) for _ in range(rng.randint(0, self.most))]
        return Batch(tuple((key, rng.randrange(self.sizes[key])) for key in keys), batch_id)

    def changes(self, visible: Mapping[Key, Value], batch: Batch) -> list[Step]:
        """Puts only."""
        changes: list[Step] = []
        for key, row in batch.tuples:
            if (key, 0) in visible:
                changes.append(("put", (key, row), (batch.watermark, 1)))
            else:
                changes += [("put", (key, each), (batch.watermark, 0)) for each in range(self.sizes[key])]
        return changes
