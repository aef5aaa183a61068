"""An agent's start, in Pythons that print and threads of all kinds; one that fails leaves no process behind."""

from __future__ import annotations

import importlib.util
import os
import random
import shlex
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

import pytest
from store_it.history import Bounds, History, LogReader
from store_it.jvm import PYTHON, Refused, Stores
from store_it.operators import CountWindows

from spark_cec import __version__

T = TypeVar("T")
WITHIN_S = 60.0
QUICK_S = 20.0
"""Less than the agent may take, and more than a start needs on a busy machine."""


@pytest.fixture(scope="module")
def own(driver_class_path: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stores]:
    """A JVM whose agents only these tests end."""
    stores = Stores(driver_class_path, tmp_path_factory.mktemp("start"))
    yield stores
    stores.close()


@pytest.fixture(autouse=True)
def nothing_is_left_behind(own: Stores) -> Iterator[None]:
    """Each test begins without an agent, and ends with no process but an agent that is known."""
    kill_agent(own)
    yield
    kill_agent(own)
    try:
        until(lambda: not processes_of(own), f"no process is left: {processes_of(own)}")
    finally:
        for pid, _ in processes_of(own):
            os.kill(pid, signal.SIGKILL)


def kill_agent(stores: Stores) -> None:
    pid = stores.agent_pid()
    if pid is not None:
        os.kill(pid, signal.SIGKILL)
        until(lambda: stores.agent_pid() is None, "the agent's end")


def until(look: Callable[[], T], what: str) -> T:
    """What `look` finds, once that is true."""
    deadline = time.monotonic() + WITHIN_S
    while not (found := look()):
        assert time.monotonic() < deadline, f"not within {WITHIN_S} s: {what}"
    return found


