"""Reads the entries in which Spark's file sources record the files that they have read.

Before Spark plans a batch, the source writes `sources/<n>/<number>` for the files of that batch. Every tenth entry
repeats all earlier ones (`<number>.compact`). A batch's offset is the number of its last entry.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count

from spark_cec.log.storage import Storage
from spark_cec.recovery.replay_input import read_planned

COMPACT = ".compact"

_ENTRY_PREFIX = b'v1\n{"path"'
"""The first bytes of a file source's entry."""

_MAX_EMPTY_DIRECTORIES = 64
"""If no plan gives the number of sources, the search stops after this many empty directories in a row."""


@dataclass(frozen=True, slots=True)
class _Folder:
    """A source's directory, and the range `least` to `most` in which its last read entry lies.

    `is_of_files`: the directory belongs to a file source. If it is false, another kind of source may own the directory.
    """

    number: int
    least: int
    most: int
    is_of_files: bool


def unreadable_entries(checkpoint: Storage, batch: int) -> list[str]:
    """Each source's entries after `batch`, from the first unreadable one on, newest first.

    A power loss can leave an entry without content. The query cannot start with such an entry. If the entries are
    deleted, the source finds their files again.
    """
    if checkpoint.local_path("") is None:  # an object store never shows an object without its content
        return []
    return [path for folder in _list_folders(checkpoint, batch) for path in _list_unreadable(checkpoint, folder)]


def unneeded_entries(checkpoint: Storage, batch: int) -> list[str]:
    """The entries that a query at the end of `batch` does not read, oldest first, if it goes back no further.

    The two newest compact entries stay: Spark derives the compaction interval from their distance.
    """
    found: list[str] = []
    for folder in _list_folders(checkpoint, batch) if batch >= 0 else ():
        entries = _list_entries(checkpoint, folder.number)
        whole = [number for number, name in entries if name.endswith(COMPACT) and number <= folder.least]
        if len(whole) > 1:
            found += [f"sources/{folder.number}/{name}" for number, name in entries if number < whole[-2]]
    return found


def files_behind(checkpoint: Storage, batch: int) -> list[str]:
    """The URLs of the files that file sources recorded after `batch`; a rollback to `batch` reads them again."""
    found: list[str] = []
    for folder in _list_folders(checkpoint, batch):
        for number, name in _list_entries(checkpoint, folder.number):
            data = checkpoint.read(f"sources/{folder.number}/{name}") if number > folder.most else b""
            if data.startswith(_ENTRY_PREFIX) and not _is_unreadable(data, is_of_files=True):
                noted = [json.loads(line) for line in data.split(b"\n")[1:] if line]
                found += [str(each["path"]) for each in noted if int(each["batchId"]) > folder.most]
    return list(dict.fromkeys(found))


def _list_folders(checkpoint: Storage, batch: int) -> Iterator[_Folder]:
    """The directories that may belong to file sources."""
    if batch < 0:
        empty = 0
        for number in count():
            empty = 0 if checkpoint.list(f"sources/{number}") else empty + 1
            if empty == _MAX_EMPTY_DIRECTORIES:
                return
            if not empty:
                yield _Folder(number, -1, -1, is_of_files=False)
        return
    planned = read_planned(checkpoint, batch)
    offsets = planned.offsets if planned is not None else ()
    ends = [_parse_entry_number(offset) for offset in offsets]
    if len(set(offsets)) == len(offsets):
        yield from (
            _Folder(number, end, end, is_of_files=offsets[number] is not None)
            for number, end in enumerate(ends) if end is not None
        )  # fmt: skip
        return
    # If a query reads one source at several places, Spark has one offset for each place but one directory. Each later
    # offset may belong to this directory, and no file says which.
    for number in range(len(offsets)):
        candidates = [end for end in ends[number:] if end is not None]
        if candidates:
            yield _Folder(number, min(candidates), max(candidates), is_of_files=False)


def _parse_entry_number(offset: str | None) -> int | None:
    """The entry number in a file source's offset; -1 before its first file, None for another kind of offset."""
    if offset is None:
        return -1
    try:
        fields = json.loads(offset)
        return int(fields["logOffset"]) if isinstance(fields, dict) else None
    except (ValueError, KeyError, TypeError):
        return None


def _list_entries(checkpoint: Storage, source: int) -> list[tuple[int, str]]:
    """Numbers and names of a source's entries, oldest first."""
    names = [file.name for file in checkpoint.list(f"sources/{source}")]
    bare = [(each.removesuffix(COMPACT), each) for each in names]
    return sorted((int(number), name) for number, name in bare if number.isascii() and number.isdigit())


def _list_unreadable(checkpoint: Storage, folder: _Folder) -> list[str]:
    """The first unreadable entry and all later ones, newest first.

    A gap counts as unreadable: a file source reads its entries without a gap.
    """
    later = [(number, name) for number, name in _list_entries(checkpoint, folder.number) if number > folder.most]
    for at, (number, name) in enumerate(later):
        is_behind_a_gap = folder.is_of_files and number != folder.most + 1 + at
        if is_behind_a_gap or _is_unreadable(checkpoint.read(f"sources/{folder.number}/{name}"), folder.is_of_files):
            return [f"sources/{folder.number}/{each}" for _, each in later[at:][::-1]]
    return []


def _is_unreadable(data: bytes, is_of_files: bool) -> bool:
    """Whether an entry is empty, all zeros, or a truncated file-source entry. Other sources may write any content."""
    if not data.strip(b"\0"):
        return True
    if not is_of_files and not data.startswith(_ENTRY_PREFIX):
        return False
    version, *lines = data.split(b"\n")
    try:
        for line in filter(None, lines):
            json.loads(line)
    except ValueError:
        return True
    return version != b"v1"
