"""`cec inspect`: the right numbers of the right version, and no trace."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from spark_cec.agent.logs import OpenLogs
from spark_cec.agent.messages import BeginRequest
from spark_cec.agent.protocols import ProtocolCalls
from spark_cec.agent.starts import StartCalls
from spark_cec.log.frame import FrameKind
from spark_cec.log.meta import CommitFlags
from spark_cec.recovery.decide import QueryDecision
from spark_cec.recovery.query_files import QUERY
from spark_cec.settings import PREFIX
from tests.cli.support import CONF, STORES, Checkpoint, answer, files, make_checkpoint, query_json, run, write_log
from tests.log.support import commit_meta, make_writer, payload_of

OTHER_WRITER = "0198c0ffee09-00112233445566ff"


def test_each_store_at_the_committed_version(checkpoint: Checkpoint) -> None:
    result = run("inspect", str(checkpoint.path), "--json")
    found = answer(result)
    assert result.exit_code == 0
    assert [(s["operator"], s["partition"], s["store"]) for s in found["stores"]] == [
        (0, 0, "default"), (0, 1, "default"), (1, 0, "left"),
    ]  # fmt: skip
    for store in found["stores"]:
        assert (store["version"], store["newest_version"], store["open_windows"]) == (4, 4, 4)
        assert (store["extent_records"], store["extent_bound"]) == (4, 12)
        assert (store["replay_inputs"], store["replay_bound"]) == (40, 25)
        assert (store["dirty_from"], store["dirty_windows"], store["segments"]) == (1, 2, 1)
    assert (found["committed_batch"], found["replay"], found["recoveries"]) == (3, None, 2)
    assert (found["mode"], found["reason"], found["output_batches"]) == ("deferred", "operator 0 (count) deferred", 4)
    assert found["damages"] == []


def test_totals_are_sums_and_bytes_are_those_of_the_files(checkpoint: Checkpoint) -> None:
    found = answer(run("inspect", str(checkpoint.path), "--json"))
    totals, stores = found["totals"], found["stores"]
    assert totals["stores"] == len(STORES)
    for name in ("open_windows", "extent_records", "replay_inputs", "dirty_windows"):
        assert totals[name] == sum(store[name] for store in stores)
    assert totals["commit_bytes"] == sum(store["bytes"] for store in stores)
    assert totals["bytes"] == checkpoint.segment.stat().st_size > totals["commit_bytes"] > 0


def test_an_uncommitted_batch_does_not_count(tmp_path: Path) -> None:
    checkpoint = make_checkpoint(tmp_path / "checkpoint", versions=6, last_commit=3)
    stores = answer(run("inspect", str(checkpoint.path), "--json"))["stores"]
    assert [(s["version"], s["newest_version"], s["open_windows"]) for s in stores] == [(4, 6, 4)] * 3


def test_before_the_first_commit_the_newest_version_is_shown(tmp_path: Path) -> None:
    checkpoint = make_checkpoint(tmp_path / "checkpoint", versions=1, last_commit=-1)
    result = run("inspect", str(checkpoint.path), "--json")
    assert result.exit_code == 0
    assert answer(result)["committed_batch"] == -1
    assert {s["version"] for s in answer(result)["stores"]} == {1}
    assert "no batch yet" in run("inspect", str(checkpoint.path)).stdout


def test_the_last_attempt_of_a_version_stands_for_it(checkpoint: Checkpoint) -> None:
    again = commit_meta(4, store=STORES[0], checkpoint_id=b"x" * 16, generation=2, dirty_windows=77)
    make_writer(checkpoint.storage, writer_id=OTHER_WRITER).append(FrameKind.COMMIT, again, payload_of(4))
    stores = answer(run("inspect", str(checkpoint.path), "--json"))["stores"]
    assert [(s["dirty_windows"], s["segments"]) for s in stores] == [(77, 2), (2, 1), (2, 1)]


def test_the_last_attempt_of_the_committed_version_counts_although_there_is_a_later_one(tmp_path: Path) -> None:
    checkpoint = make_checkpoint(tmp_path / "checkpoint", versions=5, last_commit=3)
    again = commit_meta(4, store=STORES[0], checkpoint_id=b"x" * 16, generation=2, dirty_windows=77)
    make_writer(checkpoint.storage, writer_id=OTHER_WRITER).append(FrameKind.COMMIT, again, payload_of(4))
    store = answer(run("inspect", str(checkpoint.path), "--json"))["stores"][0]
    assert (store["version"], store["newest_version"], store["dirty_windows"]) == (4, 5, 77)


def plan_batches(checkpoint: Checkpoint, batches: int) -> None:
    """Spark's offset log: each batch reads 10 of one partition, and 1 of another."""
    for batch in range(batches):
        planned = json.dumps({"batchTimestampMs": 1_700_000_000_000 + batch, "conf": {}})
        offsets = json.dumps({"t": {"0": 10 * batch + 10, "1": batch + 1}})
        (checkpoint.path / "offsets" / str(batch)).write_text(f"v1\n{planned}\n{offsets}")


