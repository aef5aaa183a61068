"""The agent's process: token in, address out, loopback only, and an end that nobody has to ask for."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from typing import Any

import py4j.java_gateway
import pytest

from spark_cec import __version__
from spark_cec.adapters.py4j_server import CallServer
from spark_cec.agent.__main__ import main

TOKEN = "a-token-of-the-test"
PYTHON = Path(__file__).resolve().parents[2]
WITHIN_S = 60


@dataclass
class Agent:
    """A running agent and its first line."""

    process: subprocess.Popen[str]
    hello: dict[str, Any]

    def ends(self) -> int:
        """Its exit code, once it has ended."""
        return self.process.wait(timeout=WITHIN_S)


def speak(port: int, token: str | None, name: str, arguments: str) -> list[str]:
    """Authenticates (None: does not) and calls the entry point as Py4J's Java side does; the answer's lines."""
    lines = [] if token is None else ["A", token, "e"]
    lines += ["c", "t", "call", f"s{name}", f"s{arguments}", "e", ""]
    with socket.create_connection(("127.0.0.1", port), timeout=WITHIN_S) as connection:
        connection.sendall("\n".join(lines).encode())
        with contextlib.suppress(ConnectionError):
            answers = connection.makefile(encoding="utf-8")
            return [line for line in (answers.readline(), answers.readline()) if line]
    return []


def start(scratch: Path, *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "spark_cec.agent", *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(PYTHON), "TMPDIR": str(scratch)},
    )


@pytest.fixture
def agent(tmp_path: Path) -> Iterator[Agent]:
    (tmp_path / "spool").mkdir()
    with start(tmp_path, "--spool-path", str(tmp_path / "spool")) as process:
        assert process.stdin is not None and process.stdout is not None
        print(TOKEN, file=process.stdin, flush=True)
        yield Agent(process, json.loads(process.stdout.readline()))
        process.kill()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_it_outlives_the_signals_that_a_whole_group_is_ended_with(agent: Agent, number: int) -> None:
    agent.process.send_signal(number)
    assert "UnknownLog" in speak(agent.hello["port"], TOKEN, "acknowledge", '{"home": "/nowhere", "version": 1}')[1]
    assert agent.process.poll() is None
    assert agent.process.stdin is not None
    agent.process.stdin.close()
    assert agent.ends() == 0


def test_hello_says_where_it_is(agent: Agent, tmp_path: Path) -> None:
    assert agent.hello["pid"] == agent.process.pid
    assert agent.hello["version"] == __version__
    assert Path(agent.hello["spool"]).parent == tmp_path / "spool"
    assert Path(agent.hello["overflow"]).parent == tmp_path
    for place in ("spool", "overflow"):
        assert Path(agent.hello[place]).stat().st_mode & 0o777 == 0o700


def test_it_ends_with_its_standard_input_and_removes_its_spool(agent: Agent) -> None:
    assert agent.process.stdin is not None
    Path(agent.hello["spool"], "left.arrow").write_bytes(b"x")
    agent.process.stdin.close()
    assert agent.ends() == 0
    assert not Path(agent.hello["spool"]).exists()
    assert not Path(agent.hello["overflow"]).exists()


def test_it_ends_when_its_parent_is_killed(tmp_path: Path) -> None:
    """The parent never closes anything: the system does."""
    code = (
        "import subprocess, sys, time\n"
        "agent = subprocess.Popen([sys.executable, '-m', 'spark_cec.agent'], stdin=subprocess.PIPE, text=True)\n"
        "print('token', file=agent.stdin, flush=True)\n"
        "sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(PYTHON), "TMPDIR": str(tmp_path)},
    ) as parent:
        assert parent.stdout is not None
        hello = json.loads(parent.stdout.readline())
        agent = os.pidfd_open(hello["pid"])
        parent.send_signal(signal.SIGKILL)
        assert parent.stdout.read() == "", "the pipe closes when the agent, who has it too, has ended"
        os.close(agent)
    assert not Path(hello["spool"]).exists()


def test_nobody_is_served_without_the_token(agent: Agent) -> None:
    for token in (None, "", "wrong", TOKEN[:-1], TOKEN + "x", TOKEN.upper()):
        assert not any(line.startswith("!y") for line in speak(agent.hello["port"], token, "open_log", "{}"))
    authenticated, answer = speak(agent.hello["port"], TOKEN, "no such call", "{}")
    assert authenticated.startswith("!y")
    assert "KeyError" in answer, "and it still serves with it"


def test_it_listens_on_loopback_only(agent: Agent) -> None:
    listening = set()
    inodes = {str(link.readlink()) for link in Path(f"/proc/{agent.process.pid}/fd").iterdir() if link.is_symlink()}
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/{agent.process.pid}/net/{table}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A" and f"socket:[{fields[9]}]" in inodes:
                listening.add(fields[1])
    assert listening == {f"0100007F:{agent.hello['port']:04X}"}


@pytest.mark.parametrize("line", ["", "\n", "   \n"])
def test_without_a_token_it_says_so_and_ends(line: str) -> None:
    said = StringIO()
    assert main(StringIO(line), said) == 2
    assert json.loads(said.getvalue()) == {
        "error": "no token on standard input: the agent is started by the Spark CEC shim"
    }


def test_a_package_that_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "spark_cec.adapters.py4j_server", None)
    said = StringIO()
    assert main(StringIO("token\n"), said) == 3
    error = json.loads(said.getvalue())["error"]
    assert "spark_cec.adapters.py4j_server" in error
    assert error.endswith("install spark-cec with its dependencies for this python")


def test_a_place_without_room_for_a_spool_is_named(tmp_path: Path) -> None:
    said = StringIO()
    assert main(StringIO("token\n"), said, ["--spool-path", str(tmp_path / "nowhere")]) == 4
    error = json.loads(said.getvalue())["error"]
    assert f"no spool directory can be made at {tmp_path}/nowhere" in error
    assert "(No such file or directory): set spark.sql.streaming.stateStore.cec.spool.path to" in error


def test_the_port_is_open_when_it_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """Py4J listens in a thread of its own, which may be late: the hello line must not be earlier."""
    told = threading.Event()
    run = py4j.java_gateway.CallbackServer.run

    def late(server: py4j.java_gateway.CallbackServer) -> None:
        told.wait(0.5)
        run(server)

    monkeypatch.setattr(py4j.java_gateway.CallbackServer, "run", late)
    server = CallServer(lambda name, arguments: "{}", TOKEN)
    try:
        socket.create_connection(("127.0.0.1", server.port), timeout=WITHIN_S).close()
    finally:
        told.set()
        server.close()


def test_calls_are_handed_on_and_answered() -> None:
    seen: list[tuple[str, str]] = []

    def handle(name: str, arguments: str) -> str:
        seen.append((name, arguments))
        return '{"ä": 1}'

    server = CallServer(handle, TOKEN)
    try:
        assert speak(server.port, TOKEN, "load", '{"x": "ü"}')[1] == '!ys{"ä": 1}\n'
        speak(server.port, "wrong", "load", "{}")
    finally:
        server.close()
    assert seen == [("load", '{"x": "ü"}')]
