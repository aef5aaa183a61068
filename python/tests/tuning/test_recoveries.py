"""Recovery records as they are found on disk: whole, torn, foreign."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from spark_cec.errors import UnsuitableCheckpoint
from spark_cec.tuning.estimate import Commit
from spark_cec.tuning.recoveries import gather, parse_recoveries, parse_recovery

WHOLE = {"committed_batch": 41, "rewound_to": 38, "replayed_batches": 3, "duration_ms": 1500, "digest_ok": True}


def test_a_record_without_a_beginning_begins_its_duration_before_its_name() -> None:
    recovery = parse_recovery("1700000001500.json", json.dumps(WHOLE))
    assert recovery is not None
    assert (recovery.began_unix_ms, recovery.ended_unix_ms) == (1_700_000_000_000, 1_700_000_001_500)
    assert (recovery.committed_batch, recovery.rewound_to, recovery.replayed_batches) == (41, 38, 3)
    assert recovery.digest_ok is True


def test_a_record_may_say_when_it_began_and_more_than_we_know() -> None:
    more = {"started_unix_ms": 1_699_999_999_000, "stores": []}
    recovery = parse_recovery("1700000001500.json", json.dumps(WHOLE | more))
    assert recovery is not None
    assert recovery.began_unix_ms == 1_699_999_999_000


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("1700000001500.json", json.dumps(WHOLE)[:-20]),
        ("1700000001500.json", ""),
        ("1700000001500.json", "[]"),
        ("1700000001500.json", "null"),
        ("1700000001500.json", json.dumps(WHOLE | {"duration_ms": -1})),
        ("1700000001500.json", json.dumps(WHOLE | {"started_unix_ms": 1, "duration_ms": float("inf")})),
        ("1700000001500.json", json.dumps(WHOLE | {"started_unix_ms": 1, "duration_ms": float("nan")})),
        ("1700000001500.json", json.dumps(WHOLE | {"duration_ms": None})),
        ("1700000001500.json", json.dumps({"duration_ms": 3})),
        ("latest.json", json.dumps(WHOLE)),
    ],
)
def test_a_damaged_record_is_left_out_and_named(name: str, text: str) -> None:
    found, unreadable = parse_recoveries([("1700000000000.json", json.dumps(WHOLE)), (name, text)])
    assert [recovery.ended_unix_ms for recovery in found] == [1_700_000_000_000]
    assert unreadable == (name,)


def checkpoint_with(tmp_path: Path, ends_ms: list[int]) -> Path:
    """A checkpoint first started at 1,700,000,000 s, with a batch committed 1,000 s later and the given recoveries."""
    (tmp_path / "cec" / "recoveries").mkdir(parents=True)
    (tmp_path / "commits").mkdir()
    for path, moment in ((tmp_path / "metadata", 1_700_000_000), (tmp_path / "commits" / "0", 1_700_001_000)):
        path.write_text("{}")
        os.utime(path, (moment, moment))
    for end in ends_ms:
        (tmp_path / "cec" / "recoveries" / f"{end}.json").write_text(json.dumps(WHOLE))
    return tmp_path


def test_the_time_observed_is_from_the_first_trace_to_the_last(tmp_path: Path) -> None:
    checkpoint = checkpoint_with(tmp_path, [1_700_000_500_000])
    assert gather(checkpoint).observed_s == 1000.0
    later = gather(checkpoint, lambda _: [Commit(1, 0, 0, 1_700_002_000.0, 0.1)])
    assert later.observed_s == 2000.0
    assert [commit.version for commit in later.commits] == [1]


def test_recoveries_come_in_the_order_in_which_they_ended(tmp_path: Path) -> None:
    ends = [1_700_003_000_000, 1_700_000_500_000, 999_999_999_999]
    evidence = gather(checkpoint_with(tmp_path, ends))
    assert [recovery.ended_unix_ms for recovery in evidence.recoveries] == sorted(ends)
    assert evidence.unreadable == ()


def test_reading_changes_nothing(tmp_path: Path) -> None:
    checkpoint = checkpoint_with(tmp_path, [1_700_000_500_000])
    (checkpoint / "cec" / "recoveries" / "1700000600000.json").write_text("{")
    before = sorted((str(path), path.stat().st_mtime_ns) for path in checkpoint.rglob("*"))
    assert gather(checkpoint).unreadable == ("1700000600000.json",)
    assert sorted((str(path), path.stat().st_mtime_ns) for path in checkpoint.rglob("*")) == before


def test_a_directory_without_a_query_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UnsuitableCheckpoint, match="checkpointLocation"):
        gather(tmp_path)
    with pytest.raises(UnsuitableCheckpoint, match="missing"):
        gather(tmp_path / "missing")
