"""Scans: the table of damage, and damage at random."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_cec.errors import NewerFormat
from spark_cec.log import scan as scan_module
from spark_cec.log.frame import MAGIC, FrameKind, Location, crc32c, encode_frame
from spark_cec.log.scan import Corrupt, FoundFrame, Torn, scan
from spark_cec.log.storage import Storage
from tests.log.support import (
    SEGMENT,
    commit_meta,
    frame_bytes,
    loaded_meta,
    memory_storage,
    payload_of,
    put_segment,
    segment_bytes,
)

FRAMES = [frame_bytes(commit_meta(v), payload_of(v) if v != 3 else b"") for v in (1, 2, 3, 4)]
WHOLE = segment_bytes(FRAMES)
LEAD = len(WHOLE) - sum(map(len, FRAMES))
STARTS = [0, *(LEAD + sum(map(len, FRAMES[:n])) for n in range(4))]
LENGTHS = [LEAD, *map(len, FRAMES)]
END = len(WHOLE)
META = 32
PAYLOAD = 32 + len(commit_meta(2).encode())


def flip(*places: int) -> Callable[[bytes], bytes]:
    """Turns one bit in the bytes at these places."""

    def damage(data: bytes) -> bytes:
        changed = bytearray(data)
        for place in places:
            changed[place] ^= 0x08
        return bytes(changed)

    return damage


def cut(length: int) -> Callable[[bytes], bytes]:
    """Leaves so many bytes."""
    return lambda data: data[:length]


def put(place: int, inserted: bytes, removed: int = 0) -> Callable[[bytes], bytes]:
    """Puts bytes in, after taking some out."""
    return lambda data: data[:place] + inserted + data[place + removed :]


@dataclass(frozen=True)
class Row:
    """`survivors`: numbers of the frames found (0 is the SEGMENT frame); `full` where reading payloads finds others."""

    name: str
    damage: Callable[[bytes], bytes]
    survivors: list[int]
    torn: int = 0
    corrupt: int = 0
    full: tuple[list[int], int] | None = None


TABLE = [
    Row("none", cut(END), [0, 1, 2, 3, 4]),
    Row("empty file", cut(0), []),
    Row("cut at a boundary", cut(STARTS[4]), [0, 1, 2, 3]),
    Row("last byte missing", cut(END - 1), [0, 1, 2, 3], torn=LENGTHS[4] - 1),
    Row("last payload missing", cut(STARTS[4] + PAYLOAD), [0, 1, 2, 3], torn=PAYLOAD),
    Row("cut in the last meta", cut(STARTS[4] + META + 5), [0, 1, 2, 3], torn=META + 5),
    Row("cut in the last prelude", cut(STARTS[4] + 10), [0, 1, 2, 3], torn=10),
    Row("one byte of the last magic", cut(STARTS[4] + 1), [0, 1, 2, 3], torn=1),
    Row("cut in the first frame", cut(20), [], torn=20),
    Row("zero bytes behind", put(END, bytes(5000)), [0, 1, 2, 3, 4], torn=5000),
    Row("one zero byte behind", put(END, b"\0"), [0, 1, 2, 3, 4], torn=1),
    Row("only zero bytes", lambda _: bytes(4096), [], torn=4096),
    Row("last frame zeroed", lambda data: data[: STARTS[4]] + bytes(LENGTHS[4]), [0, 1, 2, 3], torn=LENGTHS[4]),
    Row("zero bytes, then one that is not", put(END, bytes(100) + b"\1"), [0, 1, 2, 3, 4], corrupt=101),
    Row("rubbish behind", put(END, b"\xaa" * 77), [0, 1, 2, 3, 4], corrupt=77),
    Row("short rubbish behind", put(END, b"xy"), [0, 1, 2, 3, 4], corrupt=2),
    Row("a text file", lambda _: b"once upon a time there was no log at all, but a text", [], corrupt=52),
    Row("magic broken", flip(STARTS[2]), [0, 1, 3, 4], corrupt=LENGTHS[2]),
    Row("length broken", flip(STARTS[2] + 16), [0, 1, 3, 4], corrupt=LENGTHS[2]),
    Row("huge length", flip(STARTS[2] + 22), [0, 1, 3, 4], corrupt=LENGTHS[2]),
    Row("prelude checksum broken", flip(STARTS[2] + 28), [0, 1, 3, 4], corrupt=LENGTHS[2]),
    Row("meta broken", flip(STARTS[2] + META + 3), [0, 1, 3, 4], corrupt=LENGTHS[2]),
    Row("first frame broken", flip(STARTS[0] + 40), [1, 2, 3, 4], corrupt=LENGTHS[0]),
    Row("two neighbours broken", flip(STARTS[1] + 3, STARTS[2] + 3), [0, 3, 4], corrupt=LENGTHS[1] + LENGTHS[2]),
    Row("last header broken", flip(STARTS[4] + 12), [0, 1, 2, 3], corrupt=LENGTHS[4]),
    Row("last payload broken", flip(STARTS[4] + PAYLOAD), [0, 1, 2, 3], corrupt=LENGTHS[4]),
    Row("last checksum broken", flip(END - 1), [0, 1, 2, 3], corrupt=LENGTHS[4]),
    Row("payload broken", flip(STARTS[2] + PAYLOAD), [0, 1, 2, 3, 4], full=([0, 1, 3, 4], LENGTHS[2])),
    Row("payload checksum broken", flip(STARTS[3] - 1), [0, 1, 2, 3, 4], full=([0, 1, 3, 4], LENGTHS[2])),
    Row("empty payload's checksum broken", flip(STARTS[4] - 1), [0, 1, 2, 3, 4], full=([0, 1, 2, 4], LENGTHS[3])),
    Row("bytes cut out of a payload", put(STARTS[2] + PAYLOAD + 8, b"", 50), [0, 1, 3, 4], corrupt=LENGTHS[2] - 50),
    Row("bytes put into a payload", put(STARTS[2] + PAYLOAD + 8, b"more"), [0, 1, 3, 4], corrupt=LENGTHS[2] + 4),
    Row("a frame cut out, a half left", put(STARTS[2] + 40, b"", LENGTHS[2] - 40), [0, 1, 3, 4], corrupt=40),
    Row("rubbish between frames", put(STARTS[2], b"rubbish"), [0, 1, 2, 3, 4], corrupt=7),
    Row("rubbish with a magic in it", put(STARTS[2], b"xx" + MAGIC + b"y" * 60 + MAGIC), [0, 1, 2, 3, 4], corrupt=78),
    Row("zero bytes between frames", put(STARTS[2], bytes(300)), [0, 1, 2, 3, 4], corrupt=300),
    Row("broken, then cut", lambda data: flip(STARTS[3])(data)[: STARTS[4] + 10], [0, 1, 2], 10, LENGTHS[3]),
    Row("broken, then a cut magic", lambda data: flip(STARTS[3])(data)[: STARTS[4] + 7], [0, 1, 2], 0, LENGTHS[3] + 7),
    Row("a frame twice", put(STARTS[2], FRAMES[0]), [0, 1, 1, 2, 3, 4]),
]  # fmt: skip


def _check(storage: Storage, row: Row, headers_only: bool) -> None:
    data = row.damage(WHOLE)
    put_segment(storage, data)
    found = list(scan(storage, SEGMENT, headers_only=headers_only))
    survivors, corrupt = row.survivors, row.corrupt
    if row.full is not None and not headers_only:
        survivors, corrupt = row.full
    frames = [item for item in found if isinstance(item, FoundFrame)]
    lengths = [item.location.length for item in frames]
    assert lengths == [LENGTHS[number] for number in survivors]
    originals = [WHOLE[STARTS[n] : STARTS[n] + LENGTHS[n]] for n in survivors]
    if row.full is None or not headers_only:
        assert [data[item.location.offset : item.location.end] for item in frames] == originals
    assert sum(item.bytes_lost for item in found if isinstance(item, Torn)) == row.torn
    assert sum(item.bytes_lost for item in found if isinstance(item, Corrupt)) == corrupt
    assert all(item.crc_ok for item in frames) or headers_only
    _check_that_it_adds_up(found, len(data))


def _check_that_it_adds_up(found: list[FoundFrame | Torn | Corrupt], size: int) -> None:
    at = 0
    for item in found:
        place = item.location if isinstance(item, FoundFrame) else item
        offset, length = place.offset, place.length if isinstance(place, Location) else place.bytes_lost
        assert offset == at
        assert length > 0
        at += length
    assert at == size


@pytest.mark.parametrize("headers_only", [True, False], ids=["headers", "full"])
@pytest.mark.parametrize("row", TABLE, ids=lambda row: row.name)
def test_table_of_damage(row: Row, headers_only: bool) -> None:
    _check(memory_storage(), row, headers_only)


@pytest.mark.parametrize("headers_only", [True, False], ids=["headers", "full"])
@pytest.mark.parametrize("block", [33, 50, 64, 257])
def test_the_size_of_blocks_makes_no_difference(
    block: int, headers_only: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scan_module, "BLOCK_BYTES", block)
    monkeypatch.setattr(scan_module, "_SMALL_BLOCK_BYTES", 32)
    for row in TABLE:
        _check(memory_storage(), row, headers_only)


@given(st.data())
def test_random_damage_never_invents_a_frame_nor_loses_a_sound_one(data: st.DataObject) -> None:
    storage = memory_storage()
    changed = bytearray(WHOLE)
    places = data.draw(st.lists(st.integers(0, END - 1), min_size=1, max_size=4))
    for place in places:
        changed[place] ^= data.draw(st.integers(1, 255))
    put_segment(storage, bytes(changed))
    try:
        found = list(scan(storage, SEGMENT, headers_only=False))
    except NewerFormat:
        pytest.fail("damage was taken for a newer format")
    frames = {item.location.offset: item.location.length for item in found if isinstance(item, FoundFrame)}
    for start, length in zip(STARTS, LENGTHS, strict=True):
        sound = changed[start : start + length] == WHOLE[start : start + length]
        assert frames.pop(start, None) == (length if sound else None)
    assert frames == {}
    _check_that_it_adds_up(found, END)


@given(st.integers(0, END))
def test_every_cut_is_torn_or_clean(length: int) -> None:
    storage = memory_storage()
    put_segment(storage, WHOLE[:length])
    found = list(scan(storage, SEGMENT))
    assert not any(isinstance(item, Corrupt) for item in found)
    whole = [item.location.offset for item in found if isinstance(item, FoundFrame)]
    assert whole == [start for start, size in zip(STARTS, LENGTHS, strict=True) if start + size <= length]


def test_a_frame_inside_a_payload_is_not_found_while_the_payload_is_sound() -> None:
    storage = memory_storage()
    nested = frame_bytes(loaded_meta(), FRAMES[0])
    data = segment_bytes([nested, FRAMES[1]])
    put_segment(storage, data)
    found = list(scan(storage, SEGMENT, headers_only=False))
    assert [item.location.length for item in found if isinstance(item, FoundFrame)] == [LEAD, len(nested), LENGTHS[2]]
    put_segment(storage, data[: LEAD + len(nested) - 1])
    torn = list(scan(storage, SEGMENT))
    assert torn[1:] == [Torn(SEGMENT, LEAD, len(nested) - 1)]


def test_scanning_on_from_a_place_and_up_to_a_size() -> None:
    storage = memory_storage()
    put_segment(storage, WHOLE)
    found = list(scan(storage, SEGMENT, start=STARTS[2], size=STARTS[4] + 3))
    assert [item.location.offset for item in found if isinstance(item, FoundFrame)] == [STARTS[2], STARTS[3]]
    assert found[-1] == Torn(SEGMENT, STARTS[4], 3)
    assert list(scan(storage, SEGMENT, start=END)) == []


def test_a_file_that_shrinks_during_the_scan_is_damage_not_an_accident() -> None:
    storage = memory_storage()
    put_segment(storage, WHOLE[: STARTS[4] + PAYLOAD + 4])
    for headers_only in (True, False):
        found = list(scan(storage, SEGMENT, size=END, headers_only=headers_only))
        assert [item.location.offset for item in found if isinstance(item, FoundFrame)] == STARTS[:4]
        assert sum(item.bytes_lost for item in found if not isinstance(item, FoundFrame)) == LENGTHS[4]


@pytest.mark.parametrize("headers_only", [True, False])
@pytest.mark.parametrize(("place", "value", "found"), [(8, 2, "format version 2"), (10, 9, "frame kind 9")])
def test_a_newer_frame_stops_the_scan(place: int, value: int, found: str, headers_only: bool) -> None:
    newer = bytearray(FRAMES[1])
    newer[place] = value
    newer[28:32] = crc32c(newer[:28]).to_bytes(4, "little")
    storage = memory_storage()
    put_segment(storage, segment_bytes([FRAMES[0], bytes(newer), FRAMES[3]]))
    with pytest.raises(NewerFormat, match=f"{SEGMENT} at byte {STARTS[2]}") as caught:
        list(scan(storage, SEGMENT, headers_only=headers_only))
    assert caught.value.found == found


def test_a_missing_segment() -> None:
    with pytest.raises(FileNotFoundError):
        list(scan(memory_storage(), SEGMENT))


def test_header_scans_leap_over_large_payloads() -> None:
    reads: list[int] = []

    class Counting:
        def __init__(self, inner: Storage) -> None:
            self._inner = inner

        def size(self, path: str) -> int:
            return self._inner.size(path)

        def read(self, path: str, offset: int = 0, length: int | None = None) -> bytes:
            data = self._inner.read(path, offset, length)
            reads.append(len(data))
            return data

    storage = memory_storage()
    large = [b"".join(encode_frame(FrameKind.COMMIT, commit_meta(v).encode(), bytes(9 << 20))) for v in range(1, 5)]
    put_segment(storage, segment_bytes([*large, FRAMES[0]]))
    found = list(scan(Counting(storage), SEGMENT))  # type: ignore[arg-type]
    assert len(found) == 6
    assert sum(reads) < 10 << 20
