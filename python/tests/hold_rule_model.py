"""A model of the hold rule: random histories of keyed count windows, their log, and what is recovered from it.

D is the batch that first changed a window after its footprint, and not the footprint itself (docs/decisions/0003).
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

Window: TypeAlias = "tuple[int, int]"
State: TypeAlias = "dict[int, Window]"
Batch: TypeAlias = "list[tuple[int, int]]"
Allows: TypeAlias = Callable[[int], bool]


def apply_batch(state: State, batch: Batch, size: int, visible: Allows, accepts: Allows) -> set[int]:
    """One micro-batch of (key, number) over {key: (count, sum)}; the keys touched."""
    work: dict[int, Window | None] = {}
    for key, number in batch:
        count, total = (work[key] if key in work else state.get(key) if visible(key) else None) or (0, 0)
        work[key] = None if count + 1 == size else (count + 1, total + number)
    for key, window in work.items():
        if not accepts(key):
            continue
        if window is None:
            state.pop(key, None)
        else:
            state[key] = window
    return set(work)


def anything(_: int) -> bool:
    return True


@dataclass
class Run:
    """An undisturbed run: `log` has (version, records) per commit, a record is (key, window), None if it closed."""

    size: int
    batches: list[Batch]
    state: State = field(default_factory=dict)
    footprint: dict[int, int] = field(default_factory=dict)
    dirty_since: dict[int, int] = field(default_factory=dict)
    log: list[tuple[int, list[tuple[int, Window | None]]]] = field(default_factory=list)

    @property
    def dirty_from(self) -> int:
        """D as the code has it."""
        return min(self.dirty_since.values(), default=len(self.batches))

    @property
    def dirty_from_of_the_design(self) -> int:
        """D if a replay began at the oldest footprint of a dirty window."""
        return min((self.footprint[key] for key in self.dirty_since), default=len(self.batches))

    def live(self, rng: random.Random) -> None:
        """Commits every batch, with random checks."""
        for batch_id, batch in enumerate(self.batches):
            before = set(self.state)
            touched = apply_batch(self.state, batch, self.size, anything, anything)
            records = [
                self._commit_touched(key, batch_id, before) for key in touched if key in self.state or key in before
            ]
            checked = [key for key in self.state if self.footprint[key] <= batch_id and rng.random() < 0.15]
            for key in checked:
                self._footprint(key, batch_id + 1)
            self.log.append(
                (
                    batch_id + 1,
                    [each for each in records if each is not None] + [(key, self.state[key]) for key in checked],
                )
            )

    def _commit_touched(self, key: int, batch_id: int, before: set[int]) -> tuple[int, Window | None] | None:
        if key not in self.state:
            self.footprint.pop(key)
            self.dirty_since.pop(key, None)
            return key, None
        if key not in before:
            self._footprint(key, batch_id + 1)
            return key, self.state[key]
        self.dirty_since.setdefault(key, batch_id)
        return None

    def _footprint(self, key: int, version: int) -> None:
        self.footprint[key] = version
        self.dirty_since.pop(key, None)

    def eventual_checkpoint(self) -> Mapping[int, tuple[Window, int]]:
        """Newest footprint of each open window: {key: (window, version)}, from the log alone."""
        newest: dict[int, tuple[Window | None, int]] = {}
        for version, records in reversed(self.log):
            for key, window in records:
                newest.setdefault(key, (window, version))
        return {key: (window, version) for key, (window, version) in newest.items() if window is not None}


def random_run(seed: int) -> Run:
    rng = random.Random(seed)
    keys = rng.randint(1, 8)
    size = rng.randint(1, 6)
    batches = [
        [(rng.randrange(keys), rng.randint(1, 9)) for _ in range(rng.randint(0, 6))] for _ in range(rng.randint(1, 25))
    ]
    run = Run(size, batches)
    run.live(rng)
    return run


def recovered(run: Run, first: int, rule: str) -> State:
    """The state after a replay of the batches from `first` on."""
    checkpoint = run.eventual_checkpoint()
    state = {key: window for key, (window, _) in checkpoint.items()}
    for batch_id in range(first, len(run.batches)):

        def open_and_due(key: int, batch_id: int = batch_id) -> bool:
            return run.dirty_from <= batch_id and key in checkpoint and checkpoint[key][1] <= batch_id

        def not_older(key: int, batch_id: int = batch_id) -> bool:
            return not (key in checkpoint and checkpoint[key][1] > batch_id)

        visible, accepts = (open_and_due, open_and_due) if rule == "hold" else (anything, not_older)
        apply_batch(state, run.batches[batch_id], run.size, visible, accepts)
    return state
