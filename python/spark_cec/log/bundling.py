"""Makes bundles of the older segments of a log on a storage that cannot append (`log.bundles`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

from spark_cec.log.bundles import Bundles, Duplicate, encode_bundle
from spark_cec.log.home import note_bundles
from spark_cec.log.index import Covered
from spark_cec.log.scan import FoundFrame, scan_bytes
from spark_cec.log.segment import bundle_name, segment_path
from spark_cec.log.storage import Storage, reads_at_once

LARGEST_SEGMENT_BYTES = 4 << 20
"""A larger segment stays a file: a request for it takes longer than its round trip."""

LARGEST_BUNDLE_BYTES = 32 << 20
"""Of the segments in a bundle, which is made in memory."""

MOST_AT_ONCE = 4
"""Bundles that one call makes at most, if few segments wait."""

_SHARE_AT_ONCE = 4
"""If many wait, one call takes a quarter of them. So it keeps up with any number of executors."""


def choose_segments(beside: Mapping[str, int], covered: Mapping[str, Covered], count: int) -> list[list[str]]:
    """The segments of each bundle to make, oldest first: `count` of them, or fewer if they are large.

    `beside`: sizes of the segments that are in no bundle. Only those count that are small, and that the index covers to
    their end. Half of `count` stays, because the newest segments may soon be trimmed.
    """
    ready = sorted(
        name
        for name, size in beside.items()
        if size <= LARGEST_SEGMENT_BYTES and name in covered and covered[name].end == size
    )
    chosen: list[list[str]] = []
    most = max(MOST_AT_ONCE, len(ready) // count // _SHARE_AT_ONCE)
    while len(ready) >= count + count // 2 and len(chosen) < most:
        together, total = list[str](), 0
        while ready and len(together) < count and total + beside[ready[0]] <= LARGEST_BUNDLE_BYTES:
            total += beside[ready[0]]
            together.append(ready.pop(0))
        chosen.append(together)
    return chosen


def delete_copied(storage: Bundles, settled: Sequence[str]) -> None:
    """Deletes the files of segments. A file stays if its copy in the bundle differs from it, or is damaged."""

    def is_sound(segment: str) -> bool:
        try:
            copy = storage.read_copy(segment)
            return _is_sound(segment, copy) and storage.read(segment_path(segment)) == copy
        except FileNotFoundError:  # the bundle or the file has gone meanwhile
            return False

    if settled:
        with ThreadPoolExecutor(reads_at_once(storage)) as pool:
            sound = list(pool.map(is_sound, settled))
        storage.delete_files([segment for segment, good in zip(settled, sound, strict=True) if good])


def choose_settled(duplicates: Sequence[Duplicate], before: float) -> list[str]:
    """The segments whose files may go, because their bundle was seen before this time, by the clock of `Bundles`.

    Readers with an older listing find the files meanwhile.
    """
    return sorted(each.segment for each in duplicates if each.since <= before)


def bundle_segments(storage: Bundles, chosen: Sequence[str], writer_id: str) -> str | None:
    """Makes a bundle of these segments, and returns its name. If fewer than two are sound, it returns None.

    The segments stay beside the bundle: see `choose_settled`. Errors: `OSError` from the storage.

    1. Read the segments, and leave out those that are gone, cut short, or damaged.
    2. Note in `log.json` that the log has bundles, so that an earlier release refuses it.
    3. Create the bundle.
    """
    with ThreadPoolExecutor(reads_at_once(storage)) as pool:
        contents = dict(zip(chosen, pool.map(lambda name: _read_sound(storage, name), chosen), strict=True))  # 1
    sound = {name: content for name, content in contents.items() if content is not None}
    if len(sound) < 2:
        return None
    note_bundles(storage)  # 2
    bundle = bundle_name(writer_id)
    storage.create(segment_path(bundle), encode_bundle(sound))  # 3
    return bundle


def _read_sound(storage: Storage, segment: str) -> bytes | None:
    """The bytes of a segment, each of them checked; None if it is gone or damaged."""
    try:
        content = storage.read(segment_path(segment))
    except FileNotFoundError:
        return None
    return content if _is_sound(segment, content) else None


def _is_sound(segment: str, content: bytes) -> bool:
    return bool(content) and all(isinstance(found, FoundFrame) for found in scan_bytes(segment, content))
