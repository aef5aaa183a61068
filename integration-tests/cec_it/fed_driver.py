"""The driver of one replica, which is killed: the pipeline of `fed_pages` with tentative rows -> a file for each batch.

`python -m cec_it.fed_driver REPLICA ROOT MASTER`.
"""

from __future__ import annotations

import json
import os
import sys
from functools import partial
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame

from cec_it.fed_pages import BOUND, per_page, shown
from cec_it.replica_process import exit_with, read_conf, run_replica

STABLE = "stable"


def write_batch(out: Path, rows: DataFrame, batch: int) -> None:
    """Writes the rows of a batch into a file, which a repeat replaces. A repeat with other stable rows is noted."""
    made: list[list[Any]] = [
        [row["_kind"], row["_epoch"], *(shown(row) if row["_kind"] != "undo" else ())] for row in rows.collect()
    ]
    path, text = out / f"{batch:06d}.json", json.dumps(made)
    if path.exists() and stable_rows(json.loads(path.read_text())) != stable_rows(json.loads(text)):
        (out / f"differs-{batch}").write_text(text)
    hidden = out / f".{batch}-{os.getpid()}"
    hidden.write_text(text)
    hidden.rename(path)


def stable_rows(rows: list[list[Any]]) -> list[list[Any]]:
    """The stable ones, in some order."""
    return sorted(row for row in rows if row[0] == STABLE)


if __name__ == "__main__":
    replica, place, master = sys.argv[1:]
    root = Path(place)
    home = read_conf().get("cec.test.home", f"{root}/home")
    pipeline = per_page(root, partial(write_batch, root / "out"), tentative=True, home=home, **BOUND)
    exit_with(run_replica(pipeline, replica, root, master))
