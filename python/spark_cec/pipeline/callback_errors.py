"""Describes errors of users' functions and files by their own lines."""

from __future__ import annotations

import traceback


def describe_callback_error(error: Exception, path: str) -> str:
    """The error in a user's file, with its line there, as one line of text."""
    if isinstance(error, SyntaxError):
        return f"line {error.lineno}: {error.msg}"
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == path]
    place = f"line {lines[-1]}: " if lines else ""
    return f"{place}{type(error).__name__}: {(str(error).strip() or repr(error)).splitlines()[0]}"
