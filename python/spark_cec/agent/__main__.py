"""The agent's process: `python -m spark_cec.agent [--spool-path DIRECTORY] [--inherit DIRECTORY DIRECTORY]`.

Token in on the first line of standard input, address out on the first line of standard output.

It ends when its standard input closes, that is, when the JVM that started it has ended, however it ended. Signals that
ask a whole process group or container to end do not end it: its JVM has them too, and may have windows to write first.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Sequence
from typing import IO

from spark_cec import __version__

TIDY_EVERY_S = 60.0


def main(stdin: IO[str], stdout: IO[str], arguments: Sequence[str] = ()) -> int:
    """Serves until `stdin` ends. Exit code 3: a package is missing; 4: there can be no spool. The answer says why."""
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
        hello = {
            "port": server.port,
            "pid": os.getpid(),
            "version": __version__,
            "spool": str(calls.spool.directory),
            "overflow": str(calls.spool.overflow),
        }
        print(json.dumps(hello), file=stdout, flush=True)
        threading.Thread(target=_tidy, args=(calls.tidy,), daemon=True).start()
        while stdin.readline():
            pass
    finally:
        calls.close()
        server.close()
    return 0


def _refuse(stdout: IO[str], code: int, error: str) -> int:
    print(json.dumps({"error": error}), file=stdout, flush=True)
    return code


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


if __name__ == "__main__":
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
        signal.signal(number, signal.SIG_IGN)
    code = main(sys.stdin, sys.stdout, sys.argv[1:])
    sys.stdout.flush()
    os._exit(code)
