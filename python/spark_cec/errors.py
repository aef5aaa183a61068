"""Errors, each saying what the caller must do next.

The six kinds: fix the call (`SettingsError`, `LogLocationError`, `UnsuitableCheckpoint`, `Unsupported`), give back what
is missing (`InputGone`), try again (`TransientError`), look before trying again (`CommitOutcomeUnknown`), stop because
a newer writer exists (`Fenced`), and damage (`DamagedLog`, `NewerFormat`).

Each class says by its `consequence` what a restart of the query does about the error.
"""

from __future__ import annotations

import errno
from collections.abc import Collection
from enum import Enum
from typing import ClassVar, TypeVar

_ANEW = (
    "another checkpoint; in replicas, another home of the pipeline; of any other flow, delete its folder, those of "
    "the flows that it feeds, and, of a sink among them that writes files, their directory: Spark passes over the "
    "batches that its _spark_metadata knows"
)
"""How what has read a channel begins again."""


_MENDS = {
    errno.EMFILE: "too many open files: raise `ulimit -n` for Spark's processes, and start the query again",
    errno.EFBIG: "the file may not grow: raise `ulimit -f` for Spark's processes, and start the query again",
    errno.ENOSPC: "no space is left: make room there, and start the query again",
    errno.EROFS: "the file system is read-only: mount it so that it can be written, and start the query again",
    errno.ETIMEDOUT: "the storage did not answer in time: see to it, and start the query again",
    errno.EACCES: "no permission: give the user of Spark's processes the right to read and write there",
}
_MENDS |= {errno.ENFILE: _MENDS[errno.EMFILE], errno.EDQUOT: _MENDS[errno.ENOSPC], errno.EPERM: _MENDS[errno.EACCES]}


_MOST_CAUSES = 50
_Found = TypeVar("_Found", bound=BaseException)


def find_cause(error: BaseException, kind: type[_Found]) -> _Found | None:
    """The error, or the first of its causes, that is of that class; None without one. Causes can form a cycle."""
    cause: BaseException | None = error
    for _ in range(_MOST_CAUSES):
        if cause is None or isinstance(cause, kind):
            return cause
        cause = cause.__cause__
    return None


def mend_of(error: BaseException) -> str | None:
    """What the operating system's error behind this one means, and what to do about it; None if that is not known."""
    cause = find_cause(error, OSError)
    if isinstance(cause, KeysRefused):
        return cause.mend
    return None if cause is None else _MENDS.get(cause.errno or 0)


class KeysRefused(PermissionError):
    """A store takes the keys of this query no more. Attribute: `mend`, what that means and what to do about it."""

    def __init__(self, mend: str, place: str) -> None:
        super().__init__(errno.EACCES, mend, place)
        self.mend = mend


class NoAnswer(OSError):
    """A storage has not answered for as long as a request is repeated. It may later: no file is damaged or missing."""


class Consequence(Enum):
    """What a restart does for a query that has ended with an error."""

    RETRY = "retry"
    """The restart may end well: try it, but not for ever."""
    RESTART = "restart"
    """The restart brings back what was lost, each time."""
    FIX = "fix"
    """The restart ends with the same error: fix the cause first."""


class CecError(Exception):
    """Base of all errors that Spark CEC raises on purpose. Class attribute: `consequence`; subclasses inherit it."""

    consequence: ClassVar[Consequence] = Consequence.RETRY
    _by_name: ClassVar[dict[str, type[CecError]]] = {}

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        CecError._by_name[cls.__name__] = cls


def consequence_of(kind: str) -> Consequence:
    """The consequence of the error class with the name `kind`, as the JVM knows it; `RETRY` for a name of no class."""
    return CecError._by_name.get(kind, CecError).consequence


class SettingsError(CecError):
    """A `cec.*` setting is unknown or malformed: fix the named key.

    Attributes: `key`, the full conf key; `value`, what was given.
    """

    consequence = Consequence.FIX

    def __init__(self, key: str, value: str, mend: str) -> None:
        super().__init__(f"{key}={value!r}: {mend}")
        self.key = key
        self.value = value


GONE = "the log is gone; has a file system been unmounted, or a directory deleted?"
"""Why a location cannot be used whose log was there before."""


class LogLocationError(CecError):
    """A log location cannot be used: fix the location or its permissions. Attribute: `url`."""

    consequence = Consequence.FIX

    def __init__(self, url: str, mend: str) -> None:
        super().__init__(url, mend)
        self.url = url

    def __str__(self) -> str:
        return f"log location {self.url!r}: {self.args[1]}"


class NoLogYet(LogLocationError):
    """There is no log, and none is missing: the query has begun none, or needs none."""


class AlreadyExists(CecError):
    """A file that must be created exists already. Attribute: `path`."""

    def __init__(self, path: str) -> None:
        super().__init__(f"{path!r} exists already")
        self.path = path


class UnsuitableCheckpoint(CecError):
    """The checkpoint belongs to another provider, or cannot be recovered in the wanted mode: see the message."""

    consequence = Consequence.FIX


