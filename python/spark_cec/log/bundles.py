"""Bundles: objects with many segments each, and the view of a log in which these segments are files (`FORMAT.md`, 1).

A segment in a bundle keeps its name and its bytes. So places in the log and the order of attempts stay as they are.
"""

from __future__ import annotations

import errno
import json
import struct
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import accumulate
from typing import NamedTuple, TypeVar

from spark_cec.errors import DamagedLog, NewerFormat
from spark_cec.log.delegating_storage import DelegatingStorage
from spark_cec.log.frame import Buffer, crc32c
from spark_cec.log.scan import Corrupt
from spark_cec.log.segment import SEGMENTS, SegmentName, is_bundle, segment_path
from spark_cec.log.storage import Listing, Storage, StoredFile, reads_at_once

BUNDLE_VERSION = 1

_MAGIC = b"\x89CECBND\n"
_HEAD = struct.Struct("<8sHHII")
_CRC = struct.Struct("<I")
_FIRST_READ_BYTES = 64 << 10

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Bundled:
    """The place of a segment: its bundle's name, and its bytes there."""

    bundle: str
    offset: int
    size: int


Directory = Mapping[str, Bundled]


class Duplicate(NamedTuple):
    """A segment that a bundle has, too. `since`: by this process's clock, the time at which the bundle was first seen.
    """

    segment: str
    since: float


def encode_bundle(segments: Mapping[str, bytes]) -> bytes:
    """The bytes of a bundle. `segments`: the bytes of each, by name."""
    directory = json.dumps([[name, len(content)] for name, content in sorted(segments.items())]).encode()
    head = _HEAD.pack(_MAGIC, BUNDLE_VERSION, 0, len(directory), crc32c(directory))
    contents = (content for _, content in sorted(segments.items()))
    return b"".join([head, _CRC.pack(crc32c(head)), directory, *contents])


def read_directory(storage: Storage, bundle: str, size: int) -> Directory:
    """The segments of a bundle of `size` bytes. Errors: `DamagedLog`, `NewerFormat`, `FileNotFoundError`."""
    path, begin = segment_path(bundle), _HEAD.size + _CRC.size
    data = storage.read(path, 0, min(size, _FIRST_READ_BYTES))
    if len(data) < begin or _CRC.unpack_from(data, _HEAD.size)[0] != crc32c(data[: _HEAD.size]):
        raise DamagedLog(bundle, 0, "the head of the bundle fails its checksum")
    magic, version, _, length, crc = _HEAD.unpack_from(data)
    if magic != _MAGIC:
        raise DamagedLog(bundle, 0, "this is no bundle of segments")
    if version > BUNDLE_VERSION:
        raise NewerFormat(bundle, f"bundle version {version}")
    if begin + length > len(data):
        data = storage.read(path, 0, begin + length)
    directory = data[begin : begin + length]
    if crc32c(directory) != crc:
        raise DamagedLog(bundle, begin, "the directory of the bundle fails its checksum")
    entries = [(str(name), int(count)) for name, count in json.loads(directory)]
    offsets = accumulate((count for _, count in entries), initial=begin + length)
    places = {name: Bundled(bundle, at, count) for (name, count), at in zip(entries, offsets, strict=False)}
    end = begin + length + sum(count for _, count in entries)
    if end != size or any(SegmentName.parse(name) is None for name in places):
        raise DamagedLog(bundle, size, f"the bundle has {size} bytes, and its directory is of {end}")
    return places


