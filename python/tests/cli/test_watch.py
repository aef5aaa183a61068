"""`cec watch`: a query once, as JSON, and live in a real terminal."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from spark_cec.adapters.local_storage import LocalStorage
from spark_cec.cli.watch_query import QueryWatcher, Sample, draw_curve, thin_out
from spark_cec.log.frame import FrameKind
from spark_cec.pipeline.home import PipelineHome
from spark_cec.pipeline.status import FlowStatus, PipelineStatus, State
from spark_cec.recovery.query_files import PIPELINE_FILE
from tests.cli.support import STORES, Checkpoint, answer, query_json, run
from tests.log.support import commit_meta, make_writer, payload_of

PYTHON_PATH = Path(__file__).resolve().parents[2]
DEADLINE_S = 60.0


def write_versions(checkpoint: Checkpoint, *versions: int, writer: str = "ffffffffffff-00112233445566ff") -> None:
    """A later run commits these versions of every store."""
    segments = make_writer(checkpoint.storage, writer_id=writer)
    for version in versions:
        for store in STORES:
            meta = commit_meta(version, store=store, extent=version, replay=10 * version, dirty_from=1, dirty_windows=2)
            segments.append(FrameKind.COMMIT, meta, payload_of(version))
    segments.close()


@pytest.mark.parametrize(
    ("values", "cells", "top", "drawn"),
    [
        ([], 8, None, ""),
        ([0, 0], 8, None, "▁▁"),
        ([1, 2, 3, 4], 8, None, "▃▅▇█"),
        ([1, 2, 3, 4], 8, 8, "▂▃▄▅"),
        ([16, 0], 8, 8, "█▁"),
        ([1, 9, 1, 1, 1, 1], 3, None, "█▁▁"),
    ],
)
def test_a_curve_keeps_its_peaks(values: list[float], cells: int, top: float | None, drawn: str) -> None:
    assert draw_curve(values, cells, top) == drawn


def test_once_shows_bounds_operators_and_recoveries(checkpoint: Checkpoint) -> None:
    own = checkpoint.path / "cec" / "recoveries"
    own.mkdir(parents=True, exist_ok=True)
    report = {"started_unix_ms": 5_000, "duration_ms": 1_500, "predicted_ms": 1_200.0, "replayed_batches": 1}
    (own / "5000.json").write_text(json.dumps({**report, "digest_ok": False}))
    (own / "4000.json").write_text("torn")
    shown = run("watch", str(checkpoint.path), "--once")
    assert shown.exit_code == 0, shown.output
    recovery = "recovery of 1970-01-01 00:00:05Z: 1.5 s"
    for part in ("q, records", "u, tuples", "mode", "operator  store", "left", recovery):
        assert part in shown.stdout, shown.stdout
    assert "foretold 1.2 s, 1 batch replayed, NOT proved right" in shown.stdout


def test_a_replay_that_runs_is_shown(checkpoint: Checkpoint) -> None:
    progress = {"generation": 2, "first": 1, "last": 3, "done": 1}
    (checkpoint.path / "cec" / "generations").mkdir(exist_ok=True)
    (checkpoint.path / "cec" / "generations" / "0000000002.json").write_text("{}")
    (checkpoint.path / "cec" / "replaying.json").write_text(json.dumps(progress))
    shown = run("watch", str(checkpoint.path), "--once")
    assert "replays batches 1 to 3: 1 of 3 are done" in shown.stdout


def test_json_has_what_inspect_has_and_the_recoveries(checkpoint: Checkpoint) -> None:
    found = answer(run("watch", str(checkpoint.path), "--json"))
    assert found["kind"] == "query"
    assert found["last_recoveries"] == []
    inspected = answer(run("inspect", str(checkpoint.path), "--json"))
    assert {key: found[key] for key in inspected} == inspected


def test_damage_is_shown_and_is_1(checkpoint: Checkpoint) -> None:
    checkpoint.commit(4)
    shown = run("watch", str(checkpoint.path), "--once")
    assert shown.exit_code == 1
    assert "lost: store" in shown.stdout


def test_what_is_no_log_is_2(tmp_path: Path) -> None:
    shown = run("watch", str(tmp_path))
    assert (shown.exit_code, shown.stdout) == (2, "")
    assert "there is no log here" in shown.stderr


def test_a_pipeline_by_its_home(tmp_path: Path) -> None:
    (tmp_path / PIPELINE_FILE).write_text(json.dumps({"name": "shop", "flows": {}}))
    shown = run("watch", str(tmp_path), "--once")
    assert (shown.exit_code, shown.stdout) == (2, ""), "its driver has written no status yet"
    home = PipelineHome(str(tmp_path))
    for state, code in ((State.STOPPED, 0), (State.FAILED, 1)):
        home.write_status(PipelineStatus("shop", str(tmp_path), 7, 1_000, (FlowStatus("counts", state, 3),)))
        shown = run("watch", str(tmp_path), "--once")
        assert shown.exit_code == code, shown.output
        assert "pipeline shop" in shown.stdout and state.value in shown.stdout
        found = answer(run("watch", str(tmp_path), "--json"))
        assert (found["kind"], found["flows"][0]["state"]) == ("pipeline", state.value)


def test_without_a_terminal_it_shows_one_look(checkpoint: Checkpoint) -> None:
    reason = "a reason " * 40
    (checkpoint.path / "cec" / "query.json").write_text(query_json("cec/log", reason=reason))
    shown = run("watch", str(checkpoint.path))
    assert shown.exit_code == 0
    assert reason.strip() in shown.stdout, "nothing is cut off in a file"


def test_old_samples_are_thinned_out() -> None:
    samples = [Sample(float(n), n, 0, None, 0, None, 0, 0, 0.0, 0) for n in range(3_601)]
    kept = thin_out(samples)
    assert kept[1_800 // 2 :] == samples[1_800:] and len(kept) == 900 + 1_801
    assert thin_out(kept) == kept


def test_a_second_look_reads_what_is_new(checkpoint: Checkpoint, monkeypatch: pytest.MonkeyPatch) -> None:
    watcher = QueryWatcher(str(checkpoint.home))
    first = watcher.look()
    write_versions(checkpoint, 5, 6)
    for batch in (4, 5):
        checkpoint.commit(batch)
    read: list[str] = []
    known = LocalStorage.read

    def note(self: LocalStorage, path: str, offset: int = 0, length: int | None = None) -> bytes:
        read.append(path)
        return known(self, path, offset, length)

    monkeypatch.setattr(LocalStorage, "read", note)
    second = watcher.look()
    monkeypatch.undo()
    segments = {path for path in read if path.startswith("segments/")}
    assert segments and all("ffffffffffff" in path for path in segments), "the older segment was read at the first look"
    assert [each.version for each in (*first.samples, second.samples[-1])] == [4, 6]
    assert len(second.samples) == 2
    assert second.state.stores == QueryWatcher(str(checkpoint.home)).look().state.stores


@pytest.mark.skipif(shutil.which("tmux") is None, reason="tmux is not installed")
class TestInATerminal:
    """The command in tmux, as a user has it."""

    @pytest.fixture
    def terminal(self, tmp_path: Path) -> Iterator[Callable[..., str]]:
        """Runs a command of tmux; without arguments it answers what the screen shows."""
        socket = str(tmp_path / "tmux")

        def tmux(*arguments: str) -> str:
            command = ["tmux", "-S", socket, *(arguments or ("capture-pane", "-p", "-t", "watch"))]
            return subprocess.run(command, capture_output=True, text=True, check=True).stdout

        yield tmux
        subprocess.run(["tmux", "-S", socket, "kill-server"], capture_output=True, check=False)

    def start(self, terminal: Callable[..., str], path: Path, columns: int) -> None:
        """Starts a shell, and the command in it."""
        python = f"env -u COLUMNS -u LINES {sys.executable} -c 'from spark_cec.cli import main; main()'"
        command = f"{python} watch {path} --every 0.2; echo left $?"
        environment = ["-e", f"PYTHONPATH={PYTHON_PATH}", "-e", f"PATH={os.environ['PATH']}", "-e", "PS1=$ "]
        size = ["-x", str(columns), "-y", "40"]
        terminal("new-session", "-d", "-s", "watch", *size, *environment, "sh")
        terminal("send-keys", "-t", "watch", command, "Enter")

    def becomes(self, terminal: Callable[..., str], *parts: str) -> str:
        """What the screen shows, once it has all these parts."""
        deadline = time.monotonic() + DEADLINE_S
        while True:
            screen = terminal()
            if all(part in screen for part in parts):
                return screen
            assert time.monotonic() < deadline, screen
            time.sleep(0.1)

    @pytest.mark.parametrize("columns", [80, 200])
    def test_it_follows_the_query_until_q(
        self, checkpoint: Checkpoint, terminal: Callable[..., str], columns: int
    ) -> None:
        reason = "a [bold]name[/bold] with \x1b[31m and <script>"
        (checkpoint.path / "cec" / "query.json").write_text(query_json("cec/log", reason=reason))
        self.start(terminal, checkpoint.path, columns)
        self.becomes(terminal, "q, records", "open windows", "[bold]name[/bold]", "share")
        write_versions(checkpoint, 5)
        checkpoint.commit(4)
        self.becomes(terminal, "batch 4", "since start", "█")
        rule = "a rule of the reason that only a wide terminal shows"
        (checkpoint.path / "cec" / "query.json").write_text(query_json("cec/log", reason=f"{'x' * 70} {rule}"))
        self.becomes(terminal, *([rule] if columns == 200 else ["…"]))
        terminal("resize-window", "-t", "watch", "-x", str(280 - columns))
        self.becomes(terminal, *([rule] if columns == 80 else ["…"]))
        for key in ("Up", "Down", "x"):
            terminal("send-keys", "-t", "watch", key)
        write_versions(checkpoint, 6, writer="fffffffffffe-00112233445566ff")
        checkpoint.commit(5)
        self.becomes(terminal, "batch 5")
        terminal("send-keys", "-t", "watch", "q" if columns == 80 else "Escape")
        assert "q, records" not in self.becomes(terminal, "left 0").split("left 0")[-1]

    def test_a_log_that_goes_away_is_named_and_may_come_back(
        self, checkpoint: Checkpoint, terminal: Callable[..., str]
    ) -> None:
        self.start(terminal, checkpoint.path, 120)
        self.becomes(terminal, "q, records")
        away = checkpoint.path.with_name("away")
        checkpoint.path.rename(away)
        self.becomes(terminal, "cannot be read now: ", "q, records")
        away.rename(checkpoint.path)
        deadline = time.monotonic() + DEADLINE_S
        while "cannot be read now" in terminal():
            assert time.monotonic() < deadline
        terminal("send-keys", "-t", "watch", "C-c")
        self.becomes(terminal, "left 0")
