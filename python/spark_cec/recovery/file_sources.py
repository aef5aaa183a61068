"""What Spark's file sources have noted of the files they have read: what of it is behind a batch, or needed no more.

A source writes an entry, `sources/<n>/<number>`, before a batch is planned that reads those files, and each tenth entry
has all of those before it (`<number>.compact`). A batch's offset is the number of the last one that it reads.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count

from spark_cec.log.storage import Storage
from spark_cec.recovery.reach import read_planned

COMPACT = ".compact"

_OF_FILES = b'v1\n{"path"'
"""How a file source's entry begins."""

_SOURCES_WITHOUT_FILES = 64
"""In a row: where no plan says how many sources there are, there are no more then."""


@dataclass(frozen=True, slots=True)
class _Folder:
    """Where a source keeps its notes, and up to which of them it has read: `least` to `most`, as far as that is known.

    `is_of_files`: what is there is a file source's; else it may be another one's.
    """

    number: int
    least: int
    most: int
    is_of_files: bool


def unreadable_behind(checkpoint: Storage, batch: int) -> list[str]:
    """Of each source the entries behind `batch` from the first one on that a power loss has left without its content.

    Newest first. Without them the source finds those files anew; with one of them its query could not be started.
    """
    if checkpoint.local_path("") is None:  # an object that can be read has its content
        return []
    return [path for folder in _folders(checkpoint, batch) for path in _from_unreadable(checkpoint, folder)]


def needed_no_more(checkpoint: Storage, batch: int) -> list[str]:
    """The entries that a query which goes back to the end of `batch`, and no further, does not read. Oldest first.

    Two that have all before them stay: from their distance Spark tells how often there is one.
    """
    found: list[str] = []
    for folder in _folders(checkpoint, batch) if batch >= 0 else ():
        entries = _entries(checkpoint, folder.number)
        whole = [number for number, name in entries if name.endswith(COMPACT) and number <= folder.least]
        if len(whole) > 1:
            found += [f"sources/{folder.number}/{name}" for number, name in entries if number < whole[-2]]
    return found


def files_behind(checkpoint: Storage, batch: int) -> list[str]:
    """The files that file sources have noted behind `batch`, as URLs: a query that goes back there reads them again."""
    found: list[str] = []
    for folder in _folders(checkpoint, batch):
        for number, name in _entries(checkpoint, folder.number):
            data = checkpoint.read(f"sources/{folder.number}/{name}") if number > folder.most else b""
            if data.startswith(_OF_FILES) and not _is_unreadable(data, is_of_files=True):
                noted = [json.loads(line) for line in data.split(b"\n")[1:] if line]
                found += [str(each["path"]) for each in noted if int(each["batchId"]) > folder.most]
    return list(dict.fromkeys(found))


def _folders(checkpoint: Storage, batch: int) -> Iterator[_Folder]:
    """Those that may be file sources'."""
    if batch < 0:
        empty = 0
        for number in count():
            empty = 0 if checkpoint.list(f"sources/{number}") else empty + 1
            if empty == _SOURCES_WITHOUT_FILES:
                return
            if not empty:
                yield _Folder(number, -1, -1, is_of_files=False)
        return
    planned = read_planned(checkpoint, batch)
    offsets = planned.offsets if planned is not None else ()
    ends = [_number_in(offset) for offset in offsets]
    if len(set(offsets)) == len(offsets):
        yield from (
            _Folder(number, end, end, is_of_files=offsets[number] is not None)
            for number, end in enumerate(ends) if end is not None
        )  # fmt: skip
        return
    # What a query reads at several places may be one source, with one offset for each place, and one folder: all behind
    # it are of places further on, and nobody has noted which.
    for number in range(len(offsets)):
        candidates = [end for end in ends[number:] if end is not None]
        if candidates:
            yield _Folder(number, min(candidates), max(candidates), is_of_files=False)


def _number_in(offset: str | None) -> int | None:
    """None if that is not a file source's. One that has read nothing yet may be one."""
    if offset is None:
        return -1
    try:
        fields = json.loads(offset)
        return int(fields["logOffset"]) if isinstance(fields, dict) else None
    except (ValueError, KeyError, TypeError):
        return None


def _entries(checkpoint: Storage, source: int) -> list[tuple[int, str]]:
    """Numbers and names, oldest first."""
    names = [file.name for file in checkpoint.list(f"sources/{source}")]
    bare = [(each.removesuffix(COMPACT), each) for each in names]
    return sorted((int(number), name) for number, name in bare if number.isascii() and number.isdigit())


def _from_unreadable(checkpoint: Storage, folder: _Folder) -> list[str]:
    """A file source reads all of them, without a gap."""
    later = [(number, name) for number, name in _entries(checkpoint, folder.number) if number > folder.most]
    for at, (number, name) in enumerate(later):
        is_behind_a_gap = folder.is_of_files and number != folder.most + 1 + at
        if is_behind_a_gap or _is_unreadable(checkpoint.read(f"sources/{folder.number}/{name}"), folder.is_of_files):
            return [f"sources/{folder.number}/{each}" for _, each in later[at:][::-1]]
    return []


def _is_unreadable(data: bytes, is_of_files: bool) -> bool:
    """Whether it is empty, or zeros, or an entry of a file source that is not whole; others write what they like."""
    if not data.strip(b"\0"):
        return True
    if not is_of_files and not data.startswith(_OF_FILES):
        return False
    version, *lines = data.split(b"\n")
    try:
        for line in filter(None, lines):
            json.loads(line)
    except ValueError:
        return True
    return version != b"v1"
