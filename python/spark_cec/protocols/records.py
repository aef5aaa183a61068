"""The checkpoints that a protocol has taken of a flow, each a small file `<checkpoint>/cec/checkpoints/<number>.json`.

The flow's log has the state, in the commit frames of that version, and the messages, in its manifests. Spark's offset
log has the offsets. The file says that all of them are durable, and has the data that the protocol adds.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field

from spark_cec.errors import DamagedLog
from spark_cec.log.checked_json import decode_object, encode_object
from spark_cec.log.storage import Storage
from spark_cec.protocols.messages import Checkpoint, Piggyback, Process

_LOG = logging.getLogger(__name__)

DIRECTORY = "checkpoints"
_DIGITS = 10
_SUFFIX = ".json"


@dataclass(frozen=True, slots=True)
class Record:
    """A checkpoint after batch `batch` of its flow (-1: the beginning), with the state of its machine.

    `wall_ms`: when it became durable, since the epoch. `took_ms`: the time from its due moment until then.
    """

    checkpoint: Checkpoint
    batch: int = -1
    machine: Piggyback | None = None
    wall_ms: int = 0
    took_ms: float = 0.0


@dataclass(slots=True)
class Records:
    """The checkpoints of one flow, oldest first.

    The first one is the beginning, or the oldest that a line can still need.
    """

    process: Process
    _own: Storage
    known: list[Record] = field(default_factory=list)

    @property
    def newest(self) -> Record:
        """The newest checkpoint."""
        return self.known[-1]

    def add(self, record: Record) -> None:
        """Writes a checkpoint; it is durable when this returns."""
        self._own.replace(_path(record.checkpoint.number), encode_object(_fields(record)))
        self.known.append(record)

    def forget_before(self, number: int) -> None:
        """Deletes the checkpoints before `number`: no line needs them again."""
        for record in [each for each in self.known if each.checkpoint.number < number]:
            if not record.checkpoint.is_beginning:
                self._own.delete(_path(record.checkpoint.number))
            self.known.remove(record)

    def forget_after(self, number: int) -> list[Record]:
        """Deletes the checkpoints after `number`, unreadable ones too; answers the readable ones.

        A rollback has abandoned their history.
        """
        for later in sorted(_numbers(self._own), reverse=True):
            if later > number:
                self._own.delete(_path(later))
        gone = [each for each in self.known if each.checkpoint.number > number]
        self.known = [each for each in self.known if each.checkpoint.number <= number]
        return gone


def read_records(own: Storage, process: Process, inputs: Collection[Process]) -> Records:
    """Reads the checkpoints of a flow. `own` is rooted at the flow's `cec` directory.

    Leaves an unreadable checkpoint out, because a line can have an older one. The beginning counts until a checkpoint
    was deleted. Raises `DamagedLog` if the beginning does not count and no checkpoint is readable.
    """
    found: list[Record] = []
    numbers = sorted(_numbers(own))
    for number in numbers:
        try:
            fields, _ = decode_object(_path(number), own.read(_path(number)), "checkpoint of a protocol")
            found.append(_record(process, fields))
        except FileNotFoundError:  # a running flow has deleted it meanwhile
            continue
        except DamagedLog as damage:
            _LOG.warning("%s/%s: %s; an older checkpoint is used", own.url, _path(number), damage)
    if numbers and numbers[0] > 1:
        if not found and sorted(_numbers(own)) != numbers:
            return read_records(own, process, inputs)  # a running flow has deleted all of them meanwhile
        if not found:
            raise DamagedLog(
                f"{own.url}/{DIRECTORY}", -1,
                f"none of the {len(numbers)} checkpoints of flow {process} can be read: restore one from a copy, or "
                f"begin the pipeline anew, in another home",
            )  # fmt: skip
    else:
        beginning = Checkpoint(process, 0, 0, dict.fromkeys(inputs, 0), round=0)
        found.insert(0, Record(beginning))
    return Records(process, own, found)


def _numbers(own: Storage) -> list[int]:
    stems = [file.name.removesuffix(_SUFFIX) for file in own.list(DIRECTORY) if file.name.endswith(_SUFFIX)]
    return [int(stem) for stem in stems if len(stem) == _DIGITS and stem.isascii() and stem.isdigit()]


def _fields(record: Record) -> Mapping[str, object]:
    at = record.checkpoint
    return {
        "number": at.number, "batch": record.batch, "sent": at.sent, "received": dict(at.received),
        "forced": at.forced, "round": at.round, "machine": record.machine, "wall_ms": record.wall_ms,
        "took_ms": round(record.took_ms, 3),
    }  # fmt: skip


def _record(process: Process, fields: Mapping[str, object]) -> Record:
    at = Checkpoint(
        process, fields["number"], fields["sent"], fields["received"], fields["forced"], fields["round"],  # type: ignore[arg-type]
    )  # fmt: skip
    return Record(at, fields["batch"], fields["machine"], fields["wall_ms"], fields["took_ms"])  # type: ignore[arg-type]


def _path(number: int) -> str:
    return f"{DIRECTORY}/{number:0{_DIGITS}d}{_SUFFIX}"


def records_in(
    home: str, inputs: Mapping[Process, Collection[Process]], open_at: Callable[[str], Storage]
) -> dict[Process, Records]:
    """Reads the checkpoints of all flows that take part, as `read_records`. `open_at` opens the storage at a URL."""
    return {name: read_records(open_at(f"{home}/flows/{name}/cec"), name, read) for name, read in inputs.items()}


def checkpoints_of(records: Mapping[Process, Records]) -> dict[Process, Sequence[Checkpoint]]:
    """The checkpoints in the form that the search for a line takes."""
    return {name: [each.checkpoint for each in own.known] for name, own in records.items()}
