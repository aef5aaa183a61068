"""How far the streams are that read a log's output: each one that says so has a file of its own name.

This is upstream buffering with acknowledgements: what all known readers are through with need not be kept.
"""

from __future__ import annotations

import json
from collections.abc import Iterable

from spark_cec.errors import DamagedLog
from spark_cec.log.storage import Storage

READERS = "readers"


def note_reader(storage: Storage, name: str, batch: int) -> None:
    """The reader never asks for `batch` again, nor for older ones. Never moves back."""
    if batch > read_reader(storage, name):
        storage.replace(_path(name), json.dumps({"batch": batch}).encode())


def begin_reader(storage: Storage, name: str, batch: int) -> None:
    """A reader of that name begins anew, behind `batch`: what an earlier one has noted says nothing of it."""
    if batch != read_reader(storage, name):
        storage.replace(_path(name), json.dumps({"batch": batch}).encode())


def read_reader(storage: Storage, name: str) -> int:
    """The batch that a reader noted last; -1 for one that has noted none. Errors: `DamagedLog`."""
    try:
        return int(json.loads(storage.read(_path(name)))["batch"])
    except FileNotFoundError:
        return -1
    except (ValueError, KeyError, TypeError) as error:
        raise DamagedLog(_path(name), 0, f"cannot be read: {error}; delete it: its reader writes it anew") from error


def slowest_reader(storage: Storage, names: Iterable[str]) -> int:
    """The oldest batch that some reader may still ask for. Errors: `DamagedLog`."""
    return min(read_reader(storage, name) for name in names) + 1


def _path(name: str) -> str:
    return f"{READERS}/{name}.json"