def test_what_a_recovery_would_need_of_the_sources(checkpoint: Checkpoint) -> None:
    plan_batches(checkpoint, 4)
    needed = {"topic": "t", "partition": 0, "from": 10, "to": 40}, {"topic": "t", "partition": 1, "from": 1, "to": 4}
    assert answer(run("inspect", str(checkpoint.path), "--json"))["needs_input"] == {
        "since_batch": 1, "batches": 3, "since_unix_ms": 1_700_000_000_001,
        "sources": [
            {"from": '{"t": {"0": 10, "1": 1}}', "to": '{"t": {"0": 40, "1": 4}}', "offsets": list(needed)},
        ],
    }  # fmt: skip
    (line,) = [each for each in run("inspect", str(checkpoint.path)).stdout.splitlines() if each.startswith("input")]
    words = "input       a recovery now would need input since batch 1 (t-0 from offset 10, t-1 from offset 1), "
    assert line.startswith(words)
    assert line.endswith(" days ago")


def test_after_a_flush_nothing_old_is_needed(checkpoint: Checkpoint) -> None:
    plan_batches(checkpoint, 4)
    writer = make_writer(checkpoint.storage, writer_id=OTHER_WRITER)
    for store in STORES:
        flush = commit_meta(4, store=store, dirty_from=4, dirty_windows=0, flags=CommitFlags.FLUSH)
        writer.append(FrameKind.COMMIT, flush, payload_of(4))
    writer.close()
    found = answer(run("inspect", str(checkpoint.path), "--json"))
    assert {(store["dirty_from"], store["dirty_windows"]) for store in found["stores"]} == {(4, 0)}
    assert (found["needs_input"]["since_batch"], found["needs_input"]["batches"]) == (4, 0)
    assert (
        "replay nothing: it goes on with batch 4 (t-0 from offset 40"
        in run("inspect", str(checkpoint.path)).stdout
    )


def test_what_is_needed_is_unknown_without_a_checkpoint_or_a_commit(checkpoint: Checkpoint, tmp_path: Path) -> None:
    copied = tmp_path / "log alone"
    shutil.copytree(checkpoint.home, copied)
    fresh = make_checkpoint(tmp_path / "fresh", versions=1, last_commit=-1)
    ahead = make_checkpoint(tmp_path / "ahead", versions=3, last_commit=3)
    for path in (copied, fresh.path, ahead.path):
        assert answer(run("inspect", str(path), "--json"))["needs_input"] is None


def test_a_lost_log_json_is_a_failure(checkpoint: Checkpoint) -> None:
    (checkpoint.home / "log.json").unlink()
    result = run("inspect", str(checkpoint.path), "--json")
    assert result.exit_code == 1
    assert [(d["kind"], d["where"]) for d in answer(result)["damages"]] == [("lost", "log.json")]
    assert len(answer(result)["stores"]) == len(STORES)


