"""`cec` as a program: help, exit codes, errors in one line, and what it does not load."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from spark_cec.adapters.fsspec_storage import open_storage
from spark_cec.admin import commits, flush
from spark_cec.admin import find_log as place_module
from spark_cec.agent.lease import CheckpointLeases
from spark_cec.cli import progress as meter_module
from spark_cec.log.frame import crc32c
from spark_cec.recovery.query_files import mark_migrated
from spark_cec.tuning.estimate import Commit
from spark_cec.version import __version__
from tests.cli.support import STORES, Checkpoint, run
from tests.log.support import frame_bytes, loaded_meta

PYTHON_PATH = Path(__file__).resolve().parents[2]
COMMAND = [sys.executable, "-c", "from spark_cec.cli import main; main()"]


def process(*arguments: str, code: list[str] = COMMAND) -> subprocess.CompletedProcess[str]:
    """A process of its own, as a user starts it."""
    environment = {**os.environ, "PYTHONPATH": str(PYTHON_PATH)}
    return subprocess.run([*code, *arguments], capture_output=True, text=True, env=environment, check=False)


def test_the_version() -> None:
    assert run("--version").stdout == f"cec {__version__}\n"


@pytest.mark.parametrize("command", ["inspect", "verify", "repair"])
def test_help_has_examples_and_exit_codes(command: str) -> None:
    text = run(command, "-h").stdout
    assert "Examples:\n" in text
    assert f"  cec {command} /checkpoints/clicks" in text
    assert "Exit codes:\n    0  " in text
    assert "\n    1  " in text
    assert "\n    2  " in text
    assert "--json" in text
    assert text == run(command, "--help").stdout


def test_the_first_help_lists_the_commands() -> None:
    text = run("-h").stdout
    for command in ("inspect", "verify", "repair", "tune", "bench"):
        assert f"\n  {command} " in text


@pytest.mark.parametrize(
    "arguments",
    [("inspect",), ("inspect", "a", "b"), ("verify", "--dry-run", "x"), ("trim", "x"), ("repair", "--jason", "x")],
)
def test_wrong_usage_is_2(arguments: tuple[str, ...]) -> None:
    result = run(*arguments)
    assert (result.exit_code, result.stdout) == (2, "")
    assert "Error: " in result.stderr


def _newer_log(checkpoint: Checkpoint) -> None:
    (checkpoint.home / "log.json").write_text('{"format_version": 4, "log_id": "' + "a" * 32 + '"}')


def _newer_frame(checkpoint: Checkpoint) -> None:
    """Kind 9, with a prelude checksum that is right."""
    frame = bytearray(frame_bytes(loaded_meta()))
    frame[10] = 9
    frame[28:32] = crc32c(bytes(frame[:28])).to_bytes(4, "little")
    checkpoint.segment.write_bytes(checkpoint.segment.read_bytes() + bytes(frame))


def _file_for_directory(checkpoint: Checkpoint) -> None:
    for each in (checkpoint.home / "segments").iterdir():
        each.unlink()
    (checkpoint.home / "segments").rmdir()
    (checkpoint.home / "segments").write_text("a file")


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (_newer_log, "log.json: format version 4 is newer than this release can read; use the release that wrote it"),
        (_newer_frame, "frame kind 9 is newer than this release can read"),
        (_file_for_directory, "Not a directory; give a place that this user may read"),
    ],
    ids=["newer log", "newer frame", "file for directory"],
)
@pytest.mark.parametrize("arguments", [("inspect",), ("verify", "--json"), ("repair", "--dry-run", "--json")])
def test_what_cannot_be_read_is_2_in_one_line(
    checkpoint: Checkpoint, spoil: Callable[[Checkpoint], None], message: str, arguments: tuple[str, ...]
) -> None:
    spoil(checkpoint)
    result = run(*arguments, str(checkpoint.path))
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.startswith(f"cec {arguments[0]}: ")
    assert message in result.stderr
    assert result.stderr.count("\n") == 1


@pytest.mark.parametrize("place", ["/nowhere/at/all", "nonsense://x/y", "file://host/x", ""])
def test_a_place_without_a_log_is_named(place: str) -> None:
    result = run("inspect", place)
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.startswith("cec inspect: log location ")
    assert place in result.stderr


def test_a_file_is_no_place_for_a_log(tmp_path: Path) -> None:
    file = tmp_path / "job.py"
    file.write_text("")
    for command in ("inspect", "verify", "repair", "flush"):
        assert run(command, str(file)).stderr.startswith(f"cec {command}: log location '{file}': this is a file; give")


@pytest.mark.parametrize(
    "arguments", [("pipeline",), ("pipeline", "simulate", "--operator", "3"), ("bench", "--provider", "foo")]
)
def test_wrong_usage_of_what_is_handed_over_shows_its_usage(arguments: tuple[str, ...]) -> None:
    result = run(*arguments)
    assert result.exit_code == 2
    assert f"Usage: cec {arguments[0]} " in result.output
    assert "cannot be read" not in result.output


def test_a_file_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    png = tmp_path / "nowhere" / "x.png"
    result = run("pipeline", "simulate", "--rounds", "1", "--png", str(png))
    assert (result.exit_code, result.stdout) == (2, "")
    assert f"{png}: No such file or directory; give a place that this user may read and write" in result.stderr


@pytest.mark.parametrize("command", ["import", "export", "rescale --partitions 3"])
def test_what_is_wrong_at_first_sight_is_refused_before_spark_is_started(
    command: str, checkpoint: Checkpoint, tmp_path: Path
) -> None:
    def refusal(source: Path, target: Path) -> str:
        result = run(*command.split(), "--from", str(source), "--to", str(target))
        assert (result.exit_code, result.stdout, result.stderr.count("\n")) == (2, "", 1)
        return result.stderr

    assert f"{tmp_path / 'no'} is not the checkpoint of a query" in refusal(tmp_path / "no", tmp_path / "new")
    (checkpoint.path / "offsets").mkdir(exist_ok=True)
    (tmp_path / "link").symlink_to("nowhere")
    for target in (tmp_path, tmp_path / "link"):
        assert f"--to {target}: there is something already" in refusal(checkpoint.path, target)
    mark_migrated(open_storage(str(checkpoint.path / "cec")), "elsewhere")
    said = refusal(checkpoint.path, tmp_path / "new")
    assert "was carried to another one (elsewhere), and only one of the two may go on" in said


def test_an_error_of_a_backend_is_one_line_too(checkpoint: Checkpoint, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_: str) -> None:
        raise RuntimeError("the bucket\nsaid no")

    monkeypatch.setattr(place_module, "open_storage", fail)
    result = run("inspect", "s3://bucket/x")
    assert result.exit_code == 2
    assert result.stderr.startswith("cec inspect: s3://bucket/x: cannot be read (RuntimeError: the bucket said no); ")


def test_of_an_error_with_a_stack_the_beginning_is_shown(
    checkpoint: Checkpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_: str) -> None:
        raise RuntimeError("\n".join(["An error occurred", "java.io.IOException: " + 1000 * "x", "\tat A.b(A.java:1)"]))

    monkeypatch.setattr(place_module, "open_storage", fail)
    error = run("inspect", "s3://bucket/x").stderr
    assert "An error occurred java.io.IOException: xxx" in error
    assert "A.java" not in error
    assert len(error) < 600


def test_an_interrupt_is_130(checkpoint: Checkpoint, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(_: str) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(place_module, "open_storage", interrupt)
    assert run("verify", str(checkpoint.path)).exit_code == 130


@pytest.mark.parametrize("arguments", [("inspect",), ("inspect", "--json"), ("verify",)])
def test_a_reader_that_went_away_is_no_damage(checkpoint: Checkpoint, arguments: tuple[str, ...]) -> None:
    environment = {**os.environ, "PYTHONPATH": str(PYTHON_PATH), "PYTHONUNBUFFERED": ""}
    read, write = os.pipe()
    os.close(read)
    with os.fdopen(write, "wb") as gone:
        command = [*COMMAND, *arguments, str(checkpoint.path)]
        result = subprocess.run(command, stdout=gone, stderr=subprocess.PIPE, env=environment, check=False)
    assert (result.returncode, result.stderr) == (141, b"")


def test_looking_at_a_log_needs_neither_spark_nor_the_agent_nor_the_advice(checkpoint: Checkpoint) -> None:
    code = (
        "import sys, json\nfrom spark_cec.cli import main\n"
        "try:\n    main()\nfinally:\n"
        "    print(json.dumps(sorted({name.split('.')[0] for name in sys.modules})), file=sys.stderr)"
    )
    for command in ("inspect", "verify", "repair"):
        result = process(command, str(checkpoint.path), "--json", code=[sys.executable, "-c", code])
        assert result.returncode == 0, result.stderr
        loaded = set(json.loads(result.stderr))
        assert "pyarrow" in loaded
        assert not loaded & {"pyspark", "py4j", "rocksdict", "scipy", "matplotlib"}


class _Terminal:
    """Standard error that says it is a terminal."""

    def __init__(self) -> None:
        self.text = ""

    def isatty(self) -> bool:
        return True

    def write(self, text: str) -> int:
        self.text += text
        return len(text)

    def flush(self) -> None:
        pass


@pytest.mark.parametrize(
    ("terminal", "long", "shown"), [(True, True, True), (True, False, False), (False, True, False)]
)
def test_progress_is_for_long_logs_on_a_terminal(
    checkpoint: Checkpoint, monkeypatch: pytest.MonkeyPatch, terminal: bool, long: bool, shown: bool
) -> None:
    fake = _Terminal()
    monkeypatch.setattr(fake, "isatty", lambda: terminal)
    monkeypatch.setattr(sys, "stderr", fake)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(meter_module, "LONG_LOG_BYTES", 1 if long else 1 << 30)
    place = place_module.find_log(str(checkpoint.path))
    with meter_module.meter(place.storage) as progress:
        progress.read(10)
        progress.stores_begin(2)
        progress.store_done()
    assert ("rebuilding stores" in fake.text) == shown
    assert bool(fake.text) == shown


def test_a_flush_of_a_query_that_was_stopped_has_nothing_to_do(checkpoint: Checkpoint) -> None:
    dirty = run("flush", str(checkpoint.path))
    assert dirty.exit_code == 2
    assert "its next start replays batches 1 to 3" in dirty.stderr
    (checkpoint.path / "commits" / "0").rename(checkpoint.path / "0")
    for batch in range(4):
        for log in ("offsets", "commits"):
            (checkpoint.path / log / str(batch)).unlink(missing_ok=True)
    checkpoint.commit(0)  # of which the log says that nothing is dirty since
    done = run("flush", str(checkpoint.path))
    assert (done.exit_code, done.stdout) == (0, "all is written up to batch 0, since the query was stopped\n")


def test_a_flush_by_the_home_of_the_log_finds_the_run(checkpoint: Checkpoint) -> None:
    """It runs, and does not answer."""
    leases, own = CheckpointLeases(), open_storage(str(checkpoint.path / "cec"))
    leases.hold(str(checkpoint.path), own)
    try:
        asked = run("flush", str(checkpoint.home), "--timeout", "0.2")
        assert asked.exit_code == 1 and "has not answered" in asked.stdout, asked.output
    finally:
        leases.close()


def test_a_query_without_deferred_operators_has_always_written_all(checkpoint: Checkpoint) -> None:
    """It runs, and nobody asks it: it looks for no request."""
    query = checkpoint.path / "cec" / "query.json"
    query.write_text(json.dumps({**json.loads(query.read_text()), "mode": "eager"}))
    leases, own = CheckpointLeases(), open_storage(str(checkpoint.path / "cec"))
    leases.hold(str(checkpoint.path), own)
    try:
        replays = run("flush", str(checkpoint.path), "--timeout", "0")
        assert replays.exit_code == 1 and "has not answered" in replays.stdout, "what is dirty is of a run before"
        for batch in range(4):
            for log in ("offsets", "commits"):
                (checkpoint.path / log / str(batch)).unlink()
        checkpoint.commit(0)  # of which the log says that nothing is dirty since
        done = run("flush", str(checkpoint.path))
    finally:
        leases.close()
    assert (done.exit_code, done.stdout) == (
        0, "all is written up to batch 0, because each batch of this query writes all that it changes\n"
    )  # fmt: skip


def test_a_query_that_stops_in_good_order_during_a_flush_has_written_all(
    checkpoint: Checkpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    for batch in range(4):
        for log in ("offsets", "commits"):
            (checkpoint.path / log / str(batch)).unlink(missing_ok=True)
    checkpoint.commit(0)  # of which the log says that nothing is dirty since
    looks = iter([True, False])
    monkeypatch.setattr(flush, "is_held", lambda _: next(looks))
    done = run("flush", str(checkpoint.path), "--timeout", "0.2")
    assert (done.exit_code, done.stdout) == (0, "all is written up to batch 0, since the query was stopped\n")


def test_tune_is_the_command_of_the_advice() -> None:
    assert "--failure-rate" in run("tune", "-h").stdout
    result = run("tune", "--failure-rate", "0.005/min", "--checkpoint-cost", "5min")
    assert result.exit_code == 0, result.output
    assert "46.45min" in result.stdout
    wrong = run("tune", "--failure-rate", "often", "--checkpoint-cost", "1s")
    assert wrong.exit_code == 2
    assert wrong.stderr.startswith("cec tune: ")
    assert run("tune", "--nonsense").exit_code == 2
    assert run("tune").stderr.startswith("cec tune: --failure-rate is missing: give it, or a checkpoint")


def test_tune_reads_the_commits_of_the_log(checkpoint: Checkpoint) -> None:
    found = commits.read_commits(checkpoint.path)
    assert sorted({(c.operator, c.partition) for c in found}) == sorted({(s.operator, s.partition) for s in STORES})
    assert found[0] == Commit(version=1, operator=0, partition=0, wall_unix_s=1.0, seconds=0.0, whole=False)
    assert len(found) == 4 * len(STORES)


def test_tune_does_without_a_log(tmp_path: Path) -> None:
    assert commits.read_commits(tmp_path) == []
