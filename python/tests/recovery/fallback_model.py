"""A model of lost frames: what is left of a history of count windows, and what comes of it by two rules.

*Fall back whole*: begin from the newest version whose eventual checkpoint is whole, replay up to there under the hold
rule, and from there on run the batches as they were run first. *Patch*: take for every window the newest record that is
left, and replay under the hold rule.
"""

from __future__ import annotations

import random
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from tests.hold_rule_model import Run, State, Window, anything, apply_batch


@dataclass(frozen=True)
class Footer:
    """What the header of a frame says of its version: N and D. It is known also where the records are lost."""

    open_windows: int
    dirty_from: int


def footers(run: Run) -> list[Footer]:
    """By version, version 0 first: from a second life with the same records."""
    found = [Footer(0, 0)]
    state: State = {}
    seen_at: dict[int, int] = {}
    dirty: dict[int, int] = {}
    for batch_id, batch in enumerate(run.batches):
        touched = apply_batch(state, batch, run.size, anything, anything)
        for key in touched & state.keys():
            dirty.setdefault(key, batch_id)
        for key, _ in run.log[batch_id][1]:
            seen_at[key] = batch_id + 1
            dirty.pop(key, None)
        dirty = {key: since for key, since in dirty.items() if key in state}
        found.append(Footer(len(state), min(dirty.values(), default=batch_id + 1)))
    return found


def eventual_checkpoint(
    run: Run, version: int, footer: Footer, lost: Collection[int]
) -> Mapping[int, tuple[Window, int]] | int:
    """EC at a version: {key: (window, footprint)}, or the newest lost version that had to be read."""
    newest: dict[int, tuple[Window | None, int]] = {}
    for at, records in reversed(run.log[:version]):
        if sum(window is not None for window, _ in newest.values()) == footer.open_windows:
            break
        if at in lost and records:
            return at
        for key, window in records:
            newest.setdefault(key, (window, at))
    return {key: (window, at) for key, (window, at) in newest.items() if window is not None}


def base_of(run: Run, lost: Collection[int]) -> tuple[int, Mapping[int, tuple[Window, int]]]:
    """The newest version whose eventual checkpoint is whole, as `recovery.fallback` looks for it."""
    version, known = len(run.batches), footers(run)
    while isinstance(found := eventual_checkpoint(run, version, known[version], lost), int):
        version = found - 1
    return version, found


def fallen_back(run: Run, lost: Collection[int]) -> State:
    """The state after falling back as a whole."""
    base, checkpoint = base_of(run, lost)
    state = {key: window for key, (window, _) in checkpoint.items()}
    for batch_id in range(footers(run)[base].dirty_from, len(run.batches)):

        def due(key: int, batch_id: int = batch_id) -> bool:
            return key in checkpoint and checkpoint[key][1] <= batch_id

        allowed = due if batch_id < base else anything
        apply_batch(state, run.batches[batch_id], run.size, allowed, allowed)
    return state


def patched(run: Run, lost: Collection[int], first: int) -> State:
    """The state after a replay from `first` under the hold rule over the newest records that are left."""
    newest: dict[int, tuple[Window | None, int]] = {}
    for at, records in reversed(run.log):
        for key, window in records if at not in lost else ():
            newest.setdefault(key, (window, at))
    state = {key: window for key, (window, _) in newest.items() if window is not None}
    for batch_id in range(first, len(run.batches)):

        def due(key: int, batch_id: int = batch_id) -> bool:
            return key in newest and newest[key][0] is not None and newest[key][1] <= batch_id

        apply_batch(state, run.batches[batch_id], run.size, due, due)
    return state


def random_loss(run: Run, seed: int) -> set[int]:
    """One lost frame, now and then two or three."""
    rng = random.Random(f"loss {seed}")
    return {rng.randint(1, len(run.batches)) for _ in range(rng.choice([1, 1, 1, 2, 3]))}
