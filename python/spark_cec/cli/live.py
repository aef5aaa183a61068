"""Shows something in the terminal as it changes, until the user presses q, Esc or Ctrl-C."""

from __future__ import annotations

import os
import select
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console, RenderableType
from rich.live import Live

from spark_cec.cli.show import console

LOOK_S = 0.5
_ESCAPE = b"\x1b"


def follow(look: Callable[[], RenderableType], every_s: float = LOOK_S) -> None:
    """Shows what `look` answers, on a screen of its own, until the user presses q or Esc.

    If standard output is no terminal, it prints one look. Without a terminal to read keys from, it ends with an
    interruption.
    """
    if not sys.stdout.isatty():
        console().print(look())
        return
    try:
        with Live(look(), console=Console(highlight=False), auto_refresh=False, screen=True) as live, _keys() as waits:
            while not waits(every_s):
                live.update(look(), refresh=True)
    except KeyboardInterrupt:
        return


@contextmanager
def _keys() -> Iterator[Callable[[float], bool]]:
    """A function that waits for so long, or until a key ends the command, and answers whether one did."""
    if not sys.stdin.isatty():
        yield _sleep
        return
    import termios
    import tty

    terminal = sys.stdin.fileno()
    before = termios.tcgetattr(terminal)
    tty.setcbreak(terminal)
    try:
        yield lambda seconds: _is_left(terminal, seconds)
    finally:
        termios.tcsetattr(terminal, termios.TCSADRAIN, before)


def _is_left(terminal: int, seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while (left := deadline - time.monotonic()) > 0:
        ready, _, _ = select.select([terminal], [], [], left)
        if ready:
            typed = os.read(terminal, 64)
            # Esc alone: arrows and the mouse send more behind it. Nothing at all: the terminal is gone.
            if not typed or typed == _ESCAPE or b"q" in typed.lower():
                return True
    return False


def _sleep(seconds: float) -> bool:
    time.sleep(seconds)
    return False
