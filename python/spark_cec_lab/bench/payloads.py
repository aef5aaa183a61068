"""Bytes of a commit's payload, by the number of its records: `python -m spark_cec_lab.bench.payloads`.

Prints a table of three forms: sorted planes, the same with ids in steps, and the form that a commit has, which packs a
small payload. The records are counts and sums of made-up windows, with ids drawn evenly (`FORMAT.md`, section 2).
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from spark_cec.log.byte_planes import sort_order, to_planes
from spark_cec.log.record import RecordKind, encode_commit, encode_records, encode_table, records_schema

COUNTS = (10, 128, 1_000, 4_500, 50_000)
IDS = 200_000
SEED = 1


def make_records(count: int, seed: int = SEED) -> pa.Table:
    """`count` checks of windows: an id, a count of about 60, and the sum of so many amounts below 1,000."""
    random = np.random.default_rng(seed)
    ids = random.choice(IDS, count, replace=False)
    counts = random.poisson(60, count) + 1
    sums = counts * 500 + (288 * np.sqrt(counts) * random.standard_normal(count)).astype(np.int64)
    kinds = pa.array(np.full(count, int(RecordKind.CHECK), dtype=np.int8))
    return pa.table([kinds, _make_rows(ids), _make_rows(counts, sums)], schema=records_schema())


def payload_bytes(rows: pa.Table) -> tuple[int, int, int]:
    """Bytes of the payload in sorted planes, with ids in steps, and as a commit has it."""
    order = sort_order(rows["window"])
    return _by_column(rows, to_planes(rows, order)), _by_column(rows, to_planes(rows, order, "window")), _written(rows)


def _by_column(rows: pa.Table, planes: pa.Table | None) -> int:
    return len(encode_records(rows) if planes is None else encode_table(planes))


def _written(rows: pa.Table) -> int:
    return len(encode_commit(rows)[0])


def _make_rows(*words: np.ndarray) -> pa.Array:
    """Spark's rows of whole numbers: a word for nulls, then a word for each number."""
    matrix = np.zeros((len(words[0]), 1 + len(words)), dtype=np.int64)
    matrix[:, 1:] = np.stack(words, axis=1)
    return pa.array([row.tobytes() for row in matrix], pa.binary())


def main() -> None:
    """Prints the table."""
    print("| records | sorted planes | ids in steps | as written |\n|---|---|---|---|")
    for count in COUNTS:
        print(f"| {count:,} | " + " | ".join(f"{size:,}" for size in payload_bytes(make_records(count))) + " |")


if __name__ == "__main__":
    main()
