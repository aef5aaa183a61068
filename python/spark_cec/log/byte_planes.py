"""Byte planes: rows of equal length, transposed so that bytes of the same meaning lie side by side.

Rows of state are Spark's `UnsafeRow`s: words of eight bytes, most of which are zero. One binary column compresses to
half. Planes compress to a seventh, because planes of zeros are omitted (`FORMAT.md`, section 2, planes). If the rows
are sorted, a column may be in steps: each value's words are the differences from the previous value (the same section,
steps).
"""

from __future__ import annotations

import json
from itertools import islice
from typing import TypeAlias

import numpy as np
import pyarrow as pa

LEAST_ROWS = 20
"""With fewer rows, the description of the planes costs more than the planes save."""

MOST_BYTES = 256
"""Longer rows keep their form: a column for each of their bytes is too many."""

_KEY = b"cec.planes"

_Chunk: TypeAlias = "tuple[np.ndarray, np.ndarray | None]"
"""The values of a chunk, one row of bytes each, and a mask of nulls (None: no nulls)."""

_SORTED_WORDS = 4
"""The number of differing words that order the values: a start and an end in time, and a text of sixteen bytes."""


def to_planes(rows: pa.Table, order: np.ndarray | None = None, stepped: str | None = None) -> pa.Table | None:
    """`rows` with each binary column of equal-length values in planes; None if there is no such column.

    A column `c` of width w becomes uint8 columns `c.i`, i in [0, w), of byte i of each value. Columns of zeros are
    omitted. If values are null, `c.0` stays and has the nulls. `order`: indices (int64) of all rows, in the new order.
    `stepped`: a column of words (`varying_words`), which the call puts into steps.
    """
    if rows.num_rows < LEAST_ROWS:
        return None
    columns: dict[pa.Field, pa.ChunkedArray] = {}
    whole: list[tuple[str, int, bool]] = []
    for field, column in zip(rows.schema, rows.columns, strict=True):
        width = _value_width(column) if pa.types.is_binary(field.type) else 0
        turned = 0 < width <= MOST_BYTES
        whole.append((field.name, width if turned else 0, field.nullable))
        if turned:
            columns.update(_split_planes(field.name, _read_pieces(column, width, order, field.name == stepped)))
        else:
            columns[field] = column if order is None else column.take(pa.array(order))
    if not any(width for _, width, _ in whole):
        return None
    return pa.table(list(columns.values()), pa.schema(list(columns), {_KEY: json.dumps(whole).encode()}))


def from_planes(rows: pa.Table, stepped: str | None = None) -> pa.Table:
    """The inverse of `to_planes`; the rows stay in the order of the planes.

    Raises `ValueError` if `rows` have no description of planes, or differ from it.
    """
    text = (rows.schema.metadata or {}).get(_KEY)
    if text is None:
        raise ValueError("the records are to be in planes, and are not described as such")
    columns, fields, known = [], [], set()
    whole = json.loads(text)
    if stepped is not None and stepped not in {name for name, _, _ in whole}:
        raise ValueError(f"column {stepped} is to be in steps, and is not described")
    for name, width, nullable in whole:
        if name == stepped and (not width or width % 8):
            raise ValueError(f"column {name} is to be in steps, and its values of {width} bytes have no words")
        known |= {f"{name}.{i}" for i in range(width)} if width else {name}
        columns.append(_join_planes(rows, name, width, name == stepped) if width else rows[name])
        fields.append(pa.field(name, columns[-1].type, nullable))
    if unknown := set(rows.column_names) - known:
        raise ValueError(f"the description of the planes does not have {', '.join(sorted(unknown))}")
    return pa.table(columns, pa.schema(fields))


