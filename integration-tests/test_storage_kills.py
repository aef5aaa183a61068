"""The campaign of kills on stores: what it draws, how it judges, and how it ends. `make test-storage` runs it."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from cec_it import faults, results, storage_kills
from cec_it.driver import CEC, CEC_SINK, FOREACH, Job, last_batch
from cec_it.faults import Course, Fault, Life
from cec_it.results import Batches
from cec_it.servers.programs import Unavailable
from cec_it.storage_kills import (
    BATCHES,
    IN_A_BATCH,
    IN_A_RECOVERY,
    KINDS,
    LONG_BATCHES,
    QUERIES,
    ROWS,
    Row,
    Run,
    Store,
)


def plans(seed: int, runs: int, batches: int = BATCHES) -> list[list[Fault]]:
    return [Run("moto", query, number, seed, None, batches).plan()[1] for query in QUERIES for number in range(runs)]


def test_a_run_follows_from_its_seed() -> None:
    assert plans(7, 3) == plans(7, 3) != plans(8, 3)


@pytest.mark.parametrize("length", [BATCHES, 60])
def test_runs_kill_whoever_there_is_in_a_batch_and_in_both_recoveries(length: int) -> None:
    seen: Counter[tuple[int, str, str]] = Counter()
    for query in QUERIES.values():
        assert query.sink in IN_A_BATCH
    for found in plans(7, 40, length):
        batches = [fault.batch for fault in found if fault.phase not in IN_A_RECOVERY]
        assert len(found) == 3 and batches and max(batches) < length - 1
        assert batches == sorted(set(batches)), "one after the other"
        seen.update((place, fault.kind, fault.phase) for place, fault in enumerate(found))
    for kind in KINDS:
        assert {phase for _, each, phase in seen if each == kind} >= {*IN_A_BATCH[FOREACH], *IN_A_RECOVERY}
    assert {place for place, _, phase in seen if phase == "replaying"} == {1, 2}, "on the first restart and the second"


def test_when_to_write_is_passed_on() -> None:
    for write_at in ("task", "batch", "async"):
        assert Run("moto", "windows", 0, 7, write_at, BATCHES).plan()[0][CEC + "writeAt"] == write_at


def test_a_quick_campaign_makes_bundles_too() -> None:
    assert storage_kills.parse(["--quick"]).batches == LONG_BATCHES
    assert storage_kills.parse(["--quick", "--batches", "5"]).batches == 5
    assert storage_kills.parse([]).batches == BATCHES


def test_a_long_run_makes_bundles() -> None:
    for batches in (BATCHES, LONG_BATCHES):
        conf, _ = Run("moto", "windows", 0, 7, None, batches).plan()
        assert (CEC + "log.bundle" in conf) == (batches == LONG_BATCHES)


def course_of(query: str, root: Path) -> Course:
    course = Course(Job(str(root), (QUERIES[query],), BATCHES, ROWS), 7, lives=[Life(0, -1)])
    course.job.out(course.query).mkdir(parents=True)
    return course


@pytest.mark.parametrize(
    ("rows", "lost", "duplicate", "wrong"),
    [(["a", "b", "b"], 0, 0, 0), (["a", "b"], 1, 0, 0), (["a", "a", "b", "b"], 0, 1, 0), (["a", "b", "c"], 1, 0, 1)],
)
def test_rows_of_the_cec_sink_are_compared_as_a_whole(
    rows: list[str], lost: int, duplicate: int, wrong: int, tmp_path: Path
) -> None:
    course = course_of("sessions-cec", tmp_path)
    assert course.query.sink == CEC_SINK
    (course.job.out(course.query) / "rows.json").write_text(json.dumps(rows))
    verdict = faults.judge(course, {1: ["a", "b"], 3: ["b"], last_batch(course.job) + 1: ["later"]})
    assert (verdict.lost, verdict.duplicate, verdict.wrong, verdict.rows) == (lost, duplicate, wrong, 3)
    assert verdict.exact == (not (lost or duplicate or wrong))


def test_rows_may_be_compared_by_batch_or_together(tmp_path: Path) -> None:
    course = course_of("join", tmp_path)
    for batch, rows in ((1, ["a"]), (2, ["b", "c"])):
        (course.job.out(course.query) / f"{batch}.0.json").write_text(json.dumps(rows))
    wanted: Batches = {1: ["a", "b"], 2: ["c"]}
    assert faults.judge(course, wanted, by_batch=False).exact
    by_batch = faults.judge(course, wanted)
    assert (by_batch.lost, by_batch.wrong) == (1, 1)
    assert results.recorded_batches(course.job.out(course.query)) == {1, 2}


def unavailable(queries: Sequence[str], batches: int, root: Path) -> dict[str, Batches]:
    return {query: {} for query in queries}


@contextmanager
def no_store() -> Iterator[Store]:
    raise Unavailable("no `go` on the search path")
    yield


def test_a_store_that_cannot_be_had_is_said_and_nothing_run_is_a_failure(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setattr(storage_kills, "undisturbed", unavailable)
    for effect in ("exit_on_sigterm", "share_classes"):
        monkeypatch.setattr(storage_kills, effect, lambda: None)
    monkeypatch.setattr(os, "environ", dict(os.environ))
    monkeypatch.setitem(storage_kills.STORES, "versitygw", no_store)
    assert storage_kills.main(["--store", "versitygw", "--quick", "--seed", "7", "--out", str(tmp_path)]) == 1
    said = capsys.readouterr()
    assert "versitygw is skipped: no `go`" in said.out and '"seed": 7' in said.out
    assert "no run took place" in said.err


@pytest.mark.parametrize("arguments", [["--store", "floppy"], ["--query", "none"], ["--seed", "x"], ["--more"]])
def test_a_wrong_argument_ends_with_2(arguments: list[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        storage_kills.parse(arguments)
    assert ended.value.code == 2


def test_the_table_has_a_line_for_each_query_of_a_store() -> None:
    good = Row(runs=2, kills=Counter(driver=4, executor=2), rows=90, restarts=5, recoveries=4, replayed=9, seconds=141)
    bad = Row(runs=1, rows=45, duplicate=1)
    said = storage_kills.table({"moto windows": good, "hdfs join": bad}).splitlines()
    assert said[2] == "| moto windows | 2 | 90 | 0 | 0 | 0 | 0 | 5 | 4 | 9 | 0 | 0 | 0 | 4 driver, 2 executor | 70 |"
    assert good.is_good and not bad.is_good
