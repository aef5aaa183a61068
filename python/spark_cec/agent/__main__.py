"""The agent's process: `python -P -m spark_cec.agent [--spool-path DIRECTORY] [--inherit DIRECTORY DIRECTORY]`.

Token in on the first line of standard input, address out in one line of standard output, which begins with `GREETING`.
Standard output is for that line alone. All else that is printed goes to standard error; a Python or a wrapper that
prints before our first line of code may still be ahead of the greeting, and the shim passes over that.

It ends when its standard input closes, that is, when the JVM that started it has ended, however it ended. Signals that
ask a whole process group or container to end do not end it: its JVM has them too, and may have windows to write first.
"""

from __future__ import annotations

import os
import sys


def _put_library_first() -> None:
    """Let no file of a user take the place of one of Python's own modules: a `secrets.py` would be run.

    Without `-P` the working directory comes first; an empty entry in PYTHONPATH means the working directory, too.
    No other module is imported before, because it could be such a file.
    """
    if not sys.flags.safe_path and sys.path[:1] == [os.getcwd()]:  # noqa: PTH109
        del sys.path[0]
    library = os.path.dirname(os.__file__)  # noqa: PTH120
    sys.path.sort(key=lambda entry: not (entry == library or entry.startswith(library + os.sep + "lib-dynload")))


if __name__ == "__main__":
    _put_library_first()

import argparse  # noqa: E402
import contextlib  # noqa: E402
import json  # noqa: E402
import signal  # noqa: E402
import threading  # noqa: E402
import time  # noqa: E402
from collections.abc import Callable, Sequence  # noqa: E402
from typing import IO  # noqa: E402

from spark_cec import __version__  # noqa: E402

GREETING = '{"spark_cec_agent": '
"""How the line begins that the shim waits for; AgentOutput.scala knows it, too."""

TIDY_EVERY_S = 60.0


def main(stdin: IO[str], stdout: IO[str], arguments: Sequence[str] = ()) -> int:
    """Serves until `stdin` ends. Exit code 3: a package is missing; 4: there can be no spool. The answer says why.

    Exit code 5: no connection can be accepted any more; standard error says why.
    """
    token = stdin.readline().strip()
    if not token:
        return _refuse(stdout, 2, "no token on standard input: the agent is started by the Spark CEC shim")
    try:
        from spark_cec.adapters.py4j_server import CallServer
        from spark_cec.agent.calls import Calls
    except ImportError as error:
        mend = "install spark-cec with its dependencies for this python"
        return _refuse(stdout, 3, f"{sys.executable}: {error}; {mend}")
    options = _options(arguments)
    try:
        calls = Calls(options.spool_path, options.inherit)
    except OSError as error:
        place = error.filename or options.spool_path or "the temp directory"
        mend = "set spark.sql.streaming.stateStore.cec.spool.path to a directory that is there and can be written"
        return _refuse(stdout, 4, f"no spool directory can be made at {place} ({error.strerror or error}): {mend}")
    server = CallServer(calls.answer, token)
    try:
        _greet(
            stdout,
            port=server.port,
            pid=os.getpid(),
            spool=str(calls.spool.directory),
            overflow=str(calls.spool.overflow),
        )
        threading.Thread(target=_tidy, args=(calls.tidy,), daemon=True).start()
        while stdin.readline():
            pass
    finally:
        calls.close()
        server.close()
    return 0


def _refuse(stdout: IO[str], code: int, error: str) -> int:
    _greet(stdout, error=error)
    return code


def _greet(stdout: IO[str], **said: object) -> None:
    line = json.dumps({"spark_cec_agent": __version__, **said})
    assert line.startswith(GREETING)
    print(line, file=stdout, flush=True)


def _tidy(tidy: Callable[[], None]) -> None:
    """An idle agent gets no calls, but must not hold files for ever."""
    while True:
        time.sleep(TIDY_EVERY_S)
        with contextlib.suppress(Exception):  # a log that cannot be looked at fails the calls for it
            tidy()


def _options(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m spark_cec.agent", description="Started by the Spark CEC shim.")
    parser.add_argument("--spool-path", help="where to make the spool directory")
    parser.add_argument("--inherit", nargs=2, default=(), help="the spool directories of an agent that died")
    return parser.parse_args(arguments)


def _reserve_stdout() -> IO[str]:
    """Standard output for the greeting alone; from now on, all else that is printed goes to standard error.

    That also holds for what was printed before and still waits in a buffer, and for what libraries and children print.
    """
    reserved = os.dup(1)
    os.dup2(2, 1)
    sys.stdout.flush()
    return open(reserved, "w", encoding="utf-8")  # noqa: PTH123


if __name__ == "__main__":
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
        signal.signal(number, signal.SIG_IGN)
    code = main(sys.stdin, _reserve_stdout(), sys.argv[1:])
    sys.stdout.flush()
    os._exit(code)
