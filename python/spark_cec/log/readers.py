"""Records the progress of the streams that read a log's output: each named reader has its own file.

This is upstream buffering with acknowledgements: output that all known readers have finished may be deleted.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import Any

from spark_cec.errors import DamagedLog, NewerFormat
from spark_cec.log.checked_json import decode_object, encode_object
from spark_cec.log.home import read_log_id
from spark_cec.log.manifest import load, retired_before
from spark_cec.log.storage import Storage

READERS = "readers"
_NOTHING: dict[str, Any] = {"batch": -1}
_LOG = logging.getLogger(__name__)

IN_FLIGHT = 3
"""Spark keeps this many batches more than its setting for a while: planned batches that are not committed."""

NOTED_EVERY = 10
"""A reader's file is rewritten after this many batches."""


class ReaderTrail:
    """The ends of a stream's newest batches, through all its runs; for one thread at a time.

    Spark may repeat any batch in its offset log. So the stream will not ask again for input of earlier batches.

    If somebody brings the log back from a copy, it goes on with other batches under the same numbers, and the ends say
    nothing any more. So the note has a mark: a batch, and the checksum of its manifest.
    """

    def __init__(self, storage: Storage, log_id: str, name: str) -> None:
        """Continues from the file of earlier runs. `log_id`: the log at `storage`."""
        self._storage = storage
        self._log_id = log_id
        self._path = _path(name)
        self._mark: tuple[int, int] | None = None
        self._ends = deque[int]()
        self._read()

    def begin(self, batch: int) -> None:
        """Begins the stream anew after `batch`: the notes of an earlier stream of that name do not apply."""
        self._through, self._mark = batch, None
        self._ends.clear()
        self.save()

    def resume(self, batch: int) -> None:
        """Says that the stream goes on after `batch` of the log. It was taken back if it has read further already.

        With the ends of those batches the log would delete output that the stream may ask for again.
        """
        if max(self._ends, default=self._through) > batch:
            self._ends = deque(end for end in self._ends if end <= batch)
            self._through = min(self._through, batch)
            self.save()

    def add(self, end: int, retained: int, again_from: int | None = None) -> None:
        """Records a committed batch of the stream, which ended with `end`; Spark's offset log keeps `retained` batches.

        `again_from`: the stream will not read again up to that batch of the log, whatever Spark keeps.
        """
        if end <= max(self._ends, default=self._through):
            return  # A repeated batch, or one without rows of this log. Fewer ends only keep more output.
        self._ends.append(end)
        while len(self._ends) > retained + IN_FLIGHT:
            self._through = self._ends.popleft()
        while again_from is not None and len(self._ends) > IN_FLIGHT and self._ends[0] <= again_from:
            self._through = self._ends.popleft()
        if self._through >= self._written + NOTED_EVERY:
            self.save()

    def save(self) -> None:
        """Writes the file, so that the next run knows the ends of this one's batches.

        If the log is gone or was replaced, writes nothing: the new log must not get the old one's notes. If it was
        brought back from a copy, goes on with the note that is there.
        """
        if read_log_id(self._storage) != self._log_id:
            return
        if not _has_still(self._storage, self._mark):
            self._read()
            return
        self._mark = _make_mark(self._storage, max(self._ends, default=self._through))
        content = {"batch": self._through, "ends": list(self._ends), "log": self._log_id}
        if self._mark is not None:
            content["mark"] = list(self._mark)
        self._storage.replace(self._path, encode_object(content))
        self._written = self._through

    def _read(self) -> None:
        fields = _read_note(self._storage, self._log_id, self._path)
        self._through = int(fields["batch"])
        self._ends = deque(int(end) for end in fields.get("ends", ()))
        self._written = self._through
        self._mark = _read_mark(fields)


def list_readers(storage: Storage) -> list[str]:
    """The names of all readers with a note."""
    return [file.name.removesuffix(".json") for file in storage.list(READERS)]


def newest_reads(storage: Storage) -> dict[str, int]:
    """The newest batch that each reader has recorded, by name; unreadable notes are left out."""
    found = {}
    for name in list_readers(storage):
        path = _path(name)
        with suppress(DamagedLog, NewerFormat):
            fields, _ = decode_object(path, storage.read(path), "note of a reader")
            found[name] = max(int(fields["batch"]), *map(int, fields.get("ends", ())), -1)
    return found


def forget_reads(storage: Storage, after: int) -> None:
    """Limits each reader's notes to batch `after`: later batches were taken back, and will be written anew."""
    for file in storage.list(READERS):
        path = f"{READERS}/{file.name}"
        try:
            fields, _ = decode_object(path, storage.read(path), "note of a reader")
        except (DamagedLog, NewerFormat):  # an unreadable note keeps all output
            continue
        batch, ends = int(fields["batch"]), [int(end) for end in fields.get("ends", ())]
        kept = {**fields, "batch": min(batch, after), "ends": [end for end in ends if end <= after]}
        mark = _read_mark(fields)
        if mark is not None and mark[0] > after:
            del kept["mark"]
        if kept != fields:
            storage.replace(path, encode_object(kept))


def slowest_reader(storage: Storage, log_id: str, names: Iterable[str]) -> int:
    """The oldest batch that some reader may still ask for. `log_id`: the log at `storage`."""
    return min(int(_read_note(storage, log_id, _path(name))["batch"]) for name in names) + 1


def _read_note(storage: Storage, log_id: str, path: str) -> dict[str, Any]:
    """A reader's note; batch -1, which keeps all output, if the note is missing or unreadable.

    The same if it is of another log, or of other batches than those that the log has now.
    """
    try:
        fields, _ = decode_object(path, storage.read(path), "note of a reader")
    except FileNotFoundError:
        return _NOTHING
    except (DamagedLog, NewerFormat) as error:
        place = f"{storage.url}/{path}"
        _LOG.warning("%s cannot be read (%s): all output is kept until its reader writes it anew", place, error)
        return _NOTHING
    return fields if fields["log"] == log_id and _has_still(storage, _read_mark(fields)) else _NOTHING


def _read_mark(fields: Mapping[str, Any]) -> tuple[int, int] | None:
    """The mark of a note: a batch, and the checksum of its manifest. None if the note has none."""
    mark = fields.get("mark")
    return None if mark is None else (int(mark[0]), int(mark[1]))


def _make_mark(storage: Storage, batch: int) -> tuple[int, int] | None:
    """The mark of a batch, -1 for none; None if its manifest cannot be read, as when it was let go."""
    try:
        return (batch, load(storage, batch).crc) if batch >= 0 else None
    except (FileNotFoundError, DamagedLog):
        return None


def _has_still(storage: Storage, mark: tuple[int, int] | None) -> bool:
    """Whether the log has the batch of a mark still. One that was let go, or that is damaged, proves nothing."""
    if mark is None:
        return True
    try:
        return load(storage, mark[0]).crc == mark[1]
    except DamagedLog:
        return True
    except FileNotFoundError:
        return retired_before(storage) > mark[0]


def _path(name: str) -> str:
    return f"{READERS}/{name}.json"
