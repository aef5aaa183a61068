"""Cuts: a cut takes back the output after a batch, and excludes later output of older runs there.

`FORMAT.md`, section 3. A rollback needs cuts: the flow writes again what it wrote after the state it goes back to.
"""

from __future__ import annotations

import threading
from dataclasses import asdict, dataclass

from spark_cec.errors import DamagedLog
from spark_cec.log.checked_json import decode_object, encode_object
from spark_cec.log.storage import Storage

CUTS = "cuts"
_DIGITS = 8
_SUFFIX = ".json"


@dataclass(frozen=True, slots=True)
class Cut:
    """Takes back the output of batches after `after` (-1: all) by runs before `generation`. `wall_ms`: its time."""

    number: int
    after: int
    generation: int
    wall_ms: int

    def takes_back(self, batch: int, generation: int) -> bool:
        """Whether this cut takes back that run's output of that batch."""
        return batch > self.after and generation < self.generation


class Cuts:
    """The cuts of one log, oldest first. Cut files are numbered, so `look` needs no listing."""

    def __init__(self, storage: Storage) -> None:
        """Has no cuts before the first `look`. Raises nothing."""
        self._storage = storage
        self._lock = threading.Lock()
        self._known: tuple[Cut, ...] = ()

    def look(self) -> bool:
        """Reads new cuts, and answers whether there were any. Errors: `DamagedLog`, `NewerFormat`."""
        with self._lock:
            before = self._known
            while self._storage.exists(cut_path(len(self._known))):
                self._known += (_load_cut(self._storage, len(self._known)),)
            return self._known != before

    @property
    def known(self) -> tuple[Cut, ...]:
        """The cuts of the last `look`."""
        return self._known

    def of(self, batch: int, generation: int) -> Cut | None:
        """The newest cut that takes back a run's output of a batch; None if the output counts."""
        return next((cut for cut in reversed(self._known) if cut.takes_back(batch, generation)), None)


def read_cuts(storage: Storage) -> Cuts:
    """Reads the present cuts. Errors: `DamagedLog`, `NewerFormat`."""
    found = Cuts(storage)
    found.look()
    return found


def read_all_cuts(storage: Storage) -> Cuts:
    """As `read_cuts`, but a listing also finds gaps: `DamagedLog` if a cut is missing before another."""
    found = read_cuts(storage)
    listed = [file.name for file in storage.list(CUTS) if file.name.endswith(_SUFFIX)]
    found.look()  # Cuts from before the listing are known now, or hidden by a gap.
    missing = cut_path(len(found.known))
    if max(listed, default="") >= missing.removeprefix(f"{CUTS}/"):
        raise DamagedLog(missing, -1, f"this cut is missing, and {max(listed)} is there")
    return found


def append_cut(storage: Storage, after: int, generation: int, wall_ms: int) -> Cut:
    """Writes the next cut; if the newest cut has the same content, returns it, as after a crash.

    Errors: `AlreadyExists` if another process writes one at the same moment, `DamagedLog`, `NewerFormat`.
    """
    known = read_all_cuts(storage).known
    if known and (known[-1].after, known[-1].generation) == (after, generation):
        return known[-1]
    cut = Cut(len(known), after, generation, wall_ms)
    fields = asdict(cut)
    del fields["number"]
    storage.create(cut_path(cut.number), encode_object(fields))
    return cut


def cut_path(number: int) -> str:
    """Path of a cut below the log's home."""
    return f"{CUTS}/{number:0{_DIGITS}d}{_SUFFIX}"


def _load_cut(storage: Storage, number: int) -> Cut:
    path = cut_path(number)
    fields, _ = decode_object(path, storage.read(path), "cut")
    return Cut(number, int(fields["after"]), int(fields["generation"]), int(fields["wall_ms"]))
