"""A lease on a storage without file locks: an object store, or HDFS.

A lease is an object `lease/<number>.json`. Creating the next number takes the lease, and creation is exclusive. The
holder writes its object again every `beat_s`: a beat. Only the holder's own clock and the taker's own clock count, each
for itself.

- A holder trusts its lease for `valid_s` after the begin of its last beat, unless it then saw a later number.
- A taker refuses to go on while the beats of the holder change. If none came for `silent_s`, it takes the next number.
  Then it waits for `valid_s`: the holder sees the number, or trusts its lease no longer.

So a driver that was paused and wakes up trusts its lease no longer, and nobody writes beside it before that. A holder
that ended says so in its object. A holder of this machine whose process is gone needs no wait. But if either of them
was still in the wait of a taker, the next taker has that wait: the holder before may trust its lease.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import secrets
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from spark_cec.errors import AlreadyExists, CecError, Fenced, LogLocationError, mend_of
from spark_cec.log.storage import Storage

_LOG = logging.getLogger(__name__)

DIRECTORY = "lease"


@dataclass(frozen=True, slots=True)
class Timing:
    """See the module; all in seconds. `poll_s`: between two looks of a taker. `patience_s`: how long it waits for the
    end of a holder that surely lives.
    """

    beat_s: float = 5.0
    valid_s: float = 15.0
    silent_s: float = 20.0
    poll_s: float = 1.0
    patience_s: float = 10.0

    @property
    def take_over_s(self) -> float:
        """The longest wait for the lease of a holder that is gone, with some time for the requests."""
        return self.silent_s + self.valid_s + 10.0


TIMING = Timing()


def _now() -> float:
    """Seconds of a clock that goes on while the machine sleeps."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


@dataclass(frozen=True, slots=True)
class Process:
    """A process, known by more than its number: numbers come again, and each container has its own."""

    boot: str
    namespace: int
    pid: int
    started: str

    @classmethod
    def find(cls, pid: int) -> Process | None:
        """The process with that number in this machine's present namespace; None if there is none."""
        try:
            boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
            # The name in parentheses may contain anything.
            started = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
            return cls(boot, Path("/proc/self/ns/pid").stat().st_ino, pid, started)
        except (OSError, IndexError):
            return None

    @property
    def is_gone(self) -> bool:
        """Whether it surely has ended. A process of another machine or namespace may live, or one that is hidden."""
        here = Process.find(os.getpid())
        if here is None or (here.boot, here.namespace) != (self.boot, self.namespace):
            return False
        found = Process.find(self.pid)
        return found != self if found is not None else not _has_number(self.pid)


def _has_number(pid: int) -> bool:
    """Whether some process has that number. `/proc` may hide the processes of other users (`hidepid`)."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


@dataclass(frozen=True, slots=True)
class Beat:
    """The content of a lease's object: its holder's token and process, the beat's number, and whether it ended.

    `waits`: the holder does not trust the lease yet, because the one before may.
    """

    token: str
    number: int
    is_released: bool
    host: str
    process: Process | None
    waits: bool = False

    def encode(self) -> bytes:
        """The object's bytes."""
        process = self.process
        known = [process.boot, process.namespace, process.pid, process.started] if process is not None else None
        return json.dumps({
            "token": self.token, "beat": self.number, "released": self.is_released, "host": self.host, "process": known,
            "waits": self.waits,
        }).encode()  # fmt: skip

    @classmethod
    def decode(cls, data: bytes) -> Beat:
        """The inverse of `encode`. An unreadable object counts as a holder that may live."""
        try:
            raw: dict[str, Any] = json.loads(data)
            process = Process(*raw["process"]) if raw["process"] else None
            waits = raw.get("waits") is True  # earlier releases do not say it
            return cls(str(raw["token"]), int(raw["beat"]), raw["released"] is True, str(raw["host"]), process, waits)
        except (ValueError, KeyError, TypeError):
            return cls(data.decode(errors="replace"), -1, is_released=False, host="unknown", process=None)