class Bundles(DelegatingStorage):
    """A log's home in which the segments of bundles are files of their own; safe for several threads.

    If a segment lies beside its bundle, that file counts: `cec repair` may have replaced it. A deleted segment stays in
    its bundle, which goes when all its segments are deleted. Until then other processes see the segment as if nobody
    had trimmed the log yet. If a file differs from its copy in the bundle, it stays until the bundle goes.
    """

    def __init__(self, inner: Storage, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__(inner)
        self._clock = clock
        self._lock = threading.Lock()
        self._directories: dict[str, Directory] = {}
        self._since: dict[str, float] = {}
        self._damaged: dict[str, tuple[int, DamagedLog]] = {}
        self._beside: dict[str, int] = {}
        self._copies: dict[str, Bundled] = {}
        self._places: dict[str, Bundled] = {}
        self._gone: set[str] = set()

    @property
    def damaged(self) -> Mapping[str, tuple[int, DamagedLog]]:
        """The bundles that the last listing of segments left out: size and reason, by name."""
        with self._lock:
            return dict(self._damaged)

    @property
    def beside(self) -> Mapping[str, int]:
        """The segments that no bundle has, by the last listing: size by name."""
        with self._lock:
            return {name: size for name, size in self._beside.items() if name not in self._copies}

    @property
    def duplicates(self) -> Sequence[Duplicate]:
        """The segments that lie beside their bundle with the same size, by the last listing."""
        with self._lock:
            return [
                Duplicate(segment, self._since[place.bundle])
                for segment, place in self._copies.items()
                if self._beside.get(segment) == place.size
            ]

    def list(self, directory: str) -> Listing:
        """The files directly in a directory; for each bundle its segments."""
        found = super().list(directory)
        if directory != SEGMENTS:
            return found
        bundles = {file.name: file.size for file in found if is_bundle(file.name)}
        read = self._read_new(bundles)
        with self._lock:
            self._take_in(bundles, read)
            self._beside = {file.name: file.size for file in found if not is_bundle(file.name)}
            self._copies = {
                segment: place
                for bundle in sorted(self._directories, reverse=True)  # of several bundles the oldest counts
                for segment, place in self._directories[bundle].items()
            }
            self._places = {segment: at for segment, at in self._copies.items() if segment not in self._beside}
            self._gone &= self._copies.keys()
            files = [file for file in found if not is_bundle(file.name)]
            files += [StoredFile(name, at.size) for name, at in self._places.items()]
            return sorted(file for file in files if file.name not in self._gone)

    def read(self, path: str, offset: int = 0, length: int | None = None) -> bytes:
        """At most `length` bytes from `offset`."""

        def read_at(place: Bundled) -> bytes:
            rest = max(0, place.size - offset)
            count = rest if length is None else min(length, rest)
            return self._inner.read(segment_path(place.bundle), place.offset + offset, count) if count else b""

        return self._find(path, lambda: self._inner.read(path, offset, length), read_at)

    def size(self, path: str) -> int:
        """Bytes in the file."""
        return self._find(path, lambda: self._inner.size(path), lambda place: place.size)

    def exists(self, path: str) -> bool:
        """Whether the file exists."""
        return self._place_of(path) is not None or self._inner.exists(path)

    def sync(self, path: str) -> None:
        """Makes the file durable; a bundle is durable once it is there."""
        if self._place_of(path) is None:
            self._inner.sync(path)

    def replace(self, path: str, data: Buffer) -> None:
        """Creates or replaces a file with these bytes."""
        self._inner.replace(path, data)
        with self._lock:
            self._places.pop(path.removeprefix(f"{SEGMENTS}/"), None)

    def delete(self, path: str) -> None:
        """Deletes the file, if it exists."""
        self.delete_all([path])

    def delete_all(self, paths: Sequence[str]) -> None:
        """Deletes the files that exist, and bundles in which no segment is left."""
        with self._lock:
            segments = {path.removeprefix(f"{SEGMENTS}/") for path in paths}
            self._gone |= segments & self._copies.keys()
            empty = [bundle for bundle, directory in self._directories.items() if directory.keys() <= self._gone]
            left = {each for bundle in self._directories.keys() - {*empty} for each in self._directories[bundle]}
            stay = {segment for segment in left if not self._is_copied(segment)}
            beside = {each for bundle in empty for each in self._directories[bundle] if each in self._beside} - stay
            others = self._places.keys() | stay | beside
        files = [path for path in paths if path.removeprefix(f"{SEGMENTS}/") not in others]
        gone = [*files, *map(segment_path, empty)]
        if gone:
            self._inner.delete_all(gone)
        self._delete_repaired(empty, beside)
        with self._lock:
            for bundle in empty:
                self._directories.pop(bundle, None)

    def _delete_repaired(self, bundles: Sequence[str], beside: AbstractSet[str]) -> None:
        """Deletes repaired segments, once their bundles are gone: one that stays would show the damaged copies."""
        if beside:
            left = [bundle for bundle in bundles if self._inner.exists(segment_path(bundle))]
            stay = {each for bundle in left for each in self._directories[bundle]}
            self._inner.delete_all([segment_path(each) for each in sorted(beside - stay)])

    def read_copy(self, segment: str) -> bytes:
        """The bytes of a segment in its bundle, even if its file counts. `FileNotFoundError` if no bundle has it."""
        with self._lock:
            place = self._copies.get(segment)
        if place is None:
            raise FileNotFoundError(errno.ENOENT, f"{self.url} has no bundle with this segment", segment)
        return self._inner.read(segment_path(place.bundle), place.offset, place.size)

    def delete_files(self, segments: Sequence[str]) -> None:
        """Deletes the files of segments that a bundle has, too; the segments stay."""
        if segments:
            self._inner.delete_all([segment_path(segment) for segment in segments])

    def _is_copied(self, segment: str) -> bool:
        """Whether the segment's file, if there is one, is as its bundle has it. The caller has the lock."""
        size = self._copies[segment].size
        return self._beside.get(segment, size) == size

    def _read_new(self, bundles: Mapping[str, int]) -> Mapping[str, Directory | DamagedLog | None]:
        """The directories of bundles that are new, or why one cannot be read, or None for one that is gone again."""
        with self._lock:
            new = [
                name
                for name, size in bundles.items()
                if name not in self._directories and self._damaged.get(name, (None,))[0] != size
            ]

        def read(bundle: str) -> Directory | DamagedLog | None:
            try:
                return read_directory(self._inner, bundle, bundles[bundle])
            except FileNotFoundError:
                return None
            except DamagedLog as error:
                return error

        if len(new) <= 1:
            return {bundle: read(bundle) for bundle in new}
        with ThreadPoolExecutor(min(reads_at_once(self._inner), len(new))) as pool:
            return dict(zip(new, pool.map(read, new), strict=True))

    def _take_in(self, bundles: Mapping[str, int], read: Mapping[str, Directory | DamagedLog | None]) -> None:
        """Notes the directories of the bundles that are there. The caller has the lock."""
        self._damaged = {name: known for name, known in self._damaged.items() if name in bundles and name not in read}
        self._directories = {name: known for name, known in self._directories.items() if name in bundles}
        for name, found in read.items():
            if isinstance(found, DamagedLog):
                self._damaged[name] = bundles[name], found
            elif found is not None:
                self._directories[name] = found
        now = self._clock()
        self._since = {name: self._since.get(name, now) for name in self._directories}

    def _place_of(self, path: str) -> Bundled | None:
        with self._lock:
            return self._places.get(path.removeprefix(f"{SEGMENTS}/"))

    def _find(self, path: str, as_file: Callable[[], _T], as_part: Callable[[Bundled], _T]) -> _T:
        """What one of the functions answers. If the segment is not where the last listing had it, lists once more."""
        for is_last in (False, True):
            place = self._place_of(path)
            try:
                return as_file() if place is None else as_part(place)
            except FileNotFoundError:
                if is_last or SegmentName.parse(path.removeprefix(f"{SEGMENTS}/")) is None:
                    raise
                self.list(SEGMENTS)
        raise AssertionError("unreachable: the second attempt answers or raises")


def damaged_bundles(storage: Storage) -> list[Corrupt]:
    """The bundles that the last listing left out because their heads are damaged, by name."""
    view = _find_view(storage)
    found = view.damaged.items() if view is not None else ()
    return [Corrupt(name, 0, size, error.reason) for name, (size, error) in sorted(found)]


def has_bundles(storage: Storage) -> bool:
    """Whether the log has bundles, which a view of them hides."""
    view = _find_view(storage)
    return any(is_bundle(file.name) for file in (storage if view is None else view.inner).list(SEGMENTS))


def _find_view(storage: Storage) -> Bundles | None:
    """The view of bundles below the wrappers of a storage; None if there is none."""
    while isinstance(storage, DelegatingStorage) and not isinstance(storage, Bundles):
        storage = storage.inner
    return storage if isinstance(storage, Bundles) else None
