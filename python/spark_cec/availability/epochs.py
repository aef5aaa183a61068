"""Epochs: what a flow would answer if it did not wait for an input that is away.

An epoch is a fork of the flow (`recovery.fork`), in a checkpoint of its own below the flow's: `epochs/<number>`. Its
output is tentative. The note `epochs/<number>.json` says whether the epoch is open. Once it is closed, its rows do not
count any more.
"""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass, replace

from spark_cec.errors import DamagedLog
from spark_cec.log.checked_json import decode_object, encode_object
from spark_cec.log.storage import Storage

EPOCHS = "epochs"
_SUFFIX = ".json"


@dataclass(frozen=True, slots=True)
class Epoch:
    """An epoch of a flow.

    `begins_after`: the flow's last batch in the epoch's past, -1 for none. `follows`: the last one with rows. `absent`:
    the channels for which it did not wait when it was opened. `closed_after`: None while it is open. Else the flow's
    output up to that batch replaces the epoch's. `wall_ms` is the time of the last change, in ms since 1970.
    `has_passed`: the flow's output up to `follows` replaces that of all epochs before this one. Else the rows of the
    one before it stay until this one has rows. `pause_ms`: how long each row waits in it; releases before did not say.
    """

    number: int
    begins_after: int
    follows: int
    absent: tuple[str, ...]
    wall_ms: int
    closed_after: int | None = None
    has_passed: bool = False
    pause_ms: int = 0

    @property
    def is_open(self) -> bool:
        """Whether the epoch's rows count."""
        return self.closed_after is None


def epoch_checkpoint(flow: str, number: int) -> str:
    """The checkpoint of an epoch of the flow whose checkpoint is at the URL `flow`."""
    return f"{flow.rstrip('/')}/{EPOCHS}/{number}"


def find_flow(place: str) -> str | None:
    """The same place of the flow, if `place` is of a directory directly inside of an epoch's checkpoint; else None."""
    found = re.fullmatch(rf"(.*)/{EPOCHS}/\d+(/[^/]+)", place)
    return None if found is None else found[1] + found[2]


def find_forked(checkpoint: str) -> str | None:
    """The checkpoint of the flow, if this one is of an epoch; else None."""
    found = re.fullmatch(rf"(.*)/{EPOCHS}/\d+/?", checkpoint)
    return None if found is None else found[1]


def newest_epoch(flow: Storage) -> Epoch | None:
    """The epoch with the highest number; None if there never was one. Errors: `DamagedLog`.

    `flow` is rooted at the flow's checkpoint, here and below.
    """
    for number in reversed(list_numbers(flow)):
        epoch = read_epoch(flow, number)
        if epoch is not None:  # else its note was deleted since the listing
            return epoch
    return None


def list_numbers(flow: Storage) -> list[int]:
    """The numbers of the epochs with a note, ascending."""
    stems = (file.name.removesuffix(_SUFFIX) for file in flow.list(EPOCHS) if file.name.endswith(_SUFFIX))
    return sorted(int(stem) for stem in stems if stem.isascii() and stem.isdigit())


def open_epoch(flow: Storage, epoch: Epoch) -> None:
    """Notes a new epoch, whose rows count from now on. Errors: `AlreadyExists`."""
    flow.create(_path(epoch.number), _encode(epoch))


def change_epoch(flow: Storage, epoch: Epoch) -> None:
    """Replaces the note of an epoch."""
    flow.replace(_path(epoch.number), _encode(epoch))


def close_epoch(flow: Storage, epoch: Epoch, after: int, wall_ms: int) -> Epoch:
    """Notes that the epoch's rows do not count any more: the flow's output up to batch `after` replaces them."""
    closed = replace(epoch, closed_after=after, wall_ms=wall_ms)
    change_epoch(flow, closed)
    return closed


def forget_epochs(flow: Storage, through: int) -> None:
    """Deletes the notes up to this number, but not the newest one: the next epoch takes the number after it."""
    for number in list_numbers(flow)[:-1]:
        if number <= through:
            flow.delete(_path(number))


def read_epoch(flow: Storage, number: int) -> Epoch | None:
    """The epoch of that number; None if there is no note. Errors: `DamagedLog`."""
    path = _path(number)
    try:
        fields, _ = decode_object(path, flow.read(path), "note of an epoch")
    except FileNotFoundError:
        return None
    try:
        closed = fields["closed_after"]
        return Epoch(
            int(fields["number"]), int(fields["begins_after"]), int(fields["follows"]),
            tuple(map(str, fields["absent"])), int(fields["wall_ms"]), None if closed is None else int(closed),
            bool(fields.get("has_passed", False)), int(fields.get("pause_ms", 0)),
        )  # fmt: skip
    except (KeyError, ValueError, TypeError) as error:
        raise DamagedLog(path, 0, f"no note of an epoch: {error!r}") from error


def _encode(epoch: Epoch) -> bytes:
    return encode_object(asdict(epoch))


def _path(number: int) -> str:
    return f"{EPOCHS}/{number}{_SUFFIX}"