def varying_words(column: pa.ChunkedArray, most: int | None = None) -> list[np.ndarray] | None:
    """The first `most` words (uint64; None: all) that differ between the values.

    None if the values have no words. Spark's rows are words of eight bytes, so two values are equal if these words are.
    """
    width = 0 if column.null_count else _value_width(column)
    if not width or width % 8 or width > MOST_BYTES:
        return None
    chunks = [np.ascontiguousarray(_read_matrix(chunk, width)).view(np.uint64) for chunk in column.chunks if len(chunk)]
    every = (np.concatenate([chunk[:, i] for chunk in chunks]) for i in range(width // 8))
    return list(islice((word for word in every if (word != word[0]).any()), most))


def sort_order(column: pa.ChunkedArray) -> np.ndarray | None:
    """Indices (int64) that sort the values by their first words; equal values keep their order.

    None if the values have no words, or are all equal.
    """
    words = varying_words(column, most=_SORTED_WORDS)
    if not words:
        return None
    if len(words) > 1:
        order: np.ndarray = np.lexsort(words[::-1])
        return order
    return sort_word(words[0])


def sort_word(word: np.ndarray) -> np.ndarray:
    """Indices (int64) that sort these words (uint64); equal words keep their order."""
    word, bits = word - word.min(), len(word).bit_length()
    if int(word.max()) >> (64 - bits):
        return np.argsort(word, kind="stable")
    # Pack each word with its index: the sort is stable, and several times faster than a sort of indices.
    packed = (word << np.uint64(bits)) | np.arange(len(word), dtype=np.uint64)
    packed.sort()
    indices: np.ndarray = (packed & np.uint64((1 << bits) - 1)).astype(np.int64)
    return indices


def _value_width(column: pa.ChunkedArray) -> int:
    """The length of every value, in bytes; 0 if the lengths differ or there is no value."""
    width = 0
    for chunk in column.chunks:
        lengths = np.diff(_read_offsets(chunk))
        if chunk.null_count:
            lengths = lengths[_read_validity(chunk)]
        if not len(lengths):
            continue
        first = int(lengths[0])
        if (width and first != width) or not (lengths == first).all():
            return 0
        width = first
    return width


def _read_pieces(column: pa.ChunkedArray, width: int, order: np.ndarray | None, stepped: bool) -> list[_Chunk]:
    pieces = [
        (_read_matrix(chunk, width), ~_read_validity(chunk) if chunk.null_count else None) for chunk in column.chunks
    ]
    if order is None:
        return pieces
    matrix = (pieces[0][0] if len(pieces) == 1 else np.concatenate([matrix for matrix, _ in pieces]))[order]
    nulls = column.is_null().to_numpy()[order] if column.null_count else None
    if stepped:
        words = matrix.view(np.uint64)
        words[1:] -= words[:-1].copy()  # modulo 2^64
    return [(matrix, nulls)]


def _split_planes(name: str, pieces: list[_Chunk]) -> dict[pa.Field, pa.ChunkedArray]:
    used = np.zeros(pieces[0][0].shape[1], dtype=np.uint8)
    for matrix, nulls in pieces:
        used |= np.bitwise_or.reduce(matrix, axis=0)
        used[0] |= nulls is not None
    return {
        pa.field(f"{name}.{i}", pa.uint8()): pa.chunked_array(
            [pa.array(np.ascontiguousarray(matrix[:, i]), mask=nulls if i == 0 else None) for matrix, nulls in pieces],
            type=pa.uint8(),
        )
        for i in np.flatnonzero(used).tolist()
    }


def _read_matrix(chunk: pa.Array, width: int) -> np.ndarray:
    """A row of `width` bytes for each value; zeros for nulls."""
    offsets = _read_offsets(chunk)
    data = chunk.buffers()[2]
    whole = np.frombuffer(data, dtype=np.uint8) if data is not None else np.zeros(0, dtype=np.uint8)
    if not chunk.null_count:
        return whole[offsets[0] : offsets[0] + len(chunk) * width].reshape(len(chunk), width)
    matrix = np.zeros((len(chunk), width), dtype=np.uint8)
    valid = _read_validity(chunk)
    matrix[valid] = whole[offsets[:-1][valid][:, None] + np.arange(width)]
    return matrix


def _join_planes(rows: pa.Table, name: str, width: int, stepped: bool) -> pa.ChunkedArray:
    planes = [(i, rows[f"{name}.{i}"]) for i in range(width) if f"{name}.{i}" in rows.column_names]
    starts = np.arange(rows.num_rows + 1, dtype=np.int64) * width
    if int(starts[-1]) >= 1 << 31:
        if stepped:
            raise ValueError(f"column {name} is to be in steps, and has {int(starts[-1])} bytes: more than are ordered")
        halves = (rows.slice(0, rows.num_rows // 2), rows.slice(rows.num_rows // 2))
        return pa.chunked_array([chunk for half in halves for chunk in _join_planes(half, name, width, False).chunks])
    matrix = np.zeros((rows.num_rows, width), dtype=np.uint8)
    validity, nulls = None, 0
    for i, plane in planes:
        if plane.type != pa.uint8() or (plane.null_count and i):
            raise ValueError(f"plane {name}.{i} is {plane.type} with {plane.null_count} nulls")
        if plane.null_count:
            validity, nulls = plane.is_valid().combine_chunks(), plane.null_count
            plane = plane.fill_null(0)
        matrix[:, i] = plane.to_numpy()
    if stepped:
        words = matrix.view(np.uint64)
        np.cumsum(words, axis=0, out=words)  # modulo 2^64
    valid = validity.buffers()[1] if validity is not None else None
    buffers = [valid, pa.py_buffer(starts.astype(np.int32)), pa.py_buffer(matrix)]
    return pa.chunked_array([pa.Array.from_buffers(pa.binary(), rows.num_rows, buffers, null_count=nulls)])


def _read_offsets(chunk: pa.Array) -> np.ndarray:
    buffer = chunk.buffers()[1]
    whole = np.zeros(1, dtype=np.int32) if buffer is None else np.frombuffer(buffer, dtype=np.int32)
    return whole[chunk.offset : chunk.offset + len(chunk) + 1]


def _read_validity(chunk: pa.Array) -> np.ndarray:
    valid: np.ndarray = chunk.is_valid().to_numpy(zero_copy_only=False)
    return valid