class ObjectLease:
    """The lease of one place, from `take` to `release`. `whose` names the query in errors."""

    def __init__(
        self,
        place: Storage,
        whose: str,
        timing: Timing = TIMING,
        clock: Callable[[], float] = _now,
        pause: Callable[[float], None] = time.sleep,
    ) -> None:
        self._place = place
        self._whose = whose
        self._timing = timing
        self._clock = clock
        self._pause = pause
        self._token = secrets.token_hex(16)
        self._number = 0
        self._beats = 0
        self._valid_until = 0.0
        self._is_lost = False
        self._failure: Exception | None = None
        self._has_warned = False
        self._waits = False
        self._over = threading.Event()
        self._turn = threading.Lock()
        self._thread: threading.Thread | None = None

    def take(self, deadline: float) -> None:
        """Takes the lease, and begins to keep it. `Fenced` if it cannot be had before `deadline` (`time.monotonic`).

        `LogLocationError` if the place's listing does not show a lease that exists.
        """
        while True:
            newest = newest_number(self._place)
            self._waits = newest > 0 and self._outlast(newest, deadline)
            began = self._clock()
            try:
                self._place.create(_path(newest + 1), self._encode(is_released=False))
            except AlreadyExists:
                self._await_listing(newest, deadline)
                continue
            if newest_number(self._place) > newest + 1:  # others have taken and released leases since the look
                self._place.delete(_path(newest + 1))
                continue
            self._number = newest + 1
            break
        self._valid_until = began + self._timing.valid_s
        self._thread = threading.Thread(target=self._keep, name="cec-lease", daemon=True)
        self._thread.start()
        if self._waits:
            self._pause(self._timing.valid_s)
            self._waits = False
            self.confirm()
        for old in _numbers(self._place):
            if old < self._number:
                self._place.delete(_path(old))

    @property
    def is_lost(self) -> bool:
        """Whether a beat has seen that another process took the lease. Asks nobody."""
        return self._is_lost

    @property
    def is_sure(self) -> bool:
        """Whether no other process can have the lease. Asks nobody, so it answers at once."""
        return not self._is_lost and self._clock() < self._valid_until

    def confirm(self) -> None:
        """Raises `Fenced` if this process cannot be sure that it has the lease. If a beat is late, makes up for it."""
        if self.is_sure:
            return
        self._try_to_beat()
        if not self.is_sure:
            why = "" if self._failure is None else f" ({mend_of(self._failure) or self._failure})"
            raise Fenced(
                f"{self._whose} was away from {self._place.url} for longer than {self._timing.valid_s:g} s{why}, and "
                f"another run may have begun meanwhile: start it again"
            ) from self._failure

    def release(self) -> None:
        """Ends the lease, and tells the next taker so; without an answer of the store, the next taker has to wait."""
        self._over.set()
        if self._thread is not None:
            self._thread.join(self._timing.beat_s)
        with self._turn, contextlib.suppress(OSError, CecError):
            if self._clock() < self._valid_until and not self._is_lost:
                self._valid_until = 0.0
                self._place.replace(_path(self._number), self._encode(is_released=True))

    def beat(self) -> None:
        """Writes the object again, and looks whether another process has taken the lease."""
        with self._turn:
            if self._over.is_set() or self._is_lost:
                return
            began = self._clock()
            self._beats += 1
            self._place.replace(_path(self._number), self._encode(is_released=False))
            # The next number alone would not do: its holder may be gone too, and a later one has deleted its object.
            if newest_number(self._place) > self._number:
                self._is_lost = True
                self._place.delete(_path(self._number))
            else:
                self._valid_until = began + self._timing.valid_s

    def _await_listing(self, newest: int, deadline: float) -> None:
        """Waits a moment if the listing does not show the number after `newest`, which exists.

        Raises `LogLocationError` after the deadline: without listings of the present nobody knows who has the lease.
        """
        if newest_number(self._place) > newest:
            return
        if time.monotonic() > deadline:
            raise LogLocationError(
                self._place.url,
                f"its listing does not show {_path(newest + 1)}, which exists: use a store whose listings show every "
                f"object at once",
            )
        self._pause(self._timing.poll_s)

    def _outlast(self, number: int, deadline: float) -> bool:
        """Waits until the holder of a number is gone; answers whether it, or the one before, may trust a lease still.
        """
        known, since = None, self._clock()
        while True:
            found = _read(self._place, number)
            if found is None or newest_number(self._place) > number:
                return False
            if found.is_released or (found.process is not None and found.process.is_gone):
                return found.waits
            if found != known:
                if known is not None:  # it lives, but it may be about to end
                    deadline = min(deadline, time.monotonic() + self._timing.patience_s)
                known, since = found, self._clock()
            elif self._clock() - since >= self._timing.silent_s:
                return True
            if time.monotonic() > deadline:
                holder = f"on {found.host}" if found.process is None else f"process {found.process.pid} on {found.host}"
                raise Fenced(
                    f"{self._whose} is running already (agent {holder}): stop that run first; a query has one run at a "
                    f"time"
                )
            self._pause(self._timing.poll_s)

    def _try_to_beat(self) -> None:
        """Beats. Notes any error, because a thread that ended with it would leave the lease to another run."""
        try:
            self.beat()
            self._failure = None
        except Exception as error:
            self._failure = error
            if not isinstance(error, OSError) and not self._has_warned:
                self._has_warned = True
                _LOG.warning("%s: a beat of its lease failed, and is tried again: %s", self._whose, error)

    def _keep(self) -> None:
        while not self._over.wait(self._timing.beat_s):
            self._try_to_beat()  # if it fails, the next beat, or `confirm`, tries again
            if self._is_lost:
                return

    def _encode(self, *, is_released: bool) -> bytes:
        here = Process.find(os.getpid())
        return Beat(self._token, self._beats, is_released, socket.gethostname(), here, self._waits).encode()


def newest_number(place: Storage) -> int:
    """The number of the newest lease of a place, 0 if it never had one."""
    return max(_numbers(place), default=0)


def is_taken(place: Storage, timing: Timing = TIMING) -> bool:
    """Whether a process has the lease of a place. Waits for a beat, unless the newest holder has ended.

    If that one ended in the wait of a taker, waits until the holder before it trusts its lease no longer.
    """
    number, since, known = newest_number(place), _now(), None
    while number:
        found = _read(place, number)
        if found is None or found.is_released or (found.process is not None and found.process.is_gone):
            if found is not None and found.waits:
                time.sleep(timing.valid_s)
            return newest_number(place) != number
        if known is not None and found != known:
            return True
        known = found
        if _now() - since >= timing.silent_s:
            return False
        time.sleep(timing.poll_s)
    return False


def _numbers(place: Storage) -> list[int]:
    names = (each.name.removesuffix(".json") for each in place.list(DIRECTORY))
    return sorted(int(name) for name in names if name.isdecimal())


def _read(place: Storage, number: int) -> Beat | None:
    try:
        return Beat.decode(place.read(_path(number)))
    except FileNotFoundError:
        return None


def _path(number: int) -> str:
    return f"{DIRECTORY}/{number:010d}.json"
