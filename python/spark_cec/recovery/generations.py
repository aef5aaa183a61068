"""Numbers the runs of a query, from 1 on, with one small file for each run; old files are deleted."""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

from spark_cec.errors import AlreadyExists
from spark_cec.log.storage import Storage

DIRECTORY = "generations"

KEPT = 32
"""The number of newest run files to keep. The first run's file stays too: it tells since when the query is observed."""


@dataclass(frozen=True, slots=True)
class RunState:
    """How far a run came.

    `is_held`: the run took the lease in its own thread, or on a storage without leases it began there. Before that, a
    run has written nothing but its own file, and on the first start `query.json`. `began_after` is the batch of
    `record_start`, None for unknown. `intent` is the content of `note_intent`, None without one.
    """

    is_held: bool
    began_after: int | None
    intent: Mapping[str, Any] | None


def newest_generation(own: Storage) -> int:
    """The newest run of the query, 0 before the first. `own` is rooted at the checkpoint's `cec` directory."""
    return max(known_generations(own), default=0)


def known_generations(own: Storage) -> list[int]:
    """The runs whose files exist, oldest first."""
    names = (file.name.removesuffix(".json") for file in own.list(DIRECTORY))
    return sorted(int(name) for name in names if name.isdecimal())


def newest_held(own: Storage) -> int:
    """The newest run, or rollback, that had the lease; 0 if no file tells."""
    return next((each for each in reversed(known_generations(own)) if read_start(own, each) is not None), 0)


def begin_generation(own: Storage, committed: Callable[[], int]) -> int:
    """Takes the next run number, then calls `committed` and records its answer as `record_start` does.

    The run has not taken the lease yet. If the record fails, the number is released.
    """
    generation = next_generation(own, held=False)
    with _release_on_failure(own, generation):
        record_start(own, generation, committed())
    return generation


def record_start(own: Storage, generation: int, committed: int) -> None:
    """Records the last batch that Spark had committed when the run began, -1 for none. The number must be taken before.
    """
    _change(own, generation, committed_batch=committed)


def note_intent(own: Storage, generation: int, intent: Mapping[str, Any]) -> None:
    """Records what the run needs to write again, if another run begins before it takes the lease."""
    _change(own, generation, intent=intent)


def note_held(own: Storage, generation: int) -> None:
    """Records that the run has the lease."""
    _change(own, generation, held=True)


def read_state(own: Storage, generation: int) -> RunState | None:
    """How far the run came; None if it has no file. If the file does not tell, the run counts as one with the lease."""
    try:
        raw = json.loads(own.read(_path(generation)))
        began = raw.get("committed_batch")
        return RunState(raw.get("held") is not False, began if isinstance(began, int) else None, raw.get("intent"))
    except FileNotFoundError:
        return None
    except (ValueError, AttributeError):
        return RunState(is_held=True, began_after=None, intent=None)


def read_start(own: Storage, generation: int) -> int | None:
    """The batch that `record_start` recorded; None if it recorded none, as in earlier releases.

    None for a run that never took the lease, too, because it wrote no batch.
    """
    state = read_state(own, generation)
    return state.began_after if state is not None and state.is_held else None


def first_start_ms(own: Storage) -> int | None:
    """When the query's first run began, in ms since the epoch; None if no readable file tells."""
    for generation in known_generations(own)[:1]:
        with suppress(OSError, ValueError, AttributeError):
            began_ms = json.loads(own.read(_path(generation))).get("started_unix_ms")
            return began_ms if isinstance(began_ms, int) else None
    return None


def has_committed(own: Storage, committed: int) -> bool:
    """Whether one of our runs has committed a batch; `committed` is the last committed batch of the query."""
    for generation in known_generations(own):
        run = read_state(own, generation)
        if run is not None and run.began_after is not None:  # a run may die before it records that
            return run.began_after < committed
    return False


def next_generation(own: Storage, *, held: bool = True) -> int:
    """Takes a number larger than all earlier ones; create-if-absent makes it unique.

    `held`: the caller has the lease and keeps it, as a rollback does.
    """
    known = known_generations(own)
    generation = max(known, default=0) + 1
    while not (_create_file(own, generation, held=held) and _is_new(own, generation)):
        generation += 1
    with _release_on_failure(own, generation):
        old = [each for each in known[1:] if each <= generation - KEPT]
        counting = _runs_with_the_last_commit(own, known) if old else []
        for each in old:
            if each not in counting:
                own.delete(_path(each))
    return generation


def _runs_with_the_last_commit(own: Storage, known: Sequence[int]) -> list[int]:
    """The run that committed the last batch: attempts at that batch count only from that run on.

    Two runs if the files leave it open: the newest run with the lease, and the newest one that began before the last
    batch of which a file tells. A start that was killed early tells of none. A run without the lease commits nothing.
    """
    last, found = None, list[int]()
    for generation in reversed(known):
        state = read_state(own, generation)
        if state is None or state.began_after is None:
            continue
        last = state.began_after if last is None else last
        if state.is_held and (not found or state.began_after < last):
            found.append(generation)
            if state.began_after < last:
                break
    return found


def _create_file(own: Storage, generation: int, *, held: bool) -> bool:
    try:
        # Two runs must not write equal bytes: on an object store both would succeed.
        content = {"started_unix_ms": int(time.time() * 1000), "token": secrets.token_hex(8), "held": held}
        own.create(_path(generation), json.dumps(content).encode())
    except AlreadyExists:
        return False
    return True


def _is_new(own: Storage, generation: int) -> bool:
    """False if so many runs have begun since the listing that this number may be an old run's, whose file was deleted.
    """
    with _release_on_failure(own, generation):
        if newest_generation(own) - generation < KEPT // 2:
            return True
    own.delete(_path(generation))
    return False


def _change(own: Storage, generation: int, **fields: object) -> None:
    raw = json.loads(own.read(_path(generation)))
    own.replace(_path(generation), json.dumps({**raw, **fields}).encode())


@contextmanager
def _release_on_failure(own: Storage, generation: int) -> Iterator[None]:
    try:
        yield
    except Exception:
        with suppress(OSError):
            own.delete(_path(generation))
        raise


def _path(generation: int) -> str:
    return f"{DIRECTORY}/{generation:010d}.json"
