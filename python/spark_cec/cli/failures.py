"""Exit codes, and errors as one line."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from enum import IntEnum

import typer

from spark_cec.errors import CecError, DamagedLog

_MOST_CHARACTERS = 400

_WRONG_USAGE: type[Exception] = next(each for each in typer.BadParameter.__mro__ if each.__name__ == "ClickException")
"""The base class of typer's usage errors, which typer shows itself and does not export."""


class ExitCode(IntEnum):
    """The exit codes of all commands."""

    OK = 0
    DAMAGE = 1
    UNREADABLE = 2
    INTERRUPTED = 130
    PIPE_CLOSED = 141


@contextmanager
def explain_errors(command: str, path: str, access: str = "read") -> Iterator[None]:
    """Turns an error into one line on standard error and an exit code; `access` names the rights that it needed."""
    try:
        yield
    except (typer.Exit, typer.Abort, _WRONG_USAGE):
        raise
    except BrokenPipeError:
        _discard_output()
        raise typer.Exit(ExitCode.PIPE_CLOSED) from None
    except KeyboardInterrupt:
        raise typer.Exit(ExitCode.INTERRUPTED) from None
    except Exception as error:
        print(f"cec {command}: {' '.join(_explain_error(error, path, access).split())}", file=sys.stderr)
        raise typer.Exit(ExitCode.DAMAGE if isinstance(error, DamagedLog) else ExitCode.UNREADABLE) from error


def _explain_error(error: Exception, path: str, access: str) -> str:
    if isinstance(error, CecError):
        return str(error)
    if isinstance(error, OSError):
        name = error.filename if isinstance(error.filename, str) and error.filename else path
        return f"{name}: {error.strerror or error}; give a place that this user may {access}"
    if not path:
        return f"this should not have happened, please report it: {_first_cause(error)}"
    mend = "check the location, and whether `cec --version` is the release that wrote it"
    return f"{path}: cannot be read ({_first_cause(error)}); {mend}"


def _first_cause(error: Exception) -> str:
    """The first cause of an error. Spark and Py4J wrap an error of the JVM, with a whole stack."""
    java = getattr(error, "java_exception", None) or getattr(error, "_origin", None)
    if java is None:
        return f"{type(error).__name__}: {_shorten(str(error))}"
    while java.getCause() is not None:
        java = java.getCause()
    return f"{java.getClass().getSimpleName()}: {_shorten(str(java.getMessage()))}"


def _shorten(text: str) -> str:
    """The first two lines of a message, shortened."""
    beginning = " ".join(text.splitlines()[:2])
    return beginning if len(beginning) <= _MOST_CHARACTERS else f"{beginning[:_MOST_CHARACTERS]} ..."


def _discard_output() -> None:
    """Redirects output to nowhere after the reader has closed the pipe; else the interpreter would complain at its end.
    """
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
