"""Prints the result of `cec outputs`: for people, and as one JSON object for programs."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

from rich.console import Console

from spark_cec.admin.outputs import Outputs
from spark_cec.cli.show import counted, place_json, print_findings
from spark_cec.log.boundary import Boundary
from spark_cec.log.manifest import read_batch, read_bucket_end

_SHOWN_CHARACTERS = 160


def outputs_json(found: Outputs) -> dict[str, Any]:
    """The fields of `cec outputs --json`."""
    return {
        **place_json(found.place),
        "batches": [
            {
                "batch": each.manifest.batch,
                "rows": each.manifest.rows,
                "frames": len(each.manifest.frames),
                "replaces_all": each.manifest.truncate,
                "other_sink": each.manifest.other_sink,
                "generation": each.manifest.generation,
                "published_ms": each.manifest.wall_ms,
                "watermark_ms": each.manifest.boundary_ms,
                "inputs": [{"source": i.source, "from": i.start, "to": i.end} for i in each.inputs],
            }
            for each in found.batches
        ],
        "complete": _boundary_json(found.boundary),
        "late": [{"reader": each.reader, "rows": each.rows} for each in found.late],
        "cuts": [{"after": cut.after, "generation": cut.generation, "cut_ms": cut.wall_ms} for cut in found.cuts],
        "damages": [finding.to_json() for finding in found.findings],
    }


def _boundary_json(boundary: Boundary | None) -> dict[str, Any] | None:
    if boundary is None:
        return None
    return {"batch": boundary.batch, "to_ms": boundary.quiet_ms, "columns": dict(boundary.columns)}


def print_outputs(out: Console, found: Outputs) -> None:
    """Prints at least two lines for each batch: its numbers, then its inputs."""
    print_findings(out, found.findings)
    if not found.batches:
        out.print("no batch of output is published: only the cec sink writes into the log")
    for cut in found.cuts:
        behind = f"all after batch {cut.after}" if cut.after >= 0 else "all of it"
        out.print(f"taken back by run {cut.generation}, {_format_time(cut.wall_ms)}: {behind}")
    for each in found.batches:
        batch = each.manifest
        late = "" if batch.boundary_ms is None else f", watermark {_format_time(batch.boundary_ms)}"
        whole = ", replaces all before" if batch.truncate else ", another sink had them" if batch.other_sink else ""
        rows, frames = counted(batch.rows, "row"), counted(len(batch.frames), "frame")
        out.print(f"batch {batch.batch}: {rows} in {frames}, published {_format_time(batch.wall_ms)}{late}{whole}")
        for read in each.inputs:
            begin = "" if read.start is None else f" from {_format_offset(read.start)}"
            out.print(f"    {read.source}{begin} to {_format_offset(read.end or 'nothing yet')}")

    for kept in found.late:
        out.print(f"late for {kept.reader}: {counted(kept.rows, 'row')}, kept aside (view=late)")
    if found.boundary is not None:
        for line in _describe(found.boundary):
            out.print(line)


def _describe(boundary: Boundary) -> Iterator[str]:
    if boundary.quiet_ms is not None:
        there = f"all input is in batches up to {boundary.batch}" if boundary.batch >= 0 else "there was no input"
        yield f"complete to {_format_time(boundary.quiet_ms)}: {there}"
    for column, ms in sorted(boundary.columns.items()):
        yield f"complete to {_format_time(ms)} by {column}: no batch after {boundary.batch} has an older row"


def _format_offset(offset: str) -> str:
    try:
        until_ms = read_bucket_end(offset)
        return f"batch {read_batch(offset)}" + ("" if until_ms is None else f", rows before {_format_time(until_ms)}")
    except ValueError:
        return offset[:_SHOWN_CHARACTERS]


def _format_time(ms: int) -> str:
    try:
        return f"{datetime.fromtimestamp(ms / 1000, UTC):%Y-%m-%d %H:%M:%S} UTC"
    except (ValueError, OverflowError, OSError):  # users choose event times, also impossible ones
        return f"{ms} ms since 1970"
