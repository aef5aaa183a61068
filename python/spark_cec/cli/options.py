"""Arguments and options of several commands, and whether they can ask."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

Checkpoint = Annotated[
    str, typer.Argument(metavar="CHECKPOINT", help="The query's checkpoint, or the home of its log.")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]


def can_ask() -> bool:
    """Whether somebody at a terminal can be asked."""
    return sys.stdin.isatty()
