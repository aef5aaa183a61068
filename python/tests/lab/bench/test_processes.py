"""A measured process: its events, its end, and that nothing of it stays."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from unittest import mock

import pytest

from spark_cec_lab.bench import processes
from spark_cec_lab.bench.processes import BenchError, Child, members_of

PATIENT_S = 60.0


def _child(tmp_path: Path, code: str) -> Child:
    return Child([sys.executable, "-c", code], tmp_path / "stderr.log", {"BENCH_TEST": "here"})


def _alive(pid: int) -> bool:
    """Whether a process runs; a zombie does not."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return text.rsplit(")", 1)[1].split()[0] not in "ZX"


def test_events_are_json_objects_and_other_lines_are_passed_over(tmp_path: Path) -> None:
    code = """
import json, os
print('Started recording 1.', '{"a": 1}', '17', '{broken}', json.dumps({"b": os.environ["BENCH_TEST"]}), sep='\\n')
"""
    with _child(tmp_path, code) as child:
        assert list(child.events(PATIENT_S)) == [{"a": 1}, {"b": "here"}]


def test_a_failure_is_told_with_its_last_words(tmp_path: Path) -> None:
    code = "import sys; print('{}', flush=True); [print('line', i, file=sys.stderr) for i in range(40)]; sys.exit(3)"
    with _child(tmp_path, code) as child, pytest.raises(BenchError) as failure:
        list(child.events(PATIENT_S))
    assert "exit code 3" in str(failure.value)
    assert str(failure.value).endswith("line 39")
    assert "line 10" not in str(failure.value)


def test_what_outlives_a_process_and_holds_its_output_is_not_waited_for(tmp_path: Path) -> None:
    """A JVM that hangs at its end."""
    code = "import subprocess; print('{}', flush=True); subprocess.Popen(['sleep', '1000'])"
    with mock.patch.object(processes, "_HEARD_WITHIN_S", 0.5), _child(tmp_path, code) as child:
        assert list(child.events(PATIENT_S)) == [{}]


def test_a_silent_failure(tmp_path: Path) -> None:
    with _child(tmp_path, "raise SystemExit(4)") as child, pytest.raises(BenchError, match="code 4: it said nothing"):
        list(child.events(PATIENT_S))


def test_silence_has_an_end(tmp_path: Path) -> None:
    with _child(tmp_path, "import sys; sys.stdin.read()") as child, pytest.raises(BenchError, match="no word"):
        list(child.events(0.01))


def test_leaving_kills_the_process_and_its_children(tmp_path: Path) -> None:
    code = """
import json, os, subprocess, sys
wait = [sys.executable, '-c', 'import signal; signal.pause()']
same, own = subprocess.Popen(wait), subprocess.Popen(wait, preexec_fn=os.setpgrp)
print(json.dumps({'pids': [same.pid, own.pid]}), flush=True)
sys.stdin.read()
"""
    with _child(tmp_path, code) as child:
        pids = next(child.events(PATIENT_S))["pids"]
        assert all(_alive(pid) for pid in pids)
    assert not any(_alive(pid) for pid in pids)


def test_leaving_with_an_error_kills_too(tmp_path: Path) -> None:
    code = "import os, sys; print('{\"pid\": %d}' % os.getpid(), flush=True); sys.stdin.read()"
    with pytest.raises(KeyboardInterrupt), _child(tmp_path, code) as child:
        pid = next(child.events(PATIENT_S))["pid"]
        raise KeyboardInterrupt
    assert not _alive(pid)


def test_killing_what_has_ended_is_harmless(tmp_path: Path) -> None:
    with _child(tmp_path, "pass") as child:
        assert list(child.events(PATIENT_S)) == []
        child.kill()


def test_a_process_of_another_session_is_not_hit(tmp_path: Path) -> None:
    code = "import os, sys; print('{\"pid\": %d}' % os.getpid(), flush=True); sys.stdin.read()"
    with _child(tmp_path, code) as stranger, _child(tmp_path, "import sys; sys.stdin.read()") as child:
        pid = next(stranger.events(PATIENT_S))["pid"]
        child._kill_member(pid)
        child.kill()
        assert _alive(pid)


def test_processor_time_is_counted_with_that_of_children(tmp_path: Path) -> None:
    burn = "import time\nwhile time.process_time() < 0.3: pass\nprint('{}', flush=True)\ninput()"
    code = f"""
import subprocess, sys
burning = subprocess.Popen([sys.executable, '-c', {burn!r}], stdin=subprocess.PIPE)
sys.stdin.read()
"""
    with _child(tmp_path, code) as child:
        next(child.events(PATIENT_S))
        assert child.cpu_s() >= 0.25


def test_members_are_told_from_their_entries(tmp_path: Path) -> None:
    def entry(pid: str, name: str, state: str, session: int) -> None:
        (tmp_path / pid).mkdir()
        times = "0 0 0 0 0 0 0 200 100"
        (tmp_path / pid / "stat").write_text(f"{pid} ({name}) {state} 1 5 {session} {times} 0 0")

    entry("10", "a (b) c", "S", 77)
    entry("11", "zombie", "Z", 77)
    entry("12", "stranger", "R", 78)
    (tmp_path / "13").mkdir()
    (tmp_path / "self").mkdir()
    (found,) = members_of(77, tmp_path)
    assert found.pid == 10
    assert found.cpu_s == pytest.approx(300 / os.sysconf("SC_CLK_TCK"))
    assert members_of(77, tmp_path / "missing") == []