PROGRESS = {"generation": 2, "first": 1, "last": 3, "done": 1}


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        (json.dumps(PROGRESS), PROGRESS),
        (json.dumps({**PROGRESS, "generation": 1}), None),
        ("{", None),
        ("[]", None),
    ],
    ids=["of this run", "of an earlier run", "torn", "strange"],
)
def test_how_far_a_replay_is(checkpoint: Checkpoint, text: str, shown: dict[str, int] | None) -> None:
    (checkpoint.path / "cec" / "generations").mkdir(exist_ok=True)
    (checkpoint.path / "cec" / "generations" / "0000000002.json").write_text("{}")
    (checkpoint.path / "cec" / "replaying.json").write_text(text)
    found = answer(run("inspect", str(checkpoint.path), "--json"))
    assert (found["committed_batch"], found["replay"]) == (3, shown)
    words = "batch 3; of a replay of batches 1 to 3, 1 of 3 are done"
    assert (words in run("inspect", str(checkpoint.path)).stdout) == (shown is not None)


def test_people_get_a_table_that_is_never_wrapped(checkpoint: Checkpoint) -> None:
    result = run("inspect", str(checkpoint.path))
    lines = result.stdout.splitlines()
    assert "\x1b" not in result.stdout
    header = next(line for line in lines if line.startswith("operator"))
    assert " ".join(header.split()) == "operator partition store version newest N rows q Q u U D dirty bytes segments"
    rows = [line.split() for line in lines[lines.index(header) + 1 :]]
    assert " ".join(rows[2][:13]) == "1 0 left 4 4 4 4 4 12 40! 25 1 2"
    assert rows[3][:3] == ["total", "3", "stores"]
    assert "committed   batch 3" in lines


def test_what_is_above_its_bound_is_explained_in_its_row(checkpoint: Checkpoint) -> None:
    writer = make_writer(checkpoint.storage, writer_id=OTHER_WRITER)
    for store, changes in zip(STORES, ({"extent": 13, "replay": 26}, {"extent": 13}, {}), strict=True):
        again = commit_meta(4, store=store, checkpoint_id=b"x" * 16, generation=2, **changes)
        writer.append(FrameKind.COMMIT, again, payload_of(4))
    writer.close()
    lines = run("inspect", str(checkpoint.path)).stdout.splitlines()
    rows = [line.rstrip().split(" ! ") for line in lines if line.lstrip().startswith(("0 ", "1 "))]
    why = "the next commits bring it down as far as CI/CP allows"
    assert [row[1:] for row in rows] == [[f"q is above Q and u is above U: {why}"], [f"q is above Q: {why}"], []]
    query = checkpoint.path / "cec" / "query.json"
    query.write_text(query_json(f"file:{checkpoint.home}", settings_conf={PREFIX + "Q": "1000"}))
    shown = run("inspect", str(checkpoint.path)).stdout
    assert "!" not in shown


def test_a_window_may_have_several_rows(checkpoint: Checkpoint) -> None:
    """Q is a multiple of these. An older release has not said how many there are."""
    writer = make_writer(checkpoint.storage, writer_id=OTHER_WRITER)
    for store, rows in zip(STORES, (9, 7, 0), strict=True):
        flags = CommitFlags.GROUPED
        again = commit_meta(4, store=store, checkpoint_id=b"x" * 16, generation=2, flags=flags, state_rows=rows)
        writer.append(FrameKind.COMMIT, again, payload_of(4))
    writer.close()
    found = answer(run("inspect", str(checkpoint.path), "--json"))
    shown = [(each["open_windows"], each["state_rows"], each["extent_bound"]) for each in found["stores"]]
    assert shown == [(4, 9, 27), (4, 7, 21), (4, None, 12)]
    assert (found["totals"]["open_windows"], found["totals"]["state_rows"]) == (12, None)
    table = [line.split() for line in run("inspect", str(checkpoint.path)).stdout.splitlines()]
    assert [row[5:7] for row in table if row[:1] in (["0"], ["1"])] == [["4", "9"], ["4", "7"], ["4", "?"]]


def test_a_torn_end_is_shown_and_is_no_failure(checkpoint: Checkpoint) -> None:
    size = checkpoint.segment.stat().st_size
    checkpoint.segment.write_bytes(checkpoint.segment.read_bytes() + b"\x89CECFRM\n")
    result = run("inspect", str(checkpoint.path))
    assert result.exit_code == 0
    assert f"torn    {checkpoint.segment.name} at byte {size}: 8 bytes, unfinished" in result.stdout


