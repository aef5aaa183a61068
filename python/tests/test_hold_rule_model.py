"""The hold rule as a model: thousands of random histories of keyed count windows, crashed, recovered and compared.

What the design's own model says of D, the code improves on: D is the batch that first changed a window after its
footprint, not the footprint itself. No history may recover wrongly, and the replay is never longer than the design's.
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

HISTORIES = 6_000


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
        """D as the design has it: the oldest footprint of a dirty window."""
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


def test_with_the_hold_rule_every_history_recovers() -> None:
    wrong = [
        seed for seed in range(HISTORIES) if recovered(run := random_run(seed), run.dirty_from, "hold") != run.state
    ]
    assert not wrong, f"seeds {wrong[:10]}"


def test_it_does_not_matter_that_others_of_the_query_need_an_earlier_replay() -> None:
    for seed in range(HISTORIES // 4):
        run = random_run(seed)
        for first in {0, run.dirty_from_of_the_design, run.dirty_from // 2}:
            assert recovered(run, first, "hold") == run.state, f"seed {seed}, replay from {first}"


def test_with_the_papers_rule_alone_some_go_wrong() -> None:
    wrong = sum(
        recovered(run := random_run(seed), run.dirty_from, "footprint") != run.state for seed in range(HISTORIES // 4)
    )
    assert wrong > HISTORIES // 4 // 20, "the model cannot tell a right rule from a wrong one"


def test_one_batch_less_is_too_few() -> None:
    """D is exact: a replay that begins one batch later misses something, unless whole windows came and went."""
    replays = [run for seed in range(HISTORIES // 4) if (run := random_run(seed)).dirty_from < len(run.batches)]
    wrong = sum(recovered(run, run.dirty_from + 1, "hold") != run.state for run in replays)
    assert wrong > 0.9 * len(replays) > 100


def test_the_replay_is_never_longer_than_the_designs_and_often_shorter() -> None:
    shorter = 0
    for seed in range(HISTORIES):
        run = random_run(seed)
        assert run.dirty_from >= run.dirty_from_of_the_design, f"seed {seed}"
        shorter += run.dirty_from > run.dirty_from_of_the_design
    assert shorter > HISTORIES // 5
