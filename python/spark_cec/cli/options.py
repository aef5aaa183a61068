"""Arguments and options of several commands."""

from __future__ import annotations

from typing import Annotated

import typer

Checkpoint = Annotated[
    str, typer.Argument(metavar="CHECKPOINT", help="The query's checkpoint, or the home of its log.")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]
