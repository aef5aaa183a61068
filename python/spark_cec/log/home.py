"""The home of a log: the directory with `log.json`, `segments/` and `manifests/`."""

from __future__ import annotations

import contextlib
import errno
import json
from typing import NamedTuple

from spark_cec.errors import AlreadyExists, DamagedLog, NewerFormat
from spark_cec.ids import new_id
from spark_cec.log.borrowed import LOAN_FILE, Loan, write_loan
from spark_cec.log.bundles import has_bundles
from spark_cec.log.storage import Storage

LOG_FILE = "log.json"
FORMAT_VERSION, WITH_BUNDLES, WITH_LOAN = 1, 2, 3
"""Of a log without bundles, of one that may have them, and of one that borrows segments of another log."""


class LogFile(NamedTuple):
    """The content of `log.json`: the log's id, 32 hex digits, and its format version."""

    log_id: str
    version: int

    @property
    def borrows(self) -> bool:
        """Whether the log begins with segments of another one (`log.borrowed`)."""
        return self.version >= WITH_LOAN


def read_log_id(storage: Storage) -> str | None:
    """The id of the log at this home (32 hex digits), or None if there is no log. Never writes.

    Errors: `DamagedLog`, `NewerFormat`.
    """
    found = read_log_file(storage)
    return None if found is None else found.log_id


def join_log(storage: Storage, log_id: str | None = None) -> str:
    """The id of the log at this home; if there is no log, creates one (with `log_id`, if given)."""
    found = read_log_id(storage)
    if found is not None:
        return found
    with contextlib.suppress(AlreadyExists):
        storage.create(LOG_FILE, _encode_log_file(log_id or new_id().hex(), FORMAT_VERSION))
    begun = read_log_id(storage)
    assert begun is not None, "log.json was just created"
    return begun


def begin_fork(storage: Storage, log_id: str, loan: Loan) -> None:
    """Begins a log that goes on from segments of another one, whose id it has. Errors: `AlreadyExists`."""
    write_loan(storage, loan)
    storage.create(LOG_FILE, _encode_log_file(log_id, WITH_LOAN))


def restore_log(storage: Storage, log_id: str) -> None:
    """Rewrites a lost or damaged `log.json` with a known id."""
    version = WITH_BUNDLES if has_bundles(storage) else FORMAT_VERSION
    storage.replace(LOG_FILE, _encode_log_file(log_id, WITH_LOAN if storage.exists(LOAN_FILE) else version))


def note_bundles(storage: Storage) -> None:
    """Notes that the log may have bundles: a release that does not know them would miss their segments.

    Errors: as `read_log_id`, and `FileNotFoundError` if there is no log.
    """
    found = read_log_file(storage)
    if found is None:
        raise FileNotFoundError(errno.ENOENT, f"{storage.url} has no log", LOG_FILE)
    log_id, version = found
    if version < WITH_BUNDLES:
        storage.replace(LOG_FILE, _encode_log_file(log_id, WITH_BUNDLES))


def read_log_file(storage: Storage) -> LogFile | None:
    """The content of the log's file; None if there is no log. Errors: `DamagedLog`, `NewerFormat`."""
    try:
        raw = json.loads(storage.read(LOG_FILE))
        version, log_id = int(raw["format_version"]), str(raw["log_id"])
        bytes.fromhex(log_id)
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, TypeError) as error:
        raise DamagedLog(LOG_FILE, 0, f"cannot be read: {error}") from error
    if version > WITH_LOAN:
        raise NewerFormat(LOG_FILE, f"format version {version}")
    return LogFile(log_id, version)


def _encode_log_file(log_id: str, version: int) -> bytes:
    return json.dumps({"format_version": version, "log_id": log_id}).encode()


def is_inside(checkpoint: str, home: str) -> bool:
    """Whether a log's home lies inside the checkpoint, where no other query's log can be."""
    return home.startswith(checkpoint.rstrip("/") + "/")


def relative_home(checkpoint: str, home: str) -> str:
    """The checkpoint's name for its log's home: relative if it lies inside, so that both can move together."""
    return home.removeprefix(checkpoint.rstrip("/") + "/")


def absolute_home(checkpoint: str, named: str) -> str:
    """The inverse of `relative_home`."""
    return named if "://" in named or named.startswith(("/", "file:")) else f"{checkpoint.rstrip('/')}/{named}"
