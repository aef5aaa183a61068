"""Which log is meant: by checkpoint, by home, after a copy, and where there is none."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from spark_cec.adapters.fsspec_storage import open_storage
from spark_cec.admin.find_log import find_log
from spark_cec.admin.read_only import ReadOnlyStorage
from spark_cec.log.home import join_log, relative_home
from spark_cec.log.storage import Storage
from spark_cec.recovery.generations import next_generation, record_start
from spark_cec.settings import PROVIDER, PROVIDER_KEY
from tests.cli.support import Checkpoint, answer, query_json, run, write_log
from tests.log.support import LOG_ID, memory_storage


@pytest.mark.parametrize("spelling", ["{}", "{}/", "file:{}", "file://{}", "{}/cec/log", "file:{}/cec/log/"])
def test_a_checkpoint_by_any_name(checkpoint: Checkpoint, spelling: str) -> None:
    found = answer(run("inspect", spelling.format(checkpoint.path), "--json"))
    assert (found["log_id"], found["committed_batch"], found["mode"]) == (LOG_ID, 3, "deferred")


def test_a_relative_checkpoint(checkpoint: Checkpoint, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(checkpoint.path.parent)
    assert answer(run("inspect", "checkpoint", "--json"))["committed_batch"] == 3
    monkeypatch.chdir(checkpoint.path)
    assert answer(run("inspect", ".", "--json"))["committed_batch"] == 3


def test_a_home_away_from_its_checkpoint(checkpoint: Checkpoint, tmp_path: Path) -> None:
    away = tmp_path / "away"
    shutil.move(checkpoint.home, away)
    (checkpoint.path / "cec" / "query.json").write_text(query_json(f"file:{away}"))
    assert answer(run("inspect", str(checkpoint.path), "--json"))["committed_batch"] == 3
    alone = run("inspect", str(away), "--json")
    assert alone.exit_code == 0
    assert (answer(alone)["committed_batch"], answer(alone)["mode"]) == (None, None)
    assert [store["version"] for store in answer(alone)["stores"]] == [4] * 3
    assert answer(run("verify", str(away), "--json"))["ok"]
    assert "unknown, as no checkpoint was given" in run("inspect", str(away)).stdout


def test_the_copy_of_a_checkpoint_means_its_own_log(checkpoint: Checkpoint, tmp_path: Path) -> None:
    copy = Checkpoint(tmp_path / "copy")
    shutil.copytree(checkpoint.path, copy.path)
    original = checkpoint.segment.read_bytes()
    copy.cut(3)
    assert run("verify", str(checkpoint.path)).exit_code == 0
    assert run("verify", str(copy.path)).exit_code == 1
    checkpoint.cut(3)
    assert run("repair", str(copy.path)).exit_code == 0, "the bytes are taken out, and the next start falls back"
    assert checkpoint.segment.read_bytes() == original[:-3]


@pytest.mark.parametrize("state", [False, True])
@pytest.mark.parametrize("has_run", [False, True])
def test_a_log_that_is_gone_is_damage_without_state_too(checkpoint: Checkpoint, has_run: bool, state: bool) -> None:
    """A query may have its output alone there. Before its first batch there was no log."""
    own = checkpoint.path / "cec"
    (own / "query.json").write_text(query_json(f"file:{checkpoint.home}", provider=state))
    if has_run:
        runs = open_storage(str(own))
        record_start(runs, next_generation(runs), 0)
    shutil.rmtree(checkpoint.home)
    said = run("verify", str(checkpoint.path))
    lost = state or has_run
    assert said.exit_code == (1 if lost else 2) and ("begun no log here yet" in said.stderr) is not lost, said.output


@pytest.mark.parametrize("moved", [False, True])
def test_a_home_recorded_relative_to_its_checkpoint(checkpoint: Checkpoint, tmp_path: Path, moved: bool) -> None:
    elsewhere = checkpoint.path / "elsewhere"
    shutil.move(checkpoint.home, elsewhere)
    recorded = relative_home(str(checkpoint.path), str(elsewhere))
    assert recorded != str(elsewhere)
    (checkpoint.path / "cec" / "query.json").write_text(query_json(recorded))
    path = checkpoint.path.rename(tmp_path / "moved") if moved else checkpoint.path
    found = answer(run("verify", str(path), "--json"))
    assert (found["ok"], found["log_home"]) == (True, f"{path}/elsewhere")


def test_a_checkpoint_that_has_lost_its_commits_goes_on_before_its_newest_batch(checkpoint: Checkpoint) -> None:
    shutil.rmtree(checkpoint.path / "commits")
    found = answer(run("inspect", str(checkpoint.path), "--json"))
    assert (found["committed_batch"], [store["version"] for store in found["stores"]]) == (2, [3] * 3)


def test_a_lost_query_file_leaves_the_log_readable(checkpoint: Checkpoint) -> None:
    (checkpoint.path / "cec" / "query.json").unlink()
    found = answer(run("inspect", str(checkpoint.path), "--json"))
    assert (found["committed_batch"], found["mode"], found["recoveries"]) == (3, None, 2)


def test_the_log_of_another_query_is_refused(checkpoint: Checkpoint) -> None:
    (checkpoint.path / "cec" / "query.json").write_text(query_json(str(checkpoint.home), log_id="e" * 32))
    result = run("verify", str(checkpoint.path))
    assert (result.exit_code, result.stdout) == (2, "")
    assert f"holds the log of another query (id {LOG_ID}, not {'e' * 32})" in result.stderr


def test_a_log_that_is_gone_is_damage(checkpoint: Checkpoint) -> None:
    shutil.rmtree(checkpoint.home)
    result = run("inspect", str(checkpoint.path))
    assert result.exit_code == 1
    assert "cec/log is gone, although Spark has committed batches: restore it" in result.stderr
    assert "damaged" not in result.stderr


def test_a_log_that_was_never_begun_is_no_damage(checkpoint: Checkpoint) -> None:
    shutil.rmtree(checkpoint.home)
    for log in ("commits", "offsets"):
        shutil.rmtree(checkpoint.path / log)
    result = run("inspect", str(checkpoint.path))
    assert result.exit_code == 2
    assert "has begun no log here yet" in result.stderr


def test_the_home_of_a_pipeline_has_logs_in_its_flows(tmp_path: Path) -> None:
    (tmp_path / "pipeline.json").write_text("{}")
    result = run("verify", str(tmp_path))
    assert result.exit_code == 2
    assert "this is the home of a pipeline: give the checkpoint of one of its flows" in result.stderr


@pytest.mark.parametrize("text", ["", "[]", "{", '{"log_home": 1}', '{"log_home": "x", "log_id": "zz"}', "\xff"])
def test_an_unreadable_query_file_is_named(checkpoint: Checkpoint, text: str) -> None:
    (checkpoint.path / "cec" / "query.json").write_text(text, encoding="latin-1")
    result = run("inspect", str(checkpoint.path))
    assert result.exit_code == 2
    assert "cec/query.json cannot be read" in result.stderr
    assert "delete it, and the next start of the query writes it anew" in " ".join(result.stderr.split())
    assert run("verify", str(checkpoint.home / "segments" / "..")).exit_code == 2, "by whatever name"


def test_without_log_json_the_segments_tell_the_id(checkpoint: Checkpoint, tmp_path: Path) -> None:
    home = tmp_path / "home"
    shutil.copytree(checkpoint.home, home)
    (home / "log.json").unlink()
    place = find_log(str(home))
    assert place.log_id == LOG_ID
    assert place.damage is not None
    assert run("verify", str(home)).exit_code == 1


def test_where_nothing_tells_the_id_the_damage_is_the_answer(tmp_path: Path) -> None:
    (tmp_path / "log.json").write_text(json.dumps({"format_version": 1}))
    result = run("inspect", str(tmp_path))
    assert result.exit_code == 1
    assert result.stderr.startswith("cec inspect: damaged log: log.json at byte 0: cannot be read")


def test_a_read_only_storage_lets_nothing_through() -> None:
    inner = memory_storage()
    write_log(inner, 1)
    storage = ReadOnlyStorage(inner)
    assert not storage.can_append
    writes: dict[str, Callable[[], object]] = {
        "create": lambda: storage.create("a", b""),
        "replace": lambda: storage.replace("log.json", b""),
        "append_to_new": lambda: storage.append_to_new("a"),
        "delete": lambda: storage.delete("log.json"),
        "delete_all": lambda: storage.delete_all(["log.json"]),
        "probe_writable": storage.probe_writable,
    }
    reads = {"url", "can_append", "read", "size", "list", "exists", "sync", "local_path"}
    assert {name for name in vars(Storage) if not name.startswith("_")} == reads | writes.keys(), "a new method"
    for write in writes.values():
        with pytest.raises(OSError, match="was opened for reading only"):
            write()
    assert join_log(inner) == LOG_ID
    assert not inner.exists("a")


_SPARKS = "org.apache.spark.sql.execution.streaming.state."
IMPORT = "`cec import --from {} --to NEW` makes a checkpoint for Spark CEC of it, with the state"


def sparks_own(path: Path, provider: str | None, state: str | None) -> Path:
    """The checkpoint of a query that has never seen Spark CEC; `state`: a file of it."""
    for log in ("offsets", "commits"):
        (path / log).mkdir(parents=True)
    conf = {PROVIDER_KEY: provider} if provider else {}
    for batch, recorded in ((0, {}), (1, conf)):
        (path / "offsets" / str(batch)).write_text(f"v1\n{json.dumps({'conf': recorded})}\n7")
        (path / "commits" / str(batch)).write_text("v1\n{}")
    if state is not None:
        (path / "state" / state).parent.mkdir(parents=True)
        (path / "state" / state).write_text("v1\n{}")
    return path


@pytest.mark.parametrize("command", ["inspect", "verify", "outputs", "flush", "repair", "rollback --to 0 --yes"])
def test_a_checkpoint_of_another_store_names_it_and_the_way_in(command: str, tmp_path: Path) -> None:
    path = sparks_own(tmp_path / "clicks", f"{_SPARKS}RocksDBStateStoreProvider", "0/_metadata/metadata")
    result = run(*command.split(), str(path))
    store = f"Spark's RocksDB state store ({_SPARKS}RocksDBStateStoreProvider)"
    words = f"this is the checkpoint of a query whose state is in {store}, of which there is no log: "
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr == f"cec {command.split()[0]}: log location '{path}': {words}{IMPORT.format(path)}\n"


@pytest.mark.parametrize(
    ("provider", "state", "words"),
    [
        (f"{_SPARKS}HDFSBackedStateStoreProvider", "0/0/1.delta", f"HDFS-backed state store .*: {IMPORT}"),
        (f"{_SPARKS}RocksDBStateStoreProvider", "0/_metadata/v2/0", f"RocksDB state store .*: {IMPORT}"),
        ("com.example.Provider", "0/_metadata/metadata", rf"whose state is in com\.example\.Provider, .*: {IMPORT}"),
        (None, "0/0/1.delta", rf"of an old release of Spark, .*\. Start the query once .*; then {IMPORT}"),
        (f"{_SPARKS}RocksDBStateStoreProvider", None, "a query without state and without the `cec` sink"),
        (PROVIDER, "0/_metadata/metadata", "a query on Spark CEC whose cec directory is gone, .*: restore it, or give"),
    ],
)
def test_where_a_querys_state_is(provider: str | None, state: str | None, words: str, tmp_path: Path) -> None:
    path = sparks_own(tmp_path / "clicks", provider, state)
    result = run("inspect", str(path))
    assert result.exit_code == 2 and re.search(words.format(path), result.stderr), result.stderr


def test_a_query_whose_output_alone_is_here(checkpoint: Checkpoint) -> None:
    """`inspect` says where its state is."""
    provider = f"{_SPARKS}RocksDBStateStoreProvider"
    (checkpoint.path / "cec" / "query.json").write_text(query_json(f"file:{checkpoint.home}", provider=False))
    for segment in (checkpoint.home / "segments").iterdir():
        segment.unlink()
    assert "the query has no state in this log; here is its output" in run("inspect", str(checkpoint.path)).stdout
    assert answer(run("inspect", str(checkpoint.path), "--json"))["state_store"] is None
    (checkpoint.path / "state" / "0" / "_metadata").mkdir(parents=True)
    (checkpoint.path / "state" / "0" / "_metadata" / "metadata").write_text("v1\n{}")
    (checkpoint.path / "offsets" / "3").write_text(f"v1\n{json.dumps({'conf': {PROVIDER_KEY: provider}})}")
    shown = run("inspect", str(checkpoint.path)).stdout
    assert f"the query's state is in Spark's RocksDB state store ({provider}), not in this log; here is" in shown
    assert answer(run("inspect", str(checkpoint.path), "--json"))["state_store"] == provider
