"""Finds output that readers can no longer read, at the query's start, before a reader needs it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

from spark_cec.errors import DamagedLog, UnsuitableCheckpoint
from spark_cec.log.index import Index
from spark_cec.log.manifest import Manifest, load, manifest_path, retired_before
from spark_cec.log.storage import Storage
from spark_cec.recovery.start_messages import StartMessage

MAX_MANIFESTS_LOCAL = 1_000
"""The number of newest batches whose manifests a start reads on local storage. `cec verify` reads all."""

MAX_MANIFESTS_REMOTE = 100
"""The number of newest batches on other storage, where each manifest costs a request."""

MAX_FRAMES = 10_000
"""A start stops asking the index after this many frames. The index answers some ten thousand in a second."""

_AT_ONCE = 8


def describe_lost_output(log: Storage, index: Index, batches: Sequence[int], committed: int) -> list[StartMessage]:
    """A message if rows of the newest `batches` are lost. Asks the index and reads no frame.

    Raises `UnsuitableCheckpoint` if the batch after `committed` has lost rows. That batch runs again, and its old
    manifest would hide the new output.
    """
    wanted = batches[-(MAX_MANIFESTS_LOCAL if log.local_path("") is not None else MAX_MANIFESTS_REMOTE) :]
    lost = sorted(_find_lost(log, index, wanted[::-1]))
    again = next((why for batch, why in lost if batch > committed), None)
    if again is not None:
        raise UnsuitableCheckpoint(
            f"{log.url}: {again}, and the batch is about to run again: delete "
            f"{log.url}/{manifest_path(committed + 1)}, and start the query, which writes it anew"
        )
    if not lost:
        return []
    more = f" (and so it is with {len(lost) - 1} more)" if len(lost) > 1 else ""
    return [
        StartMessage(
            f"the log at {log.url} has lost output: {lost[0][1]}{more}. A reader stops there: restore the log from a "
            'copy, or have readers pass over it with option("failOnDataLoss", "false"); `cec verify` names all'
        )
    ]


def describe_other_sink(log: Storage, batches: Sequence[int], committed: int) -> list[StartMessage]:
    """A message if batches up to `committed` have no output here, at a start of a query with the `cec` sink.

    `batches`: those that were published. Another sink had the others, or the log is an older copy: neither the log nor
    the checkpoint tells.
    """
    if batches and batches[-1] >= committed:
        return []
    try:
        first = max(retired_before(log), batches[-1] + 1 if batches else 0)
    except DamagedLog:  # a reader gets that error
        return []
    if first > committed or (not batches and not first):
        return []
    return [
        StartMessage(
            f"the log at {log.url} has no output of batches {first} to {committed}, which Spark has committed: they "
            f"had another sink, or this log is an older copy. A stream that has read the batch before them stops "
            f"there. If they had another sink, stop the query behind batch {committed + 1}, and run `cec repair` with "
            f"--other-sink {first}-{committed}: then readers pass over them"
        )
    ]


def _find_lost(log: Storage, index: Index, newest_first: Sequence[int]) -> Iterator[tuple[int, str]]:
    """Each batch with lost rows, and a description of the loss."""
    left = MAX_FRAMES
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        for batch, found in zip(newest_first, pool.map(lambda each: _load(log, each), newest_first), strict=True):
            if isinstance(found, DamagedLog):
                yield batch, f"the manifest of batch {batch} cannot be read ({found.reason})"
            elif found is not None and left > 0:
                left -= len(found.frames)
                gone = [frame for frame in found.frames if index.output(bytes.fromhex(frame)) is None]
                if gone:
                    yield batch, f"no segment holds {len(gone)} of the {len(found.frames)} frames of batch {batch}"


def _load(log: Storage, batch: int) -> Manifest | DamagedLog | None:
    """The manifest, or its damage; None if trimming has just deleted it."""
    try:
        return load(log, batch)
    except DamagedLog as error:
        return error
    except FileNotFoundError:
        return None
