"""Numbers the runs of a query, from 1 on, with one small file for each run; old files are deleted."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from spark_cec.errors import AlreadyExists
from spark_cec.log.storage import Storage

DIRECTORY = "generations"

KEPT = 32
"""The number of newest run files to keep. The first run's file stays too: it tells since when the query is observed."""


def newest_generation(own: Storage) -> int:
    """The newest run of the query, 0 before the first. `own` is rooted at the checkpoint's `cec` directory."""
    return max(known_generations(own), default=0)


def known_generations(own: Storage) -> list[int]:
    """The runs whose files exist, oldest first."""
    return sorted(int(file.name.removesuffix(".json")) for file in own.list(DIRECTORY))


def begin_generation(own: Storage, committed: Callable[[], int]) -> int:
    """Takes the next run number, then calls `committed` and records its answer with `record_start`.

    If the record fails, the number is released.
    """
    generation = next_generation(own)
    with _release_on_failure(own, generation):
        record_start(own, generation, committed())
    return generation


def record_start(own: Storage, generation: int, committed: int) -> None:
    """Records the last batch that Spark had committed when the run began, -1 for none. The number must be taken before.
    """
    raw = json.loads(own.read(_path(generation)))
    own.replace(_path(generation), json.dumps({**raw, "committed_batch": committed}).encode())


def read_start(own: Storage, generation: int) -> int | None:
    """The batch that `record_start` recorded; None if it recorded none, as in earlier releases."""
    try:
        committed = json.loads(own.read(_path(generation))).get("committed_batch")
    except (FileNotFoundError, ValueError):
        return None
    return committed if isinstance(committed, int) else None


def has_committed(own: Storage, committed: int) -> bool:
    """Whether one of our runs has committed a batch; `committed` is the last committed batch of the query."""
    known = known_generations(own)
    began = read_start(own, known[0]) if known else None
    return began is not None and began < committed


def next_generation(own: Storage) -> int:
    """Takes a number larger than all earlier ones; create-if-absent makes it unique."""
    known = known_generations(own)
    generation = max(known, default=0) + 1
    while not (_create_file(own, generation) and _is_new(own, generation)):
        generation += 1
    with _release_on_failure(own, generation):
        for old in known[1:]:
            if old <= generation - KEPT:
                own.delete(_path(old))
    return generation


def _create_file(own: Storage, generation: int) -> bool:
    try:
        own.create(_path(generation), json.dumps({"started_unix_ms": int(time.time() * 1000)}).encode())
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
