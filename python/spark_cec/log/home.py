"""The home of a log: the directory with `log.json`, `segments/` and `manifests/`."""

from __future__ import annotations

import contextlib
import json

from spark_cec.errors import AlreadyExists, DamagedLog, NewerFormat
from spark_cec.ids import new_id
from spark_cec.log.storage import Storage

LOG_FILE = "log.json"
FORMAT_VERSION = 1


def read_log_id(storage: Storage) -> str | None:
    """The id of the log at this home (32 hex digits), or None if there is no log. Never writes.

    Errors: `DamagedLog`, `NewerFormat`.
    """
    try:
        raw = json.loads(storage.read(LOG_FILE))
        version, log_id = int(raw["format_version"]), str(raw["log_id"])
        bytes.fromhex(log_id)
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, TypeError) as error:
        raise DamagedLog(LOG_FILE, 0, f"cannot be read: {error}") from error
    if version > FORMAT_VERSION:
        raise NewerFormat(LOG_FILE, f"format version {version}")
    return log_id


def join_log(storage: Storage, log_id: str | None = None) -> str:
    """The id of the log at this home; if there is no log, creates one (with `log_id`, if given)."""
    found = read_log_id(storage)
    if found is not None:
        return found
    with contextlib.suppress(AlreadyExists):
        storage.create(LOG_FILE, _encode_log_file(log_id or new_id().hex()))
    begun = read_log_id(storage)
    assert begun is not None, "log.json was just created"
    return begun


def restore_log(storage: Storage, log_id: str) -> None:
    """Rewrites a lost or damaged `log.json` with a known id."""
    storage.replace(LOG_FILE, _encode_log_file(log_id))


def _encode_log_file(log_id: str) -> bytes:
    return json.dumps({"format_version": FORMAT_VERSION, "log_id": log_id}).encode()


def is_inside(checkpoint: str, home: str) -> bool:
    """Whether a log's home lies inside the checkpoint, where no other query's log can be."""
    return home.startswith(checkpoint.rstrip("/") + "/")


def relative_home(checkpoint: str, home: str) -> str:
    """The checkpoint's name for its log's home: relative if it lies inside, so that both can move together."""
    return home.removeprefix(checkpoint.rstrip("/") + "/")


def absolute_home(checkpoint: str, named: str) -> str:
    """The inverse of `relative_home`."""
    return named if "://" in named or named.startswith(("/", "file:")) else f"{checkpoint.rstrip('/')}/{named}"
