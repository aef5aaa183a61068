"""The catalog keeps an index up to date with the log's segments."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple, TypeVar

from spark_cec.errors import DamagedLog
from spark_cec.log.bundles import damaged_bundles
from spark_cec.log.frame import FrameHeader
from spark_cec.log.healed_index import HealedIndex
from spark_cec.log.index import BrokenIndexError, Covered, Index, MemoryIndex
from spark_cec.log.meta import Meta, SegmentMeta, decode_meta
from spark_cec.log.scan import Corrupt, Damage, FoundFrame, Scanned, Window, header_at, scan
from spark_cec.log.segment import Location, SegmentName, list_segments, segment_frame_length, segment_path
from spark_cec.log.storage import Listing, Storage, StoredFile, reads_at_once

_SCANS_AT_ONCE = 8
"""At least. A scan of a file on a disk takes the processor, too."""

_BYTES_FOLLOW_WITHIN_S = 120.0
"""NFS clients take attributes for true for a minute, by default."""

_FIRST_PAUSE_S = 0.5


class _Judged(NamedTuple):
    """The end of a segment that was scanned at this size: `since` is the first time, `last` the last one.

    On a shared file system a segment may have its size before its bytes, so that its end looks damaged for a while.
    """

    size: int
    since: float
    last: float

    def may_change(self, now: float) -> bool:
        """Whether another scan may find more. The pauses between scans double."""
        waited = self.last - self.since
        return waited < _BYTES_FOLLOW_WITHIN_S and now - self.last >= max(waited, _FIRST_PAUSE_S)


_Answer = TypeVar("_Answer")


class Catalog:
    """A log's index, and the scans that update it; safe for several threads.

    If `index` breaks, whatever is asked, an index in memory replaces it, and the files of the broken one go.
    """

    def __init__(self, storage: Storage, index: Index, clock: Callable[[], float] = time.monotonic) -> None:
        self._storage = storage
        self._index = index
        self._healed = HealedIndex(self.ask, self.close)
        self._clock = clock
        self._lock = threading.RLock()
        self._checked = False
        self._filled = True
        self._closed = False
        self._damages: dict[str, list[Damage]] = {}
        self._judged: dict[str, _Judged] = {}
        self._ahead: dict[str, dict[int, Covered]] = {}
        self._by_segment: tuple[dict[str, Any], ...] = (self._damages, self._judged, self._ahead)

    @property
    def index(self) -> Index:
        """The index, as far as `refresh` and `note` have updated it. If it breaks, it heals, until it is closed."""
        return self._healed

    @property
    def damages(self) -> tuple[Damage, ...]:
        """Damage in headers, and in bytes that the index did not have, by segment and offset; then damaged bundles."""
        with self._lock:
            found = [damage for segment in sorted(self._damages) for damage in self._damages[segment]]
        return (*found, *damaged_bundles(self._storage))

    @contextmanager
    def naming_places(self) -> Iterator[None]:
        """Adds the places of damaged bytes to a `DamagedLog` of a missing frame, which has no place of its own."""
        try:
            yield
        except DamagedLog as error:
            places = [f"{d.segment} at byte {d.offset}" for d in self.damages if isinstance(d, Corrupt)]
            if error.offset >= 0 or not places:
                raise
            raise DamagedLog(error.segment, -1, f"{error.reason}; damaged bytes are in {', '.join(places)}") from error

    def refresh(self, *, asks_sizes: bool = False) -> None:
        """Updates the index to the ends of the segments. Without new bytes this costs one listing.

        On a mounted file system a listing may have old sizes. If `asks_sizes`, each segment is asked for its size.
        Objects never grow, so they are not asked.

        1. On the first call, compare the index with the last frame of each covered segment; if one differs, clear the
           index.
        2. Forget segments that are gone or have become shorter.
        3. Scan the new bytes, headers only.

        Errors: `NewerFormat`; `OSError` from the storage. Damage is no error: see `damages`.
        """
        with self._lock:
            try:
                self._refresh(asks_sizes)
            except BrokenIndexError:
                self._replace_index()
                self._refresh(asks_sizes)

    def ask_twice(self, question: Callable[[], _Answer], lacks: Callable[[_Answer], bool] = lambda _: False) -> _Answer:
        """The answer to a question about the index, which is asked once more before a frame counts as missing.

        A frame is missing if the question raises `DamagedLog`, or if the answer `lacks` it. Then the sizes of all
        segments are asked first.
        """
        try:
            answer = question()
            if not self._storage.can_append or not lacks(answer):
                return answer
        except DamagedLog:
            if not self._storage.can_append:
                raise
        self.refresh(asks_sizes=True)
        return question()

    def ask(self, question: Callable[[Index], _Answer]) -> _Answer:
        """Asks the index; if it is broken, fills another one from the log and asks again."""
        index = self._index
        if not self._filled:  # another index is being filled, or the storage failed then
            self.refresh()
            index = self._index
        try:
            return question(index)
        except BrokenIndexError:
            with self._lock:
                if self._closed:
                    raise
                if self._index is index:
                    self._replace_index()
            self.refresh()
            return question(self._index)

    def close(self) -> None:
        """Releases what the index holds; may be called again."""
        with self._lock:
            self._closed = True
            self._index.close()

    def note(self, header: FrameHeader, location: Location) -> None:
        """Adds a frame of this process's writer to the index, without a read."""
        with self._lock:
            try:
                self._note(decode_meta(header.kind, header.meta), header.prelude_crc, location)
            except BrokenIndexError:
                self._replace_index()
                self._refresh()

    def _refresh(self, asks_sizes: bool = False) -> None:
        covered = dict(self._index.covered())
        files = self._list_segments(covered, asks_sizes)
        if not self._checked:
            self._check_segments(files)
            self._checked = True
            covered = dict(self._index.covered())
        sizes = {file.name: file.size for file in files}
        for segment in [name for name, known in covered.items() if sizes.get(name, -1) < known.end]:
            self._forget(segment)
            del covered[segment]
        for known in self._by_segment:
            for segment in known.keys() - sizes.keys():
                del known[segment]
        self._scan([file for file in files if self._is_new(file, covered)], covered)
        self._filled = True

    def _list_segments(self, covered: Mapping[str, Covered], asks_sizes: bool) -> Listing:
        """The segments. One that seems shorter than before is asked for its size in any case."""
        files = list_segments(self._storage)
        ends = {name: known.end for name, known in covered.items()}
        doubtful = [file for file in files if asks_sizes or file.size < ends.get(file.name, 0)]
        if not doubtful or not self._storage.can_append:
            return files
        with ThreadPoolExecutor(_SCANS_AT_ONCE) as pool:
            sizes = dict(pool.map(self._ask_size, doubtful))
        return [StoredFile(file.name, sizes.get(file.name, file.size)) for file in files]

    def _ask_size(self, file: StoredFile) -> tuple[str, int]:
        try:
            return file.name, self._storage.size(segment_path(file.name))
        except FileNotFoundError:
            return file.name, file.size

    def _is_new(self, file: StoredFile, covered: Mapping[str, Covered]) -> bool:
        known = covered.get(file.name)
        if file.size == (known.end if known else 0):
            return False
        judged = self._judged.get(file.name)
        return judged is None or judged.size != file.size or judged.may_change(self._clock())

    def _check_segments(self, files: Listing) -> None:
        sizes = {file.name: file.size for file in files}
        for segment, known in self._index.covered().items():
            if segment in sizes and not self._is_same(segment, sizes[segment], known):
                self._index.clear()
                return

    def _is_same(self, segment: str, size: int, known: Covered) -> bool:
        if not self._storage.can_append:  # an object has one name, which no other object gets, and never changes
            return size == known.end
        if size < known.end or known.last_offset >= size:
            return False
        window = Window(partial(self._storage.read, segment_path(segment)), size)
        header = header_at(window, segment, known.last_offset)
        return isinstance(header, FrameHeader) and header.prelude_crc == known.last_crc

    def _scan(self, files: Sequence[StoredFile], covered: Mapping[str, Covered]) -> None:
        starts = [covered[file.name].end if file.name in covered else 0 for file in files]
        if len(files) <= 1:
            self._apply_scans(files, starts, map(self._scan_one, files, starts))
            return
        pool = ThreadPoolExecutor(max(_SCANS_AT_ONCE, reads_at_once(self._storage)))
        try:
            self._apply_scans(files, starts, pool.map(self._scan_one, files, starts))
        finally:
            pool.shutdown(cancel_futures=True)

    def _apply_scans(
        self, files: Sequence[StoredFile], starts: Sequence[int], scans: Iterable[list[Scanned] | None]
    ) -> None:
        """Each at once: if the process is killed, the next one goes on from there."""
        for file, start, scanned in zip(files, starts, scans, strict=True):
            if scanned is None:
                self._forget(file.name)
            else:
                self._apply_scan(file, start, scanned)

    def _scan_one(self, file: StoredFile, start: int) -> list[Scanned] | None:
        try:
            return list(scan(self._storage, file.name, start, file.size))
        except FileNotFoundError:
            return None

    def _apply_scan(self, file: StoredFile, start: int, scanned: Sequence[Scanned]) -> None:
        segment = file.name
        damages: list[Damage] = [damage for damage in self._damages.get(segment, ()) if damage.offset < start]
        entries: list[tuple[Meta, Location]] = []
        covered: Covered | None = None
        for item in scanned:
            if not isinstance(item, FoundFrame):
                damages.append(item)
                continue
            covered = Covered(item.location.end, item.location.offset, item.header.prelude_crc)
            try:
                entries.append((decode_meta(item.header.kind, item.header.meta), item.location))
            except ValueError as error:
                damages.append(Corrupt(segment, item.location.offset, item.location.length, str(error)))
        stranger = self._find_other_log(entries)
        if stranger is not None:
            damages, covered = [Corrupt(segment, 0, file.size, f"the segment belongs to log {stranger}")], None
        if covered is not None:
            self._index.apply(segment, entries, covered)
        self._damages[segment] = damages
        before, now = self._judged.get(segment), self._clock()
        since = before.since if before is not None and before.size == file.size else now
        self._judged[segment] = _Judged(file.size, since, now)

    def _find_other_log(self, entries: Sequence[tuple[Meta, Location]]) -> str | None:
        ids = [meta.log_id for meta, _ in entries if isinstance(meta, SegmentMeta)]
        return next((log_id for log_id in ids if log_id != self._index.log_id), None)

    def _note(self, meta: Meta, prelude_crc: int, location: Location) -> None:
        segment = location.segment
        ahead = self._ahead.setdefault(segment, {})
        ahead[location.offset] = Covered(location.end, location.offset, prelude_crc)
        known = self._index.covered_of(segment)
        end = known.end if known else _first_own_offset(segment)
        covered: Covered | None = None
        while end in ahead:
            covered = ahead.pop(end)
            end = covered.end
        self._ahead[segment] = {offset: later for offset, later in ahead.items() if offset > end}
        self._index.apply(segment, [(meta, location)], covered)
        self._damages[segment] = [d for d in self._damages.get(segment, ()) if d.offset < location.offset]

    def _forget(self, segment: str) -> None:
        self._index.forget(segment)
        for known in self._by_segment:
            known.pop(segment, None)

    def _replace_index(self) -> None:
        self._filled = False  # before anybody can ask the new one
        broken, self._index = self._index, MemoryIndex(self._index.log_id)
        self._judged.clear()
        self._ahead.clear()
        self._checked = True
        if self._closed:  # its files are sound: a call that still runs has found it closed
            broken.close()
        else:
            broken.discard()


def _first_own_offset(segment: str) -> int:
    """The offset of the first frame after the SEGMENT frame, in a segment that this release wrote."""
    name = SegmentName.parse(segment)
    if name is None:
        raise ValueError(f"{segment!r} is no segment's name")
    return segment_frame_length(name)
