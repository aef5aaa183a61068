"""The judge of the cluster's tests sees each kind of wrong row, and seeds give the same faults again."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from cec_it import faults, feeds
from cec_it.driver import FOREACH, Job, Query, last_batch
from cec_it.faults import Course, Life, Verdict

WANTED = {0: ["a", "b"], 2: ["c", "c"]}
QUERY = Query("totals", feeds.RATE, FOREACH)


def course(root: Path, *lives: tuple[int, dict[int, list[str]]]) -> Course:
    """Lives of a query: what was committed before each, and what the sink was given in it."""
    job = Job(str(root), (QUERY,), 3, 1)
    out = job.out(QUERY)
    out.mkdir(parents=True)
    for number, (_, batches) in enumerate(lives):
        (out / f"calls.{number}").write_text("".join(f"{batch}\n" for batch in batches))
        for batch, rows in batches.items():
            (out / f"{batch}.{number}.json").write_text(json.dumps(rows))
    return Course(job, 0, lives=[Life(number, committed) for number, (committed, _) in enumerate(lives)])


def verdict(root: Path, *lives: tuple[int, dict[int, list[str]]]) -> tuple[int, int, int, int]:
    found = faults.judge(course(root, *lives), WANTED)
    assert found.rows == 4
    assert found.exact == (found == Verdict(4, 0, 0, 0, 0))
    return found.lost, found.duplicate, found.wrong, found.called_again


@pytest.mark.parametrize(
    ("batches", "wanted"),
    [
        ({0: ["a", "b"], 1: [], 2: ["c", "c"]}, (0, 0, 0, 0)),
        ({0: ["a", "b"], 2: ["c"]}, (1, 0, 0, 0)),
        ({0: ["a", "b"]}, (2, 0, 0, 0)),
        ({0: ["a", "b", "b"], 2: ["c", "c"]}, (0, 1, 0, 0)),
        ({0: ["a", "x"], 2: ["c", "c"]}, (1, 0, 1, 0)),
        ({0: ["a", "b"], 1: ["b"], 2: ["c", "c"]}, (0, 0, 1, 0)),
    ],
)
def test_rows(batches: dict[int, list[str]], wanted: tuple[int, int, int, int], tmp_path: Path) -> None:
    assert verdict(tmp_path, (-1, batches)) == wanted


def test_what_comes_after_the_last_batch_is_no_bodys_business(tmp_path: Path) -> None:
    """A query is stopped when it has run that one, and may have begun the next."""
    right, last = {0: ["a", "b"], 2: ["c", "c"]}, last_batch(Job("", (QUERY,), 3, 1))
    assert verdict(tmp_path / "one", (-1, {**right, last + 1: ["z"]})) == (0, 0, 0, 0)
    assert verdict(tmp_path / "two", (-1, {**right, last: ["z"]})) == (0, 0, 1, 0)


def test_a_batch_that_was_not_committed_may_come_again_with_the_same_rows(tmp_path: Path) -> None:
    assert verdict(tmp_path, (-1, {0: ["a", "b"]}), (-1, {0: ["a", "b"], 2: ["c", "c"]})) == (0, 0, 0, 0)


def test_with_other_rows_it_is_wrong_even_if_the_last_ones_are_right(tmp_path: Path) -> None:
    assert verdict(tmp_path, (-1, {0: ["a"]}), (-1, {0: ["a", "b"], 2: ["c", "c"]})) == (0, 0, 1, 0)


def test_a_batch_that_was_committed_may_not_come_again(tmp_path: Path) -> None:
    assert verdict(tmp_path, (-1, {0: ["a", "b"]}), (0, {0: ["a", "b"], 2: ["c", "c"]})) == (0, 0, 0, 1)


def test_a_seed_gives_the_same_faults_again_and_spreads_them() -> None:
    kinds = ["executor", "driver", "agent"]
    drawn = faults.draw(5, kinds, 20)
    assert drawn == faults.draw(5, kinds, 20) != faults.draw(6, kinds, 20)
    assert [fault.kind for fault in drawn] == kinds
    batches = [fault.batch for fault in drawn]
    assert batches == sorted(set(batches)) and batches[0] >= 2 and batches[-1] < 20
