"""Age costs nothing: the second half of a long life has no more of anything than the first."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from spark_cec_lab.bench.aging import Life, Sample, samples

SMALL = {"footprintAge": "40", "output.retainBatches": "30", "log.segmentBytes": "64KiB"}
"""Bounds so small that a short life is a long one: 1,200 batches are 30 times the age of the oldest footprint."""


MEMORY = Path("/dev/shm")


@pytest.fixture(scope="module")
def scratch() -> Iterator[Path]:
    """A directory in memory where there is one: thousands of commits would wait for the disk."""
    with tempfile.TemporaryDirectory(dir=MEMORY if MEMORY.is_dir() else None) as directory:
        yield Path(directory)


@pytest.fixture(scope="module")
def young_and_old(scratch: Path) -> tuple[list[Sample], list[Sample]]:
    """Samples of the first and the second half of a life, without its first days."""
    life = Life(scratch / "aging", SMALL)
    found = samples(life, range(300, 1_201, 150))
    life.close()
    return found[:3], found[-3:]


@pytest.mark.parametrize(
    ("what", "give"),
    [
        ("segments", 1),
        ("manifests", 0),
        ("index_rows", 200),
        ("log_bytes", 128 << 10),
        ("chain", 0),
        ("ledger", 0),
        ("records_per_batch", 0.3),
        ("open_files", 1),
    ],
)
def test_nothing_grows_with_age(young_and_old: tuple[list[Sample], list[Sample]], what: str, give: float) -> None:
    """`give`: what depends on where in a segment or between two trimmings a sample was taken."""
    young, old = ([getattr(sample, what) for sample in each] for each in young_and_old)
    assert max(old) <= max(young) + give, (young, old)


def test_the_chain_is_as_long_as_the_oldest_footprint_is_old(young_and_old: tuple[list[Sample], list[Sample]]) -> None:
    assert {sample.chain <= 41 for half in young_and_old for sample in half} == {True}


def test_without_the_bound_on_age_a_quiet_store_holds_the_whole_log(scratch: Path) -> None:
    """The measure can tell: with the bound out of reach nothing goes."""
    life = Life(scratch / "unbounded", {**SMALL, "footprintAge": "1000000", "Q": "1000000"})
    young, old = samples(life, [300, 600])
    life.close()
    assert old.chain == 600
    assert old.index_rows > 1.8 * young.index_rows
    assert old.segments > young.segments
