"""What Spark's file sources have noted of the files they have read: what of it is behind a batch, or needed no more.

A source writes an entry, `sources/<n>/<number>`, before a batch is planned that reads those files, and each tenth entry
has all of those before it (`<number>.compact`). A batch's offset is the number of the last one that it reads.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import count

from spark_cec.log.storage import Storage
from spark_cec.recovery.reach import read_planned

COMPACT = ".compact"

_SOURCES_WITHOUT_FILES = 64
"""In a row: where no plan says how many sources there are, there are no more then."""


def unreadable_behind(checkpoint: Storage, batch: int) -> list[str]:
    """Of each source the entries behind `batch` from the first one on that a power loss has left without its content.

    Newest first. Without them the source finds those files anew; with one of them its query could not be started.
    """
    return [path for source, end in _ends(checkpoint, batch) for path in _from_unreadable(checkpoint, source, end)]


def needed_no_more(checkpoint: Storage, batch: int) -> list[str]:
    """The entries that a query which goes back to the end of `batch`, and no further, does not read. Oldest first.

    Two that have all before them stay: from their distance Spark tells how often there is one.
    """
    found: list[str] = []
    for source, end in _ends(checkpoint, batch) if batch >= 0 else ():
        entries = _entries(checkpoint, source)
        whole = [number for number, name in entries if name.endswith(COMPACT) and number <= end]
        if len(whole) > 1:
            found += [f"sources/{source}/{name}" for number, name in entries if number < whole[-2]]
    return found


def _ends(checkpoint: Storage, batch: int) -> Iterator[tuple[int, int]]:
    """The sources that may be file sources, each with the number of the last entry that it has read up to `batch`."""
    if batch < 0:
        empty = 0
        for source in count():
            empty = 0 if checkpoint.list(f"sources/{source}") else empty + 1
            if empty == _SOURCES_WITHOUT_FILES:
                return
            if not empty:
                yield source, -1
        return
    planned = read_planned(checkpoint, batch)
    for source, offset in enumerate(planned.offsets if planned is not None else ()):
        end = _number_in(offset)
        if end is not None:
            yield source, end


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


def _from_unreadable(checkpoint: Storage, source: int, end: int) -> list[str]:
    later = [f"sources/{source}/{name}" for number, name in _entries(checkpoint, source) if number > end]
    for at, path in enumerate(later):
        if _is_unreadable(checkpoint.read(path)):
            return later[at:][::-1]
    return []


def _is_unreadable(data: bytes) -> bool:
    """Whether it is empty, or zeros, or an entry of a file source that breaks off; others write what they like."""
    if not data.strip(b"\0"):
        return True
    version, _, rest = data.partition(b"\n")
    try:
        for line in rest.split(b"\n") if version == b"v1" and rest.startswith(b'{"path"') else ():
            json.loads(line)
    except ValueError:
        return True
    return False
