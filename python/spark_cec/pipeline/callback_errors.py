"""Errors of users' functions and files, told as theirs."""

from __future__ import annotations

import traceback


def describe_callback_error(error: Exception, path: str) -> str:
    """What went wrong in a user's file, and in which line of it, as one line of text."""
    if isinstance(error, SyntaxError):
        return f"line {error.lineno}: {error.msg}"
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == path]
    place = f"line {lines[-1]}: " if lines else ""
    return f"{place}{type(error).__name__}: {(str(error).strip() or repr(error)).splitlines()[0]}"
