"""A spool directory that is full while a query runs: rows go to the system's directory for temporary files."""

from __future__ import annotations

import errno
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from cec_it import feeds, local, results
from cec_it.crashes import Life, driver, follow
from cec_it.driver import CEC, CEC_SINK, FOREACH, Job, Query
from cec_it.references import References

QUERIES = (Query("window-update", feeds.RATE, FOREACH), Query("window-append", feeds.RATE, CEC_SINK))
PAGE = os.sysconf("SC_PAGE_SIZE")


@contextmanager
def small_file_system(place: Path, megabytes: int) -> Iterator[Path]:
    place.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={megabytes}m", "none", str(place)],
        capture_output=True,
        text=True,
        check=False,
    )
    if mounted.returncode:
        pytest.skip(f"no small file system can be made here: {mounted.stderr.strip()}")
    try:
        yield place
    finally:
        subprocess.run(["umount", "--lazy", str(place)], check=True)


@pytest.fixture
def full(tmp_path: Path) -> Iterator[Path]:
    """A file system of a megabyte of which one page is free."""
    with small_file_system(tmp_path / "full", 1) as place:
        with (place / "filling").open("wb", buffering=0) as filling:
            try:
                while True:
                    filling.write(bytes(PAGE))
            except OSError as error:
                assert error.errno == errno.ENOSPC
            filling.truncate(filling.tell() - PAGE)
        yield place


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Path]:
    """A file system of four megabytes: there is room when the first row of a task comes."""
    with small_file_system(tmp_path / "small", 4) as place:
        yield place


@pytest.mark.parametrize("write_at", ["task", "batch"])
def test_a_query_goes_on(
    write_at: str, full: Path, references: References, spark: SparkSession, tmp_path: Path
) -> None:
    conf = {CEC + "CI": "0ms", CEC + "spool.path": str(full), CEC + "writeAt": write_at}
    job = Job(str(tmp_path / "job"), QUERIES, local.BATCHES, local.ROWS, conf=conf)
    life = Life({})
    with driver(job) as child:
        follow(child, life, None, "a full spool")
    assert life.failed == {}
    windows, output = QUERIES
    assert results.last_recorded(job.out(windows)) == references.get(windows, job)
    rows = results.json_rows(spark.read.format("cec").load(str(job.checkpoint(output))))
    assert rows and not results.difference(results.union({0: rows}), results.union(references.get(output, job)))


@pytest.mark.parametrize("write_at", ["task", "batch"])
@pytest.mark.parametrize(
    "rows", [400_000, 220_000], ids=["more of each task than there is room", "more of two tasks than there is room"]
)
def test_rows_that_exceed_the_room_go_on_elsewhere(
    rows: int, write_at: str, small: Path, spark: SparkSession, tmp_path: Path
) -> None:
    """Two tasks have the rows of a batch, with some 25 bytes each. No task may fail."""
    query = Query("rows", feeds.RATE, CEC_SINK)
    conf = {CEC + "spool.path": str(small), CEC + "writeAt": write_at}
    job = Job(str(tmp_path / "job"), (query,), 2, rows, conf=conf)
    life = Life({})
    with driver(job) as child:
        follow(child, life, None, "a spool that becomes full")
    assert life.failed == {}
    whole = Job(str(tmp_path / "whole"), (query,), 2, rows)
    local.run_to(spark, whole, query, 1)
    found, wanted = (spark.read.format("cec").load(str(each.checkpoint(query))) for each in (job, whole))
    assert wanted.count() == 2 * rows
    assert found.exceptAll(wanted).isEmpty() and wanted.exceptAll(found).isEmpty()