class NoLine(UnsuitableCheckpoint):
    """The checkpoints that there are make no consistent line. Attribute: `processes`, whose they are."""

    def __init__(self, processes: Collection[str]) -> None:
        super().__init__(
            f"the checkpoints that can be read of {', '.join(sorted(processes))} make no consistent line: restore "
            f"cec/checkpoints in their folders from a copy, or begin the pipeline anew, in another home"
        )
        self.processes = processes


class Unsupported(CecError):
    """Something that this query does cannot run on Spark CEC: see the message."""

    consequence = Consequence.FIX


class InputGone(CecError):
    """Input that a recovery needs is not at its source any more: give it back, or accept a state without it."""

    consequence = Consequence.FIX


class TransientError(CecError):
    """The operation failed without a trace: try it again."""


class CommitOutcomeUnknown(CecError):
    """A commit may or may not be in the log: look for its checkpoint id before writing it again."""


class Fenced(CecError):
    """A newer run of the same query owns the log: stop."""


class DamagedLog(CecError):
    """Bytes that should be in the log are missing or fail their checksum.

    Attributes: `segment`, `offset` (bytes from its start, -1 where a whole frame is missing), `reason`.
    """

    consequence = Consequence.FIX

    def __init__(self, segment: str, offset: int, reason: str) -> None:
        place = f"{segment} at byte {offset}" if offset >= 0 else segment
        super().__init__(f"damaged log: {place}: {reason}; run `cec verify` on the checkpoint for the whole picture")
        self.segment = segment
        self.offset = offset
        self.reason = reason


class LostLog(DamagedLog):
    """A whole log is missing, although Spark has committed what it held. `segment` is its home."""

    def __init__(self, home: str) -> None:
        super().__init__(home, -1, "the log is gone")
        moved = "if it was moved, it can be looked at where it is now"
        self.args = (f"the log at {home} is gone, although Spark has committed batches: restore it; {moved}",)


class ColumnChanged(CecError):
    """A reader wants a column by a type that it was not written with."""

    consequence = Consequence.FIX

    def __init__(self, place: str, name: str, batch: int, written: str, wanted: str) -> None:
        super().__init__(
            f"{place}: column {name} was written as {written} with batch {batch}, and is wanted as {wanted}: the query "
            f"that writes it was changed. Best is to undo that, and to give what is new another name. Else a stream "
            f'reads on with .schema("{name} {written}, ...") to where the type changes, and from there with the new '
            f"one; a batch read begins behind that with startingTimestamp"
        )


class NotKept(CecError):
    """A reader wants batches of the output that `output.retainBatches`, or `output.readers`, has let go."""

    consequence = Consequence.FIX

    def __init__(self, first: int, last: int) -> None:
        super().__init__(
            f"batches {first} to {last} of the output are not kept any more (output.retainBatches of the query that "
            "wrote them, or output.readers, if this stream's reader is not named there, or another one has its name): "
            'this reader has fallen behind. Pass over them with option("failOnDataLoss", "false"), of a flow without '
            f'replicas @flow(reads={{"failOnDataLoss": "false"}}); or begin it anew ({_ANEW})'
        )


class BucketError(CecError):
    """A channel cannot be read by buckets: see the message."""

    consequence = Consequence.FIX


class OutputBegunAnew(CecError):
    """A reader has read further than the output goes, or another output: not the one that is there now."""

    consequence = Consequence.FIX

    def __init__(self, home: str, after: int, newest: int) -> None:
        there = f"ends at batch {newest}" if newest >= 0 else "has none"
        if newest >= after:
            there = "has another batch of that number now"
        super().__init__(
            f"{home}: this stream has read up to batch {after} of the output, which {there}: the query that writes it "
            f"was begun anew, or its log is an older copy. Restore the log, or begin the reader anew, too ({_ANEW})"
        )


class OutputTakenBack(CecError):
    """A reader has read output that a rollback of its query has taken back: see `spark_cec.log.output_rollbacks`."""

    consequence = Consequence.FIX

    def __init__(self, home: str, batch: int, after: int, generation: int) -> None:
        super().__init__(
            f"{home}: this stream has read up to batch {batch} of the output, of which run {generation} of the query "
            f"that writes it has taken back all after batch {after}, and writes it anew. Take back all that was "
            f"made of those batches: begin the reader anew ({_ANEW})"
        )


class NewerFormat(CecError):
    """The log was written by a newer release: read it with that. Attribute: `found`, the version or kind met."""

    consequence = Consequence.FIX

    def __init__(self, place: str, found: str) -> None:
        super().__init__(
            f"{place}: {found} is newer than this release can read; use the release that wrote it, or newer"
        )
        self.found = found


class RestartNeeded(CecError):
    """What a query has in memory is not whole any more: a restart has it again. See the message."""

    consequence = Consequence.RESTART


class CheckpointFailed(CecError):
    """A protocol has asked for a checkpoint, and it could not be taken; the message says of which flow, and why."""


class Divergence(CecError):
    """A replay has made other state than was committed. The JVM raises it."""

    consequence = Consequence.FIX


class TooLarge(CecError):
    """A row has more bytes than the JVM takes. The JVM raises it."""

    consequence = Consequence.FIX
