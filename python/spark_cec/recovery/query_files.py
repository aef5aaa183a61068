"""The `cec` directory of a checkpoint: every file that Spark CEC keeps for a query, except its log.

Each file is a JSON object, and a write replaces it in one step. Only this module reads and writes these files, except
`session.json` (`recovery.session_settings`).

| file | content | written by | read by |
|---|---|---|---|
| `query.json` | where the log is, its id, the newest run, the decisions | a start | stores, `cec`, the next start |
| `session.json` | the session settings of earlier batches | a start | a replay |
| `fallback.json` | begin from an older version, a frame is lost | `cec repair` | the next start |
| `rollback.json` | a rollback is under way | `cec rollback`, a pipeline | a start, which it refuses |
| `carried.json` | the first version of the log | `cec import`, `rescale` | `cec repair`, `cec rollback` |
| `left.json` | the query continues in another checkpoint | `cec export`, `rescale` | a start, which it refuses |
| `flush.json` | a request to write the dirty windows | `cec flush` | the query |
| `flushed.json` | the answer to the request | the query | `cec flush` |
| `replaying.json` | the progress of a replay | a replay | people, `cec inspect` |
| `replay.json` | release 0.1 has cut Spark's logs | release 0.1 | a start, which it may refuse |

The directory also has `generations/` (`recovery.generations`), `recoveries/` (`recovery.report`) and `lock`
(`agent.lease`).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Generic, TypeVar

from spark_cec.errors import AlreadyExists, UnsuitableCheckpoint
from spark_cec.log.storage import Storage
from spark_cec.settings import PREFIX

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Note(Generic[T]):
    """A file of the directory. `parse` turns its fields into a value. `mend` tells the user how to repair the file."""

    name: str
    parse: Callable[[Mapping[str, Any]], T]
    mend: str = "restore it from a copy of the checkpoint"

    def is_in(self, own: Storage) -> bool:
        """Whether the file exists; here and below, `own` is rooted at the `cec` directory."""
        return own.exists(self.name)

    def read(self, own: Storage, mend: str | None = None) -> T | None:
        """The file's value; None if the file is missing. `UnsuitableCheckpoint`, with the mend, if it is unreadable."""
        try:
            data = own.read(self.name)
        except FileNotFoundError:
            return None
        try:
            return self.parse(json.loads(data))
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise UnsuitableCheckpoint(
                f"{own.url.rstrip('/')}/{self.name} cannot be read ({error}): {mend or self.mend}"
            ) from error

    def read_if_sound(self, own: Storage) -> T | None:
        """As `read`, but None if the file is unreadable."""
        try:
            return self.read(own)
        except (UnsuitableCheckpoint, OSError):
            return None

    def write(self, own: Storage, fields: Mapping[str, Any]) -> None:
        """Replaces the file in one step."""
        own.replace(self.name, json.dumps(fields, indent=1).encode())

    def create(self, own: Storage, fields: Mapping[str, Any]) -> bool:
        """Writes the file, if there is none; answers whether this call wrote it."""
        try:
            own.create(self.name, json.dumps(fields, indent=1).encode())
        except AlreadyExists:
            return False
        return True

    def delete(self, own: Storage) -> None:
        """Deletes the file, if it exists."""
        own.delete(self.name)


@dataclass(frozen=True, slots=True)
class Fallback:
    """The fallback that `cec repair` has decided, for the next start to carry out.

    `version` is w, and `committed_batch` is V. `generation` is the newest run at the time of the decision; a newer run
    carries out the fallback.
    """

    version: int
    committed_batch: int
    generation: int


@dataclass(frozen=True, slots=True)
class Rollback:
    """A rollback to the end of `batch` (-1: to the beginning). The run `generation` owns all later versions."""

    batch: int
    generation: int


@dataclass(frozen=True, slots=True)
class Flushed:
    """The answer to a flush request: all is written up to `version`. `failed` has a line for each store with a failure.
    """

    request: str
    version: int
    failed: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ReplayProgress:
    """The progress of a replay of batches `first` to `last` in run `generation`; `done` is the newest replayed batch.
    """

    generation: int
    first: int
    last: int
    done: int

    @property
    def over(self) -> bool:
        """Whether the replay has ended."""
        return self.done >= self.last


def _parse_query(fields: Mapping[str, Any]) -> dict[str, Any]:
    bytes.fromhex(fields["log_id"])
    str(fields["log_home"])
    return dict(fields)


def _parse_progress(fields: Mapping[str, Any]) -> ReplayProgress:
    generation, first, last, done = (int(fields[name]) for name in ("generation", "first", "last", "done"))
    return ReplayProgress(generation, first, last, done)


QUERY = Note(
    "query.json",
    _parse_query,
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
REPLAYING = Note("replaying.json", _parse_progress)
REWIND = Note("replay.json", lambda fields: int(fields["committed_batch"]))

SESSION_FILE = "session.json"
"""A file with a checksum; `recovery.session_settings` reads and writes it."""

PIPELINE_FILE = "pipeline.json"
"""A file in the home of a pipeline. Its flows' checkpoints have `query.json`."""


def save_fallback(own: Storage, fallback: Fallback) -> None:
    """Makes the fallback durable, for the next start to carry out."""
    FALLBACK.write(own, asdict(fallback))


def save_carried(own: Storage, version: int) -> None:
    """Records `version` as the first of the log: the state was migrated to it from another checkpoint."""
    CARRIED.write(own, {"version": version})


def read_carried(own: Storage) -> int:
    """The first version of a migrated log, 0 for another log. `UnsuitableCheckpoint` if the file is damaged."""
    return CARRIED.read(own) or 0


def mark_migrated(own: Storage, target: str) -> None:
    """Records that the query continues in the checkpoint `target`."""
    LEFT.write(own, {"carried_to": target})


def defers(query: Mapping[str, Any]) -> bool:
    """Whether some operator of `query` (`query.json`) may leave windows dirty at the end of a batch."""
    return query.get("mode") not in ("eager", "stateless")


def is_under_protocol(query: Mapping[str, Any] | None) -> bool:
    """Whether `query` (`query.json`) is a flow whose stores write at the checkpoints of a pipeline's protocol."""
    return query is not None and PREFIX + "protocol" in (query.get("settings_conf") or {})
