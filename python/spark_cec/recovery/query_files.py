"""The `cec` directory of a checkpoint: every file that Spark CEC keeps there of a query, but its log.

Each file is a JSON object and is replaced in one step. This module alone reads and writes the notes below.

| file | says | written by | read by |
|---|---|---|---|
| `query.json` | where the log is, its id, the newest run, what was decided | a start | stores, `cec`, the next start |
| `session.json` | the session settings that batches ran with | a start | a replay |
| `fallback.json` | begin from an older version, a frame is lost | `cec repair` | the next start |
| `rollback.json` | a rollback is under way | `cec rollback`, a pipeline | a start, which it refuses |
| `carried.json` | the version with which the log begins | `cec import`, `rescale` | `cec repair`, `cec rollback` |
| `left.json` | the query goes on in another checkpoint | `cec export`, `rescale` | a start, which it refuses |
| `flush.json` | a request to write what is dirty | `cec flush` | the query |
| `flushed.json` | the answer to it | the query | `cec flush` |
| `replaying.json` | how far a replay is | a replay | nobody: for people |
| `replay.json` | release 0.1 has cut Spark's logs | release 0.1 | a start, which it may refuse |

Beside them are `generations/` (`recovery.generations`), `recoveries/` (`recovery.report`), and `lock` (`agent.lease`).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Generic, TypeVar

from spark_cec.errors import UnsuitableCheckpoint
from spark_cec.log.storage import Storage
from spark_cec.settings import PREFIX

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Note(Generic[T]):
    """A file of the directory. `parse` makes a value of its fields; `mend`: what to do if the file cannot be read."""

    name: str
    parse: Callable[[Mapping[str, Any]], T]
    mend: str = "restore it from a copy of the checkpoint"

    def is_in(self, own: Storage) -> bool:
        """Whether the file is there; `own` is rooted at the `cec` directory, here and below."""
        return own.exists(self.name)

    def read(self, own: Storage, mend: str | None = None) -> T | None:
        """The file's value; None if there is no such file. `UnsuitableCheckpoint`, with the mend, if unreadable."""
        if not own.exists(self.name):
            return None
        try:
            return self.parse(json.loads(own.read(self.name)))
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise UnsuitableCheckpoint(
                f"{own.url.rstrip('/')}/{self.name} cannot be read ({error}): {mend or self.mend}"
            ) from error

    def read_if_sound(self, own: Storage) -> T | None:
        """As `read`; None, too, if the file cannot be read."""
        try:
            return self.read(own)
        except (UnsuitableCheckpoint, OSError):
            return None

    def write(self, own: Storage, fields: Mapping[str, Any]) -> None:
        """Replaces the file, in one step."""
        own.replace(self.name, json.dumps(fields, indent=1).encode())

    def delete(self, own: Storage) -> None:
        """Removes the file; it may be missing."""
        own.delete(self.name)


@dataclass(frozen=True, slots=True)
class Fallback:
    """What `cec repair` has decided, for the next start to do.

    `version`: w. `committed_batch`: V. `generation`: the newest run that was known then; the run that falls back is a
    newer one.
    """

    version: int
    committed_batch: int
    generation: int


@dataclass(frozen=True, slots=True)
class Rollback:
    """To the end of `batch`, -1: to the beginning; by the run `generation`, which owns what comes after."""

    batch: int
    generation: int


@dataclass(frozen=True, slots=True)
class Flushed:
    """The answer to a request. `version`: all is written up to there. `failed`: a line for each store that is not."""

    request: str
    version: int
    failed: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ReplayProgress:
    """A replay under way: of batches `first` to `last`, in run `generation`; `done` is the newest that has run."""

    generation: int
    first: int
    last: int
    done: int

    @property
    def over(self) -> bool:
        """Whether it has come to its end."""
        return self.done >= self.last


def _query(fields: Mapping[str, Any]) -> dict[str, Any]:
    bytes.fromhex(fields["log_id"])
    str(fields["log_home"])
    return dict(fields)


def _progress(fields: Mapping[str, Any]) -> ReplayProgress:
    generation, first, last, done = (int(fields[name]) for name in ("generation", "first", "last", "done"))
    return ReplayProgress(generation, first, last, done)


QUERY = Note(
    "query.json",
    _query,
    "restore it from a copy of the checkpoint; or, where the log lies inside the checkpoint, delete it, and the next "
    "start of the query writes it anew",
)
FALLBACK = Note(
    "fallback.json",
    lambda fields: Fallback(int(fields["version"]), int(fields["committed_batch"]), int(fields["generation"])),
    "delete it and run `cec repair` on the checkpoint again",
)
ROLLBACK = Note("rollback.json", lambda fields: Rollback(int(fields["batch"]), int(fields["generation"])))
CARRIED = Note(
    "carried.json",
    lambda fields: int(fields["version"]),
    'it has the version to which the state was carried, as {"version": 13}; restore it from a copy',
)
LEFT = Note("left.json", lambda fields: str(fields["carried_to"]))
FLUSH = Note("flush.json", lambda fields: str(fields["request"]))
FLUSHED = Note(
    "flushed.json", lambda fields: Flushed(str(fields["request"]), int(fields["version"]), tuple(fields["failed"]))
)
REPLAYING = Note("replaying.json", _progress)
REWIND = Note("replay.json", lambda fields: int(fields["committed_batch"]))

SESSION_FILE = "session.json"
"""It has a checksum, and is read by `recovery.session_settings`."""

PIPELINE_FILE = "pipeline.json"
"""The home of a pipeline has this; `query.json` is in the checkpoints of its flows."""


def save_fallback(own: Storage, fallback: Fallback) -> None:
    """Makes it durable: the next start obeys it."""
    FALLBACK.write(own, asdict(fallback))


def save_carried(own: Storage, version: int) -> None:
    """Records that the log begins with `version`, to which the state was carried from another checkpoint."""
    CARRIED.write(own, {"version": version})


def read_carried(own: Storage) -> int:
    """The version with which the log begins, 0 if with the query's first. `UnsuitableCheckpoint` if that is damaged."""
    return CARRIED.read(own) or 0


def mark_as_left(own: Storage, target: str) -> None:
    """Records where the query goes on."""
    LEFT.write(own, {"carried_to": target})


def is_under_protocol(query: Mapping[str, Any] | None) -> bool:
    """Whether a query (`query.json`) is a flow whose stores write at the checkpoints of a pipeline's protocol."""
    return query is not None and PREFIX + "protocol" in (query.get("settings_conf") or {})
