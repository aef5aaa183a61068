"""The agent's process: `python -P -m spark_cec.agent [--spool-path DIRECTORY] [--inherit DIRECTORY DIRECTORY]`.

The first line of standard input has the token, a space, and Hadoop's settings for object stores as a JSON object. Each
further line has these settings anew: the keys in one of Hadoop's credential files have changed.

The agent writes its address as one line of standard output, which begins with `GREETING`. Standard output has that line
alone; all other text goes to standard error. A Python or a wrapper may print before our first line of code; the shim
skips that text.

The agent ends when its standard input closes: its JVM has ended, for whatever reason. Signals to a whole process group
or container do not end the agent. Its JVM gets them too, and may still have windows to write.
"""

from __future__ import annotations

import os
import sys


def _put_library_first() -> None:
    """Puts Python's own library first, so that no user file replaces one of its modules: a `secrets.py` would run.

    Without `-P` the working directory comes first. An empty entry in PYTHONPATH means the working directory, too. No
    other module is imported before, because it could be such a file.
    """
    if not sys.flags.safe_path and sys.path[:1] == [os.getcwd()]:  # noqa: PTH109
        del sys.path[0]
    library = os.path.dirname(os.__file__)  # noqa: PTH120
    sys.path.sort(key=lambda entry: not (entry == library or entry.startswith(library + os.sep + "lib-dynload")))


class _Pandas:
    """Hides pandas, which Arrow imports if it is there: 0.2 s and 36 MB that the agent has no use for."""

    def find_spec(self, name: str, path: object = None, target: object = None) -> None:
        if name == "pandas":
            raise ModuleNotFoundError("the agent has no use for pandas", name=name)


if __name__ == "__main__":
    _put_library_first()
    sys.meta_path.insert(0, _Pandas())

import argparse  # noqa: E402
import contextlib  # noqa: E402
import json  # noqa: E402
import signal  # noqa: E402
import threading  # noqa: E402
import time  # noqa: E402
from collections.abc import Callable, Sequence  # noqa: E402
from typing import IO  # noqa: E402

from spark_cec.version import __version__  # noqa: E402

GREETING = '{"spark_cec_agent": '
"""The beginning of the line that the shim waits for; AgentOutput.scala has the same text."""

TIDY_EVERY_S = 60.0


def main(stdin: IO[str], stdout: IO[str], arguments: Sequence[str] = ()) -> int:
    """Serves until `stdin` ends.

    Exit code 3: a package is missing. 4: the spool cannot be made. For both, the greeting has the reason. 5: the agent
    accepts no more connections, and standard error has the reason.
    """
    token, _, settings = stdin.readline().strip().partition(" ")
    if not token:
        return _refuse(stdout, 2, "no token on standard input: the agent is started by the Spark CEC shim")
    try:
        from spark_cec.adapters.hadoop_settings import use_settings
        from spark_cec.adapters.py4j_server import CallServer
        from spark_cec.agent.calls import Calls
    except ImportError as error:
        mend = "install spark-cec with its dependencies for this python"
        return _refuse(stdout, 3, f"{sys.executable}: {error}; {mend}")
    use_settings(json.loads(settings or "{}"))
    options = _parse_options(arguments)
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
        for line in stdin:
            with contextlib.suppress(ValueError):  # the shim ended in the middle of a line
                use_settings(dict(json.loads(line)))
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
    """Closes idle files every minute, because an idle agent gets no calls."""
    while True:
        time.sleep(TIDY_EVERY_S)
        with contextlib.suppress(Exception):  # a log that cannot be read fails its own calls
            tidy()


def _parse_options(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m spark_cec.agent", description="Started by the Spark CEC shim.")
    parser.add_argument("--spool-path", help="where to make the spool directory")
    parser.add_argument("--inherit", nargs=2, default=(), help="the spool directories of an agent that died")
    return parser.parse_args(arguments)


def _reserve_stdout() -> IO[str]:
    """Reserves standard output for the greeting, and redirects all other text to standard error.

    That includes buffered text from before, and the text of libraries and child processes.
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
