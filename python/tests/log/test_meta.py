"""Metas: bytes and back."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_cec.ids import StoreId
from spark_cec.log.frame import CommitFlags, CommitMeta, FrameKind, LoadedMeta, Meta, OutputMeta, SegmentMeta
from spark_cec.log.meta import IMPOSSIBLE, decode_meta, kind_of
from tests.log.support import LOG_ID, WRITER_ID, commit_meta, loaded_meta, output_meta

I64 = st.integers(-(2**63), 2**63 - 1)
IDS = st.binary(min_size=16, max_size=16)
STORES = st.builds(StoreId, I64, st.integers(-(2**31), 2**31 - 1), st.text(max_size=30))
SPECIAL: dict[str, Any] = {
    "store": STORES, "checkpoint_id": IDS, "base_checkpoint_id": IDS, "frame_id": IDS,
    "digest": st.integers(0, 2**64 - 1),
    "flags": st.integers(0, 2**32 - 1), "log_id": IDS.map(bytes.hex), "writer_id": st.text(max_size=50),
    "seq": st.integers(0, 2**32 - 1),
}  # fmt: skip


def _metas(kind: type[Any]) -> st.SearchStrategy[Any]:
    types = {"float": st.floats(0, IMPOSSIBLE, exclude_max=True), "int": I64}
    fields = {f.name: SPECIAL[f.name] if f.name in SPECIAL else types[str(f.type)] for f in dataclasses.fields(kind)}
    if kind is OutputMeta:
        fields["partition"] = st.integers(-(2**31), 2**31 - 1)
    return st.builds(kind, **fields)


ANY_META: st.SearchStrategy[Meta] = st.one_of(
    [_metas(kind) for kind in (SegmentMeta, CommitMeta, OutputMeta, LoadedMeta)]
)
EXAMPLES: list[Meta] = [commit_meta(), output_meta(), loaded_meta(), SegmentMeta(LOG_ID, WRITER_ID, 1, 2)]


@given(ANY_META, st.binary(max_size=20))
def test_metas_round_trip_and_may_grow(meta: Meta, growth: bytes) -> None:
    assert decode_meta(kind_of(meta), meta.encode()) == meta
    assert decode_meta(kind_of(meta), meta.encode() + growth) == meta


@pytest.mark.parametrize("meta", EXAMPLES, ids=[kind_of(meta).name for meta in EXAMPLES])
def test_a_short_meta_says_so(meta: Meta) -> None:
    whole = meta.encode()
    earlier = {len(whole) - each * 8 for each in (1, 2, 3, 7)} if isinstance(meta, CommitMeta) else set()
    for length in set(range(len(whole))) - earlier:
        with pytest.raises(ValueError, match="at least"):
            decode_meta(kind_of(meta), whole[:length])


def test_a_commit_from_before_the_forecast_was_kept_is_read() -> None:
    meta = commit_meta(recovery_base_ms=7.5, sketch=-8, state_rows=3, decoded_bytes=9)
    assert decode_meta(FrameKind.COMMIT, meta.encode()[: -7 * 8]) == commit_meta()


def test_a_commit_from_before_the_sketch_was_kept_is_read() -> None:
    meta = commit_meta(recovery_base_ms=7.5, sketch=-8, state_rows=3, decoded_bytes=9)
    assert decode_meta(FrameKind.COMMIT, meta.encode()[: -3 * 8]) == commit_meta(recovery_base_ms=7.5)


def test_a_commit_from_before_rows_were_kept_is_read() -> None:
    """Where a window has one row, their number is known all the same."""
    meta = commit_meta(recovery_base_ms=7.5, sketch=-8, state_rows=3, decoded_bytes=9)
    assert decode_meta(FrameKind.COMMIT, meta.encode()[: -2 * 8]) == commit_meta(recovery_base_ms=7.5, sketch=-8)


def test_a_commit_from_before_the_decoded_bytes_were_kept_is_read() -> None:
    meta = commit_meta(sketch=-8, state_rows=3, decoded_bytes=9)
    assert decode_meta(FrameKind.COMMIT, meta.encode()[:-8]) == commit_meta(sketch=-8, state_rows=3)


@pytest.mark.parametrize(
    ("state_rows", "open_windows", "flags", "rows"),
    [(7, 3, CommitFlags.GROUPED, 7), (0, 3, CommitFlags.GROUPED, None), (0, 0, CommitFlags.GROUPED, 0), (0, 3, 0, 3)],
)
def test_how_many_state_keys_there_are(state_rows: int, open_windows: int, flags: int, rows: int | None) -> None:
    assert commit_meta(state_rows=state_rows, open_windows=open_windows, flags=int(flags)).rows == rows


def test_each_kind_has_a_meta() -> None:
    assert {kind_of(meta) for meta in EXAMPLES} == set(FrameKind)


@pytest.mark.parametrize("field", ["checkpoint_id", "base_checkpoint_id"])
@pytest.mark.parametrize("length", [0, 15, 17])
def test_ids_have_sixteen_bytes(field: str, length: int) -> None:
    changes: dict[str, Any] = {field: bytes(length)}
    with pytest.raises(ValueError, match="bytes, not 16"):
        commit_meta(**changes).encode()


def test_the_longest_name_fits_and_a_longer_one_is_refused() -> None:
    longest = loaded_meta(store=StoreId(0, 0, "x" * 65535))
    assert decode_meta(FrameKind.LOADED, longest.encode()) == longest
    with pytest.raises(ValueError, match="at most 65535"):
        loaded_meta(store=StoreId(0, 0, "x" * 65536)).encode()


def test_a_name_that_is_no_text_is_an_error() -> None:
    encoded = loaded_meta(store=StoreId(0, 0, "ab")).encode().replace(b"ab", b"\xff\xfe")
    with pytest.raises(ValueError, match="decode"):
        decode_meta(FrameKind.LOADED, encoded)


def test_unknown_flags_are_kept() -> None:
    meta = commit_meta(flags=CommitFlags.EAGER | 1 << 30)
    assert CommitMeta.decode(meta.encode()).flags == 1 | 1 << 30


@pytest.mark.parametrize("meta", [OutputMeta(b"short", 0, 0, 0, 0, 0, 0), SegmentMeta("abcd", WRITER_ID, 0, 0)])
def test_other_ids_too(meta: Meta) -> None:
    with pytest.raises(ValueError, match="bytes, not 16"):
        meta.encode()
