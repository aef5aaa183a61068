"""The agent's process: token in, address out, loopback only, and an end that nobody has to ask for."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from typing import Any

import pytest

from spark_cec import __version__
from spark_cec.adapters import hadoop_settings
from spark_cec.adapters.listener import DEAD_LISTENER
from spark_cec.adapters.py4j_server import CallServer
from spark_cec.agent.__main__ import GREETING, main

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


def start(
    scratch: Path,
    *arguments: str,
    wrapper: Sequence[str] = (),
    options: Sequence[str] = ("-P",),
    cwd: Path | None = None,
    **variables: str,
) -> subprocess.Popen[str]:
    """An agent that has its token; its standard error goes to a file, because nobody reads it meanwhile."""
    inherited = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    with (scratch / "stderr").open("ab") as errors:
        process = subprocess.Popen(
            [*wrapper, sys.executable, *options, "-m", "spark_cec.agent", *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            cwd=cwd,
            env={**inherited, "PYTHONPATH": str(PYTHON), "TMPDIR": str(scratch), **variables},
        )
    assert process.stdin is not None
    print(TOKEN, file=process.stdin, flush=True)
    return process


def first_line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline()


@contextlib.contextmanager
def running(scratch: Path, *arguments: str, **more: Any) -> Iterator[Agent]:
    """An agent that has greeted; killed at the end."""
    with start(scratch, *arguments, **more) as process:
        try:
            line = first_line(process)
            assert line.startswith(GREETING), line + (scratch / "stderr").read_text()
            yield Agent(process, json.loads(line))
        finally:
            process.kill()


@pytest.fixture
def agent(tmp_path: Path) -> Iterator[Agent]:
    (tmp_path / "spool").mkdir()
    with running(tmp_path, "--spool-path", str(tmp_path / "spool")) as started:
        yield started


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
    assert agent.hello["spark_cec_agent"] == __version__
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
        "spark_cec_agent": __version__,
        "error": "no token on standard input: the agent is started by the Spark CEC shim",
    }


def test_settings_that_come_later_take_the_place_of_the_first_ones() -> None:
    """A line that the end of the JVM has cut short says nothing."""
    first, later = '{"fs.s3a.endpoint": "a", "fs.s3a.access.key": "k"}', '{"fs.s3a.endpoint": "b"}'
    try:
        assert main(StringIO(f'{TOKEN} {first}\n{later}\n{{"fs.s3a'), StringIO()) == 0
        assert hadoop_settings._settings == {"fs.s3a.endpoint": "b"}
    finally:
        hadoop_settings.use_settings({})


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


def test_a_connection_serves_one_call_after_another_until_the_server_is_closed() -> None:
    server = CallServer(lambda name, arguments: arguments, TOKEN)
    port = server.port
    with socket.create_connection(("127.0.0.1", port), timeout=WITHIN_S) as connection:
        answers = connection.makefile(encoding="utf-8")
        connection.sendall(f"A\n{TOKEN}\ne\n".encode())
        assert answers.readline() == "!yv\n"
        for number in range(3):
            connection.sendall(f"c\nt\ncall\nsload\ns{number}\ne\n".encode())
            assert answers.readline() == f"!ys{number}\n"
        server.close()
        assert answers.readline() == ""
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port), timeout=WITHIN_S)


def test_its_owner_is_served_beside_more_strangers_than_it_has_descriptors(tmp_path: Path) -> None:
    limit = 128
    limited = ("/bin/sh", "-c", f'ulimit -n {limit} && exec "$@"', "sh")
    with running(tmp_path, wrapper=limited) as agent, contextlib.ExitStack() as crowd:
        port = agent.hello["port"]
        threads = len(list(Path(f"/proc/{agent.process.pid}/task").iterdir()))

        def is_served() -> bool:
            return "KeyError" in speak(port, TOKEN, "no such call", "{}")[1]

        for number in range(3 * limit):
            stranger = crowd.enter_context(socket.create_connection(("127.0.0.1", port), timeout=WITHIN_S))
            if number % 2:
                stranger.sendall(b"A\n")
        assert is_served()
        held = len(list(Path(f"/proc/{agent.process.pid}/fd").iterdir()))
        assert held <= limit // 2, "most descriptors are the agent's own"
        serving = len(list(Path(f"/proc/{agent.process.pid}/task").iterdir()))
        assert serving <= threads + limit // 8, "strangers get no thread"
        crowd.close()
        assert is_served()
        assert agent.process.poll() is None


def test_an_agent_that_nobody_can_reach_any_more_ends(tmp_path: Path) -> None:
    python_that_begins_with(
        tmp_path,
        "import socket\ndef accept(self): raise OSError(9, 'Bad file descriptor')\nsocket.socket.accept = accept",
    )
    with running(tmp_path, PYTHONPATH=f"{tmp_path}:{PYTHON}") as agent:
        with contextlib.suppress(ConnectionError):
            socket.create_connection(("127.0.0.1", agent.hello["port"]), timeout=WITHIN_S).close()
        assert agent.ends() == DEAD_LISTENER
    assert "accepts no connections any more" in (tmp_path / "stderr").read_text()


def python_that_begins_with(place: Path, code: str) -> None:
    """A Python with `place` on its path runs this first."""
    (place / "sitecustomize.py").write_text(code + "\n")


def test_what_python_prints_at_start_goes_to_standard_error(tmp_path: Path) -> None:
    python_that_begins_with(tmp_path, "print('Welcome')")
    with running(tmp_path, PYTHONPATH=f"{tmp_path}:{PYTHON}"):
        assert (tmp_path / "stderr").read_text() == "Welcome\n"


def test_it_loads_no_pandas_although_arrow_would(tmp_path: Path) -> None:
    place = tmp_path / "stranger"
    place.mkdir()
    (place / "pandas.py").write_text("print('pandas was loaded')")
    with running(tmp_path, PYTHONPATH=f"{place}:{PYTHON}"):
        assert not (tmp_path / "stderr").read_text()


def test_what_is_out_already_is_ahead_of_the_greeting(tmp_path: Path) -> None:
    """As with a wrapper that prints; the greeting can still be told from it."""
    python_that_begins_with(tmp_path, "print('Welcome\\nto', end='', flush=True)")
    with start(tmp_path, PYTHONPATH=f"{tmp_path}:{PYTHON}") as process:
        assert first_line(process) == "Welcome\n"
        before, greeting, rest = first_line(process).partition(GREETING)
        assert before == "to"
        assert json.loads(greeting + rest)["pid"] == process.pid
        process.kill()


def test_output_after_the_greeting_goes_to_standard_error_and_never_blocks(tmp_path: Path) -> None:
    """The test reads nothing more: 64 KB would fill the pipe."""
    for name in ("go", "done"):
        os.mkfifo(tmp_path / name)
    python_that_begins_with(
        tmp_path,
        f"import os, threading\n"
        f"def chatter():\n"
        f"    open({str(tmp_path / 'go')!r}).read()\n"
        f"    print('p' * 300_000, flush=True)\n"
        f"    os.write(1, b'w' * 300_000)\n"
        f"    os.system('head -c 300000 /dev/zero')\n"
        f"    open({str(tmp_path / 'done')!r}, 'w').write('x')\n"
        f"threading.Thread(target=chatter, daemon=True).start()",
    )
    done = os.open(tmp_path / "done", os.O_RDONLY | os.O_NONBLOCK)
    with running(tmp_path, PYTHONPATH=f"{tmp_path}:{PYTHON}") as agent:
        (tmp_path / "go").write_text("x")
        assert select.select([done], [], [], WITHIN_S)[0], "the agent is blocked by its own output"
        assert agent.process.stdout is not None
        assert not select.select([agent.process.stdout], [], [], 0)[0], "nothing but the greeting"
    os.close(done)
    assert (tmp_path / "stderr").stat().st_size >= 900_000


BEFORE_US = frozenset(
    subprocess.run(
        [sys.executable, "-c", "import runpy, __future__, typing, sys; print(*sys.modules)"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout.split()
)
"""Modules that Python itself needs to find our first line."""


@pytest.mark.parametrize(
    ("options", "path", "ours_first"),
    [
        (("-P",), f"{PYTHON}", False),
        ((), f"{PYTHON}", True),
        (("-P",), f":{PYTHON}", True),
        (("-P",), f"{PYTHON}:", True),
        (("-P",), f".:{PYTHON}", True),
        ((), f".:{PYTHON}", True),
    ],
    ids=["safe path", "plain", "empty entry first", "empty entry last", "named", "named and plain"],
)
def test_no_file_of_the_working_directory_takes_the_place_of_a_module(
    tmp_path: Path, options: tuple[str, ...], path: str, ours_first: bool
) -> None:
    """There is one for every module of Python's own: each would say that it was run."""
    beside = tmp_path / "beside"
    beside.mkdir()
    here = {name for name in sys.stdlib_module_names if importlib.util.find_spec(name)}
    for name in here - (BEFORE_US if ours_first else frozenset()):
        (beside / f"{name}.py").write_text("import sys; sys.stderr.write('RUN: ' + __name__ + '\\n'); sys.exit(77)\n")
    with running(tmp_path, options=options, cwd=beside, PYTHONPATH=path) as agent:
        assert "KeyError" in speak(agent.hello["port"], TOKEN, "no such call", "{}")[1]
    assert "RUN" not in (tmp_path / "stderr").read_text()
