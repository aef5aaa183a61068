"""How far the streams are that read a log's output: each one that says so has a file of its own name.

This is upstream buffering with acknowledgements: what all known readers are through with need not be kept.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Iterable
from contextlib import suppress
from typing import Any

from spark_cec.errors import DamagedLog, NewerFormat
from spark_cec.log.checked_json import decode_object, encode_object
from spark_cec.log.home import read_log_id
from spark_cec.log.storage import Storage

READERS = "readers"
_NOTHING: dict[str, Any] = {"batch": -1}
_LOG = logging.getLogger(__name__)

UNDER_WAY = 3
"""Batches that Spark keeps for a while beyond what it is told to: those that are planned and not committed."""

NOTED_EVERY = 10
"""How far a reader must have come for its file to be written again."""


class ReaderTrail:
    """Where the newest batches of one stream ended, through all its runs; for one thread at a time.

    Spark may run any batch again that its offset log keeps. So what the stream has read with batches before those will
    not be asked for again.
    """

    def __init__(self, storage: Storage, log_id: str, name: str) -> None:
        """Goes on where the runs before have left it. `log_id`: of the log at `storage`."""
        self._storage = storage
        self._log_id = log_id
        self._path = _path(name)
        fields = _fields(storage, log_id, self._path)
        self._through = int(fields["batch"])
        self._ends = deque(int(end) for end in fields.get("ends", ()))
        self._written = self._through

    def begin(self, batch: int) -> None:
        """The stream begins anew, behind `batch`: what an earlier one of its name has noted says nothing of it."""
        self._through = batch
        self._ends.clear()
        self.save()

    def add(self, end: int, retained: int, again_from: int | None = None) -> None:
        """A batch of the stream ended with `end`, and is committed; Spark's offset log keeps `retained` batches.

        `again_from`: whatever Spark keeps, what is up to that batch of the log will not be read again.
        """
        if end <= max(self._ends, default=self._through):
            return  # a batch that ran again, or had no rows of this log: fewer ends only mean that more is kept
        self._ends.append(end)
        while len(self._ends) > retained + UNDER_WAY:
            self._through = self._ends.popleft()
        while again_from is not None and len(self._ends) > UNDER_WAY and self._ends[0] <= again_from:
            self._through = self._ends.popleft()
        if self._through >= self._written + NOTED_EVERY:
            self.save()

    def save(self) -> None:
        """Writes the file: at the end of a run, so that the next one knows where the batches of this one ended.

        Of a log that is gone, or another one by now, nothing is noted: it would be taken for the new one's.
        """
        if read_log_id(self._storage) != self._log_id:
            return
        content = {"batch": self._through, "ends": list(self._ends), "log": self._log_id}
        self._storage.replace(self._path, encode_object(content))
        self._written = self._through


def newest_reads(storage: Storage) -> dict[str, int]:
    """The newest batch that each reader has noted, by its name; without those whose note cannot be read."""
    found = {}
    for file in storage.list(READERS):
        path = f"{READERS}/{file.name}"
        with suppress(DamagedLog, NewerFormat):
            fields, _ = decode_object(path, storage.read(path), "note of a reader")
            found[file.name.removesuffix(".json")] = max(int(fields["batch"]), *map(int, fields.get("ends", ())), -1)
    return found


def forget_reads(storage: Storage, after: int) -> None:
    """Says of each reader that it has read nothing behind batch `after`: that was taken back, and is written anew."""
    for file in storage.list(READERS):
        path = f"{READERS}/{file.name}"
        try:
            fields, _ = decode_object(path, storage.read(path), "note of a reader")
        except (DamagedLog, NewerFormat):  # all output is kept as long as it cannot be read
            continue
        batch, ends = int(fields["batch"]), [int(end) for end in fields.get("ends", ())]
        kept = {**fields, "batch": min(batch, after), "ends": [end for end in ends if end <= after]}
        if (kept["batch"], kept["ends"]) != (batch, ends):
            storage.replace(path, encode_object(kept))


def slowest_reader(storage: Storage, log_id: str, names: Iterable[str]) -> int:
    """The oldest batch that some reader may still ask for. `log_id`: of the log at `storage`."""
    return min(int(_fields(storage, log_id, _path(name))["batch"]) for name in names) + 1


def _fields(storage: Storage, log_id: str, path: str) -> dict[str, Any]:
    """Batch -1 of a reader that has noted nothing, or of another log, or whose file cannot be read: all is kept."""
    try:
        fields, _ = decode_object(path, storage.read(path), "note of a reader")
    except FileNotFoundError:
        return _NOTHING
    except (DamagedLog, NewerFormat) as error:
        place = f"{storage.url}/{path}"
        _LOG.warning("%s cannot be read (%s): all output is kept until its reader writes it anew", place, error)
        return _NOTHING
    return fields if fields["log"] == log_id else _NOTHING


def _path(name: str) -> str:
    return f"{READERS}/{name}.json"
