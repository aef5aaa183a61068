"""Generations: the runs of a query, numbered from 1 on; one small file each, of which old ones are removed."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from spark_cec.errors import AlreadyExists
from spark_cec.log.storage import Storage

DIRECTORY = "generations"

KEPT = 32
"""The newest runs whose files stay, beside that of the first, which says since when the query is watched."""


def newest_generation(own: Storage) -> int:
    """The newest run of the query, 0 before the first. `own` is rooted at the checkpoint's `cec` directory."""
    return max(known_generations(own), default=0)


def known_generations(own: Storage) -> list[int]:
    """The runs whose files are there, oldest first."""
    return sorted(int(file.name.removesuffix(".json")) for file in own.list(DIRECTORY))


def begin_generation(own: Storage, committed: Callable[[], int]) -> int:
    """The number of a run that begins now, with what `committed` says then, as `note_start` records it.

    A number that cannot be recorded with that is given back.
    """
    generation = next_generation(own)
    with _given_back_on_failure(own, generation):
        note_start(own, generation, committed())
    return generation


def note_start(own: Storage, generation: int, committed: int) -> None:
    """Records the last batch that Spark had committed when the run began, -1 for none: after its number is taken."""
    raw = json.loads(own.read(_path(generation)))
    own.replace(_path(generation), json.dumps({**raw, "committed_batch": committed}).encode())


def started_after(own: Storage, generation: int) -> int | None:
    """What `note_start` has recorded; None where nothing is, as by an earlier release."""
    try:
        committed = json.loads(own.read(_path(generation))).get("committed_batch")
    except (FileNotFoundError, ValueError):
        return None
    return committed if isinstance(committed, int) else None


def has_committed(own: Storage, committed: int) -> bool:
    """Whether a run of ours has committed a batch of the query, which has `committed` as the last one."""
    known = known_generations(own)
    began = started_after(own, known[0]) if known else None
    return began is not None and began < committed


def next_generation(own: Storage) -> int:
    """A number that no other run of this query has had, larger than all before; create-if-absent makes it unique."""
    known = known_generations(own)
    generation = max(known, default=0) + 1
    while not (_create(own, generation) and _is_new(own, generation)):
        generation += 1
    with _given_back_on_failure(own, generation):
        for old in known[1:]:
            if old <= generation - KEPT:
                own.delete(_path(old))
    return generation


def _create(own: Storage, generation: int) -> bool:
    try:
        own.create(_path(generation), json.dumps({"started_unix_ms": int(time.time() * 1000)}).encode())
    except AlreadyExists:
        return False
    return True


def _is_new(own: Storage, generation: int) -> bool:
    """False if so many runs have begun since the listing that one with this number may have been removed."""
    with _given_back_on_failure(own, generation):
        if newest_generation(own) - generation < KEPT // 2:
            return True
    own.delete(_path(generation))
    return False


@contextmanager
def _given_back_on_failure(own: Storage, generation: int) -> Iterator[None]:
    try:
        yield
    except Exception:
        with suppress(OSError):
            own.delete(_path(generation))
        raise


def _path(generation: int) -> str:
    return f"{DIRECTORY}/{generation:010d}.json"
