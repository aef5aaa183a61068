"""Cuts: the output behind a batch is taken back, and what an older run still publishes there does not count.

`FORMAT.md`, section 3. A rollback needs them: what a flow had written since the state it goes back to it writes again.
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
    """Output of batches behind `after` by runs before `generation` is taken back; -1: all of it. `wall_ms`: when."""

    number: int
    after: int
    generation: int
    wall_ms: int

    def takes_back(self, batch: int, generation: int) -> bool:
        """Whether it concerns what that run has written with that batch."""
        return batch > self.after and generation < self.generation


class Cuts:
    """The cuts of one log, oldest first, followed without a listing: each has the next number."""

    def __init__(self, storage: Storage) -> None:
        """Knows none until it looks. Raises nothing."""
        self._storage = storage
        self._lock = threading.Lock()
        self._known: tuple[Cut, ...] = ()

    def look(self) -> bool:
        """Whether there are more than at the last look. Errors: `DamagedLog`, `NewerFormat`."""
        with self._lock:
            before = self._known
            while self._storage.exists(cut_path(len(self._known))):
                self._known += (_load(self._storage, len(self._known)),)
            return self._known != before

    @property
    def known(self) -> tuple[Cut, ...]:
        """Those of the last look."""
        return self._known

    def of(self, batch: int, generation: int) -> Cut | None:
        """The newest cut that takes back what a run has written with a batch; None if it counts."""
        return next((cut for cut in reversed(self._known) if cut.takes_back(batch, generation)), None)


def cuts_of(storage: Storage) -> Cuts:
    """The cuts that there are now. Errors: `DamagedLog`, `NewerFormat`."""
    found = Cuts(storage)
    found.look()
    return found


def all_cuts_of(storage: Storage) -> Cuts:
    """As `cuts_of`, and `DamagedLog` also where one is missing before another: takes a listing."""
    found = cuts_of(storage)
    listed = [file.name for file in storage.list(CUTS) if file.name.endswith(_SUFFIX)]
    found.look()  # what was made before the listing is known now, or hidden by a gap
    missing = cut_path(len(found.known))
    if max(listed, default="") >= missing.removeprefix(f"{CUTS}/"):
        raise DamagedLog(missing, -1, f"this cut is missing, and {max(listed)} is there")
    return found


def append_cut(storage: Storage, after: int, generation: int, wall_ms: int) -> Cut:
    """The next cut; the newest one if that says the same, as after a crash of who made it.

    Errors: `AlreadyExists` if another one is made at this moment, `DamagedLog`, `NewerFormat`.
    """
    known = all_cuts_of(storage).known
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


def _load(storage: Storage, number: int) -> Cut:
    path = cut_path(number)
    fields, _ = decode_object(path, storage.read(path), "cut")
    return Cut(number, int(fields["after"]), int(fields["generation"]), int(fields["wall_ms"]))
