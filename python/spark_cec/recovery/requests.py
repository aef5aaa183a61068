"""Requests to a running query, and its answers, as files in the checkpoint's `cec` directory.

`flush.json` asks the query to write what is dirty; `flushed.json` says what became of the newest request.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass

from spark_cec.log.storage import Storage

FLUSH_FILE = "flush.json"
FLUSHED_FILE = "flushed.json"


@dataclass(frozen=True, slots=True)
class Flushed:
    """The answer to a request. `version`: what was written is all up to there. `failed`: a line for what was not."""

    request: str
    version: int
    failed: tuple[str, ...]


def ask_flush(own: Storage, request: str) -> None:
    """Asks the query to write what is dirty; `own` is rooted at the checkpoint's `cec` directory."""
    own.replace(FLUSH_FILE, json.dumps({"request": request}).encode())


def flush_request(own: Storage) -> str | None:
    """The request that waits, None if none does; one that cannot be read is none."""
    if not own.exists(FLUSH_FILE):
        return None
    try:
        return str(json.loads(own.read(FLUSH_FILE))["request"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def answer_flush(own: Storage, request: str, version: int, failed: Sequence[str]) -> None:
    """Says what became of a request, and takes it away."""
    own.replace(FLUSHED_FILE, json.dumps(asdict(Flushed(request, version, tuple(failed)))).encode())
    own.delete(FLUSH_FILE)


def withdraw_flush(own: Storage) -> None:
    """Takes a request away that nobody has answered."""
    if own.exists(FLUSH_FILE):
        own.delete(FLUSH_FILE)


def flush_answer(own: Storage, request: str) -> Flushed | None:
    """The answer to that request, once there is one."""
    if not own.exists(FLUSHED_FILE):
        return None
    try:
        raw = json.loads(own.read(FLUSHED_FILE))
        answer = Flushed(str(raw["request"]), int(raw["version"]), tuple(raw["failed"]))
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return answer if answer.request == request else None
