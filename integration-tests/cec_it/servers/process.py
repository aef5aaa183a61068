"""A server as a process on a free port of loopback: started, awaited, and ended by its own process id."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from testbed.processes import die_with_parent

HOST = "127.0.0.1"
_UP_WITHIN_S = 60.0
_DOWN_WITHIN_S = 10.0
_LOOK_EVERY_S = 0.05
_TRIES = 3


class NotUp(RuntimeError):
    """A server does not come up: the message has the end of what it said."""


@contextmanager
def running(
    command: Callable[[int], Sequence[str]], log: Path, environment: Mapping[str, str] | None = None
) -> Iterator[int]:
    """Runs the command of a port, and yields the port once somebody listens there."""
    for left in reversed(range(_TRIES)):
        port = free_port()
        with log.open("ab") as said:
            process = subprocess.Popen(
                list(command(port)), stdin=subprocess.DEVNULL, stdout=said, stderr=said, start_new_session=True,
                env={**os.environ, **(environment or {})},
                preexec_fn=die_with_parent if sys.platform == "linux" else None,
            )  # fmt: skip
        try:
            if _comes_up(process, port):
                yield port
                return
        finally:
            _end(process)
        if not left:  # another process may have taken the port meanwhile
            raise NotUp(f"{command(port)[0]} does not come up:\n{log.read_text(errors='replace')[-3000:]}")


def free_port() -> int:
    """A port on which nobody listens now."""
    with socket.socket() as held:
        held.bind((HOST, 0))
        return int(held.getsockname()[1])


def _comes_up(process: subprocess.Popen[bytes], port: int) -> bool:
    deadline = time.monotonic() + _UP_WITHIN_S
    while process.poll() is None and time.monotonic() < deadline:
        with contextlib.suppress(OSError), socket.create_connection((HOST, port), timeout=1.0):
            return True
        time.sleep(_LOOK_EVERY_S)
    return False


def _end(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(_DOWN_WITHIN_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