def test_a_store_without_its_committed_version_is_a_failure(checkpoint: Checkpoint) -> None:
    checkpoint.commit(4)
    result = run("inspect", str(checkpoint.path), "--json")
    assert result.exit_code == 1
    assert [(d["kind"], d["where"]) for d in answer(result)["damages"]] == [("lost", f"store {s}") for s in STORES]
    assert answer(result)["damages"][0]["reason"].startswith("no commit frame of version 5, although Spark")
    assert {s["version"] for s in answer(result)["stores"]} == {4}


@pytest.mark.parametrize("arguments", [("inspect",), ("verify",), ("repair", "--dry-run")])
@pytest.mark.parametrize("damaged", [False, True])
def test_looking_leaves_no_trace(checkpoint: Checkpoint, arguments: tuple[str, ...], damaged: bool) -> None:
    if damaged:
        checkpoint.flip(-6)
        (checkpoint.home / "log.json").unlink()
        (checkpoint.path / "cec" / "replaying.json").write_text(json.dumps(PROGRESS))
    before = files(checkpoint.path)
    run(*arguments, str(checkpoint.path))
    assert files(checkpoint.path) == before


def test_bounds_that_nobody_recorded_are_unknown(checkpoint: Checkpoint) -> None:
    query = checkpoint.path / "cec" / "query.json"
    for conf in (None, {PREFIX + "fromTheFuture": "1"}):
        query.write_text(query_json(str(checkpoint.home), settings_conf=conf))
        store = answer(run("inspect", str(checkpoint.path), "--json"))["stores"][0]
        assert (store["extent_bound"], store["replay_bound"]) == (None, None)
    shown = run("inspect", str(checkpoint.path)).stdout
    assert shown.count("?") == 2 * len(STORES) + 1
    assert "? Q and U are settings of the query" in shown


def test_under_a_recovery_target_no_bound_is_fixed_and_the_estimate_is_shown(checkpoint: Checkpoint) -> None:
    query = checkpoint.path / "cec" / "query.json"
    query.write_text(query_json(str(checkpoint.home), settings_conf={PREFIX + "recoveryTarget": "5s"}))
    stores = answer(run("inspect", str(checkpoint.path), "--json"))["stores"]
    assert {(store["extent_bound"], store["replay_bound"]) for store in stores} == {(None, None)}
    assert [store["recovery_estimate_ms"] for store in stores] == [4_400, 4_401, 4_400]
    shown = run("inspect", str(checkpoint.path)).stdout
    assert "recovery    from here estimated at 4.4 s" in shown
    assert "- Q and U follow from recoveryTarget" in shown and "?" not in shown


def test_the_bounds_are_those_that_the_driver_was_given(tmp_path: Path) -> None:
    path, logs = str(tmp_path / "checkpoint"), OpenLogs()
    conf = {**CONF, PREFIX + "index.path": str(tmp_path / "index"), "spark.app.name": "not ours"}
    request = BeginRequest(
        checkpoint=path, conf=conf, home=f"file:{path}/cec/log", log_seen=None, committed_batch=-1, named=False,
        decision=QueryDecision("eager", "because", provider=True, operators=()), sources=None, session_settings={},
        load_waves=1.0, sink="waits", wait_s=1.0,
    )  # fmt: skip
    try:
        StartCalls(logs, ProtocolCalls(logs)).begin(request)
    finally:
        logs.close()
    query = tmp_path / "checkpoint" / "cec" / QUERY.name
    assert json.loads(query.read_text())["settings_conf"] == {k: v for k, v in conf.items() if k.startswith(PREFIX)}
    assert "no store has committed yet" in run("inspect", path).stdout
    raw = json.loads(query.read_text())
    (tmp_path / "checkpoint" / "cec" / "log" / "log.json").unlink()
    write_log(Checkpoint(tmp_path / "checkpoint").storage, 2)
    query.write_text(json.dumps({**raw, "log_id": "0123456789abcdef0123456789abcdef"}))
    found = answer(run("inspect", path, "--json"))
    assert (found["stores"][0]["extent_bound"], found["stores"][0]["replay_bound"]) == (6, 25)
