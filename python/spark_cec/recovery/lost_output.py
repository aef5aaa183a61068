"""Output of a query that no reader can read any more: looked for at its start, before a reader comes to it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

from spark_cec.errors import DamagedLog, UnsuitableCheckpoint
from spark_cec.log.index import Index
from spark_cec.log.manifest import Manifest, load, manifest_path
from spark_cec.log.storage import Storage
from spark_cec.recovery.start import Word

LOOKED_AT = 1_000
"""The newest batches whose manifests a start reads. `cec verify` looks at all."""

LOOKED_AT_ELSEWHERE = 100
"""The same where each is a request to a store."""

FRAMES_LOOKED_FOR = 10_000
"""Most frames that a start asks the index for, but for one batch; it answers some ten thousand in a second."""

_AT_ONCE = 8


def words_on_lost_output(log: Storage, index: Index, batches: Sequence[int], committed: int) -> list[Word]:
    """That rows of the newest of these `batches` are lost, if some are. No frame is read: the index knows them.

    `UnsuitableCheckpoint` if the batch behind `committed` is among them: it is about to run again, and its first
    manifest would stand for what it writes then.
    """
    wanted = batches[-(LOOKED_AT if log.local_path("") is not None else LOOKED_AT_ELSEWHERE) :]
    lost = sorted(_lost(log, index, wanted[::-1]))
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
        Word(
            f"the log at {log.url} has lost output: {lost[0][1]}{more}. A reader stops there: restore the log from a "
            'copy, or have readers pass over it with option("failOnDataLoss", "false"); `cec verify` names all'
        )
    ]


def _lost(log: Storage, index: Index, newest_first: Sequence[int]) -> Iterator[tuple[int, str]]:
    """Each batch with lost rows, and what is lost."""
    left = FRAMES_LOOKED_FOR
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
    """None: it was let go a moment ago."""
    try:
        return load(log, batch)
    except DamagedLog as error:
        return error
    except FileNotFoundError:
        return None