def processes_of(stores: Stores) -> list[tuple[int, str]]:
    """All that the JVM has started and that lives, and all that these have: those in its session."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            stat = (entry / "stat").read_text() if entry.name.isdigit() else ""
            variables = (entry / "environ").read_bytes() if stat else b""
        except OSError:
            continue
        here = f"TMPDIR={stores.scratch}".encode() in variables.split(b"\0")
        if here and int(entry.name) != stores.pid and stat[stat.rindex(")") + 2] not in "ZX":
            found.append((int(entry.name), (entry / "cmdline").read_text().replace("\0", " ")))
    return found


def script(place: Path, *lines: str) -> str:
    """A script in the place of a Python; the last line is `exec` of ours, unless it says otherwise."""
    path = place / "python-in-a-script"
    path.write_text("\n".join(["#!/bin/sh", *lines]) + "\n")
    path.chmod(0o755)
    return str(path)


OURS = f'exec {shlex.quote(sys.executable)} "$@"'


def greeting(**said: object) -> str:
    """A line of a script that says this to the JVM."""
    words = ", ".join(f'"{key}": {value}' for key, value in said.items())
    return f"echo '{{{words}}}'"


def start(stores: Stores, python: str, timeout: str = "60s", spool: Path | None = None, **more: object) -> str:
    """Starts the agent; a file in its spool."""
    place = {"spool__path": str(spool)} if spool else {}
    return str(stores.ask("spool", conf=stores.conf(python=python, agent__timeout=timeout, **place), **more))


def test_a_thread_that_does_not_know_our_classes_replaces_an_agent(own: Stores) -> None:
    """As those of an executor that flush, hand over and close stores, if our jar came with the application."""
    python = sys.executable
    start(own, python)
    for _ in range(2):
        kill_agent(own)
        assert start(own, python, thread="foreign", foreign_loader=True)
        assert len(processes_of(own)) == 1


@pytest.mark.parametrize(
    "noise",
    [
        "echo Welcome",
        "printf 'no end of line'",
        "head -c 300000 /dev/zero | tr '\\0' x",
        'printf \'{"port": 1}\\n{"spark_cec_agent"\\n\'',
        "printf '\\377\\376\\0'",
    ],
    ids=["a line", "no line", "300 KB", "nearly a greeting", "no text"],
)
def test_what_a_script_prints_first_is_passed_over(own: Stores, tmp_path: Path, noise: str) -> None:
    assert start(own, script(tmp_path, noise, OURS))


def test_what_is_printed_before_the_greeting_is_not_lost(own: Stores, tmp_path: Path) -> None:
    start(own, script(tmp_path, "echo a word of $$", OURS))
    assert f"a word of {own.agent_pid()}" in own.errors.read_text()


def test_output_after_the_greeting_is_read_by_the_jvm(own: Stores, tmp_path: Path) -> None:
    """A child of the script has its standard output still; 64 KB would fill the pipe."""
    os.mkfifo(tmp_path / "go")
    chatter = f"(read word < {tmp_path}/go; head -c 1000000 /dev/zero | tr '\\0' y; echo; touch {tmp_path}/done) &"
    start(own, script(tmp_path, chatter, OURS))
    (tmp_path / "go").write_text("x\n")
    until((tmp_path / "done").exists, "the script's child has written all")
    until(lambda: own.errors.read_text().count("y") >= 1_000_000, "and it is in the JVM's standard error")


def test_a_script_that_never_stops_printing_is_given_up(own: Stores, tmp_path: Path) -> None:
    began = time.monotonic()
    with pytest.raises(
        Refused, match="printed more than 1048576 characters before it was ready, the last of them 'yes"
    ):
        start(own, script(tmp_path, "exec yes yes"))
    assert time.monotonic() - began < QUICK_S


@pytest.mark.parametrize("end", ["exit 7", "sleep 600 & sleep 1; exit 7"], ids=["all ends", "a child holds the output"])
def test_a_script_that_ends_is_told_with_its_words(own: Stores, tmp_path: Path, end: str) -> None:
    """By then the JVM waits for more output, which the child could still give."""
    began = time.monotonic()
    with pytest.raises(
        Refused, match=r"ended before it was ready, having printed 'not / here' \(exit code 7; .* 3\.11"
    ):
        start(own, script(tmp_path, "echo not", "echo here", end))
    assert time.monotonic() - began < QUICK_S
    for pid, command in processes_of(own):
        assert "sleep" in command, "the script's own child, which was not left by us"
        os.kill(pid, signal.SIGKILL)


def test_a_script_that_does_not_get_ready_is_ended_with_what_it_runs(own: Stores, tmp_path: Path) -> None:
    with pytest.raises(
        Refused, match=r"was not ready within 1\.0 s, having printed 'wait': see .* raise .*agent\.timeout"
    ):
        start(own, script(tmp_path, "echo wait", "sleep 600", "sleep 600"), timeout="1s")


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (greeting(spark_cec_agent='"0.0.9"', port=1), r"has spark-cec 0\.0\.9 but the jar is"),
        (greeting(spark_cec_agent=f'"{__version__}"', error='"no room"'), "no room"),
        (greeting(spark_cec_agent=f'"{__version__}"'), "."),
        (greeting(spark_cec_agent=f'"{__version__}"', port=1), "."),
        ("echo '{\"spark_cec_agent\": broken'", "."),
    ],
    ids=["another release", "an error", "no port", "no spool", "no JSON"],
)
def test_whatever_is_wrong_with_a_greeting_its_process_is_ended(
    own: Stores, tmp_path: Path, line: str, words: str
) -> None:
    for _ in range(2):
        with pytest.raises(Refused, match=words):
            start(own, script(tmp_path, line, "exec sleep 600"))
        until(lambda: not processes_of(own), f"no process is left: {processes_of(own)}")
    assert own.agent_pid() is None


def test_a_task_that_is_interrupted_leaves_no_process(own: Stores, tmp_path: Path) -> None:
    ticket = own.ask("spool", conf=own.conf(python=script(tmp_path, "sleep 600")), thread="task", later=True)
    until(lambda: [each for each in processes_of(own) if "sleep" in each[1]], "the script runs")
    own.ask("interrupt", by="task")
    with pytest.raises(Refused, match="InterruptedException"):
        own.ask("join", ticket=ticket)
    until(lambda: not processes_of(own), f"no process is left: {processes_of(own)}")


def test_an_agent_behind_a_script_that_does_not_answer_is_ended_with_it(own: Stores, tmp_path: Path) -> None:
    """It has the lease, which its successor needs."""
    start(own, script(tmp_path, OURS.removeprefix("exec ")), timeout="8s")
    (agent,) = [pid for pid, command in processes_of(own) if not command.startswith("/bin/sh")]
    os.kill(agent, signal.SIGSTOP)
    History(own, LogReader(str(tmp_path / "log")), 0, CountWindows(keys=6, size=9), Bounds()).start(0)
    assert agent not in [pid for pid, _ in processes_of(own)]


def test_the_next_application_in_a_jvm_has_an_agent_of_its_own(own: Stores, tmp_path: Path) -> None:
    """A notebook's JVM outlives its Spark: to mend the keys of a storage, one begins another application."""
    own.ask("begin_application")
    history = History(own, LogReader(str(tmp_path / "log")), 0, CountWindows(keys=6, size=9), Bounds())
    history.start(0)
    history.commit_next(history.operator.batch(random.Random(1), 0), 10_000)
    first = own.agent_pid()
    own.ask("begin_application")
    spool = tmp_path / "spool"
    spool.mkdir()
    start(own, sys.executable, spool=spool)
    history.commit_next(history.operator.batch(random.Random(2), 1), 10_000)
    second = own.agent_pid()
    history.commit_next(history.operator.batch(random.Random(3), 2), 10_000)
    assert first != second == own.agent_pid()
    assert list(spool.iterdir()), "it has the settings of its own application"
    until(lambda: len(processes_of(own)) == 1, "the first agent has ended")


@pytest.mark.parametrize("path", ["{0}", ":{0}", "{0}:", "/nowhere::{0}"])
def test_no_file_beside_the_jvm_takes_the_place_of_a_module(driver_class_path: str, tmp_path: Path, path: str) -> None:
    """There is one for every module of Python's own, also for those that are needed to find our first line."""
    beside = tmp_path / "beside"
    beside.mkdir()
    for name in filter(importlib.util.find_spec, sys.stdlib_module_names):
        (beside / f"{name}.py").write_text("import sys; sys.stderr.write('RUN: ' + __name__ + '\\n'); sys.exit(77)\n")
    stores = Stores(driver_class_path, tmp_path, cwd=beside, variables={"PYTHONPATH": path.format(PYTHON)})
    try:
        assert start(stores, sys.executable)
    finally:
        stores.close()
    assert "RUN" not in stores.errors.read_text()
