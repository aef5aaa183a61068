"""Requests to a running query, and its answers, as files in the checkpoint's `cec` directory.

`flush.json` asks the query to write its dirty windows; `flushed.json` answers the newest request.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict

from spark_cec.log.storage import Storage
from spark_cec.recovery.query_files import FLUSH, FLUSHED, Flushed


def ask_flush(own: Storage, request: str) -> bool:
    """Asks the query to write its dirty windows; `own` is rooted at the checkpoint's `cec` directory.

    False if another request waits there: then ask again after it.
    """
    return FLUSH.create(own, {"request": request})


def withdraw_flush(own: Storage, request: str) -> None:
    """Deletes the request, if it waits still, and no other one."""
    if FLUSH.read_if_sound(own) == request:
        FLUSH.delete(own)


def answer_flush(own: Storage, request: str, version: int, failed: Sequence[str]) -> None:
    """Answers a request, and deletes it."""
    FLUSHED.write(own, asdict(Flushed(request, version, tuple(failed))))
    withdraw_flush(own, request)


def flush_answer(own: Storage, request: str) -> Flushed | None:
    """The answer to that request; None until the query has answered."""
    answer = FLUSHED.read_if_sound(own)
    return answer if answer is not None and answer.request == request else None
