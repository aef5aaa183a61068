"""A query's recorded restarts, `<checkpoint>/cec/recoveries/<unix-ms>.json`, and how long it has been watched."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from math import inf
from pathlib import Path

from spark_cec.errors import UnsuitableCheckpoint
from spark_cec.tuning.estimate import Commit

CommitReader = Callable[[Path], Sequence[Commit]]
"""Reads the commits of the log under a checkpoint; whoever knows the log's format supplies it."""


@dataclass(frozen=True, slots=True)
class Recovery:
    """One recorded restart: begin and end in milliseconds since the epoch, and what it had to do."""

    began_unix_ms: int
    ended_unix_ms: int
    duration_ms: float
    committed_batch: int
    rewound_to: int
    replayed_batches: int
    digest_ok: bool | None


@dataclass(frozen=True, slots=True)
class Evidence:
    """What a checkpoint tells about its query. `unreadable` names the recovery files that were left out."""

    recoveries: tuple[Recovery, ...]
    commits: tuple[Commit, ...]
    observed_s: float
    unreadable: tuple[str, ...]


def parse_recovery(name: str, text: str) -> Recovery | None:
    """One recovery file by its name and text; None if it is damaged or is not one."""
    try:
        ended = int(name.removesuffix(".json"))
        fields = json.loads(text)
        duration = float(fields["duration_ms"])
        began = int(fields.get("started_unix_ms") or ended - duration)
        committed, rewound = int(fields["committed_batch"]), int(fields["rewound_to"])
        if not 0 <= duration < inf:
            return None
        return Recovery(
            began, ended, duration, committed, rewound, int(fields["replayed_batches"]), fields.get("digest_ok")
        )
    except (ValueError, TypeError, KeyError, AttributeError, OverflowError):
        return None


def parse_recoveries(files: Iterable[tuple[str, str]]) -> tuple[tuple[Recovery, ...], tuple[str, ...]]:
    """Recoveries in the order in which they ended, and the names of the files that could not be read."""
    parsed = [(name, parse_recovery(name, text)) for name, text in files]
    found = sorted((recovery for _, recovery in parsed if recovery), key=lambda recovery: recovery.ended_unix_ms)
    return tuple(found), tuple(name for name, recovery in parsed if recovery is None)


def gather(checkpoint: Path, read_commits: CommitReader | None = None) -> Evidence:
    """Everything that the checkpoint in a local directory says. Reads only.

    The time observed runs from the oldest trace of the query (Spark writes `metadata` at the first start) to the
    newest one (a commit of a batch, or a recovery). Raises `UnsuitableCheckpoint` where no query has one.
    """
    if not any((checkpoint / part).exists() for part in ("metadata", "commits", "offsets", "cec")):
        raise UnsuitableCheckpoint(
            f"{checkpoint}: no query's checkpoint here; give the local directory that is set as checkpointLocation"
        )
    files = [
        (path.name, path.read_text(encoding="utf-8", errors="replace"))
        for path in sorted((checkpoint / "cec" / "recoveries").glob("*.json"))
    ]
    recoveries, unreadable = parse_recoveries(files)
    commits = tuple(read_commits(checkpoint)) if read_commits else ()
    return Evidence(recoveries, commits, _observed_s(checkpoint, recoveries, commits), unreadable)


def _observed_s(checkpoint: Path, recoveries: Iterable[Recovery], commits: Iterable[Commit]) -> float:
    traces = [path for path in [checkpoint / "metadata", *(checkpoint / "commits").glob("*")] if path.is_file()]
    moments = [path.stat().st_mtime for path in traces]
    moments += [commit.wall_unix_s for commit in commits]
    for recovery in recoveries:
        moments += [recovery.began_unix_ms / 1000.0, recovery.ended_unix_ms / 1000.0]
    return max(moments) - min(moments) if moments else 0.0
