"""The logs that this agent has open, each with its catalog, its writer and the ledgers of its stores."""

from __future__ import annotations

import hashlib
import math
import os
import socket
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from spark_cec.adapters.fsspec_storage import open_storage
from spark_cec.adapters.rocksdict_index import open_index
from spark_cec.agent.private import is_writable_by_others, private_directory
from spark_cec.checkpoint.commit import StoreLedgers
from spark_cec.errors import CecError, Fenced, LogLocationError, SettingsError
from spark_cec.ids import new_writer_id
from spark_cec.log.catalog import Catalog
from spark_cec.log.home import join_log, read_log_id
from spark_cec.log.manifest import Published
from spark_cec.log.storage import Storage
from spark_cec.log.trim import Summaries
from spark_cec.log.writer import SegmentWriter
from spark_cec.settings import PREFIX, Settings, is_relative

IDLE_S = 600.0
"""How long a log that nobody keeps open stays open after its last use."""


class UnknownLog(CecError):
    """This process has not opened the log, or has closed it: call `open_log`, and make the call again."""

    def __init__(self, home: str) -> None:
        super().__init__(f"log {home!r} is not open in this agent")


class OpenLog:
    """One log: storage, catalog, and, from the first write on, a writer of its own segments.

    `kept`: the JVM has it open, and will say when it has not. `users`: calls under way that have it. `retired`: to be
    closed when the last of them is done. `for_readers`: none but readers have asked for it, so `settings` are theirs,
    and say nothing of what the log is to keep. All four are in the care of `OpenLogs`.
    """

    def __init__(self, home: str, settings: Settings, storage: Storage, log_id: str) -> None:
        self.home = home
        self.settings = settings
        self.storage = storage
        self.log_id = log_id
        self.catalog = Catalog(self.storage, open_index(index_path(settings, home, self.log_id), self.log_id))
        self.ledgers = StoreLedgers()
        self.summaries = Summaries()
        self.published = Published(storage)
        self.kept = False
        self.users = 0
        self.retired = False
        self.for_readers = False
        self.used_at = 0.0
        self.looked_at = -math.inf
        self._writer: SegmentWriter | None = None
        try:
            self.catalog.refresh()
        except BaseException:
            self.close()
            raise

    @property
    def writer(self) -> SegmentWriter:
        """The writer, begun when first asked for."""
        if self._writer is None:
            now_ms = int(time.time() * 1000)
            self._writer = SegmentWriter(
                self.storage,
                self.log_id,
                new_writer_id(now_ms),
                lambda: int(time.time() * 1000),
                self.settings.segment_bytes,
            )
        return self._writer

    def leave_idle_segment(self) -> None:
        """Closes the file of a segment that nothing was appended to for long."""
        if self._writer is not None:
            self._writer.leave_if_idle()

    def close(self) -> None:
        """Closes writer and index."""
        if self._writer is not None:
            self._writer.close()
        self.catalog.index.close()


def index_path(settings: Settings, home: str, log_id: str) -> str:
    """Where the index of a log is kept on this machine: a cache, which may be deleted at any moment.

    A copy of a log has an index of its own.
    """
    return str(index_root(settings) / f"{log_id}-{hashlib.sha256(home.encode()).hexdigest()[:8]}")


def index_root(settings: Settings) -> Path:
    """The directory of all indices on this machine, made if it is not there; `SettingsError` where it cannot be.

    It is this user's alone: in a place that others can write to, it is a private directory within.
    """
    given = settings.index_path
    place = Path(given or tempfile.gettempdir())
    try:
        if given:
            place.mkdir(mode=0o700, parents=True, exist_ok=True)
            if not is_writable_by_others(place):
                return place
        return private_directory(place / f"spark-cec-index-{os.getuid()}")
    except OSError as error:
        why = error.strerror or str(error)
        mend = f"the directory cannot be made ({why}): give one that can be written on each machine"
        raise SettingsError(f"{PREFIX}index.path", str(place), mend) from error


def cec_directory(checkpoint: str) -> Storage:
    """The checkpoint's own `cec` directory, which holds all but the log itself."""
    return open_storage(f"{checkpoint.rstrip('/')}/cec")


def home_of(checkpoint: str, settings: Settings, sink_path: str | None) -> str:
    """The home of a query's log: the sink's `path`, or one of its own under `cec.log.path`, or in the checkpoint.

    `SettingsError` for a relative `path`: each process has a working directory of its own.
    """
    if sink_path:
        if is_relative(sink_path):
            raise SettingsError("the sink's path", sink_path, "give an absolute path, or a URL")
        return sink_path.rstrip("/") or "/"
    if settings.log_path:
        return f"{settings.log_path.rstrip('/')}/{hashlib.sha256(checkpoint.encode()).hexdigest()[:16]}"
    return f"{checkpoint.rstrip('/')}/cec/log"


class OpenLogs:
    """All open logs of this process, by home; a home is one, however it is written.

    A log is closed when the JVM says so, or, where it was opened only to be read or planned with, when nobody has used
    it for `IDLE_S`; never under a call that has it. One log that cannot be opened, or takes long, concerns no other.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._logs: dict[str, OpenLog] = {}
        self._fenced: dict[str, tuple[str, str]] = {}
        self._lock = threading.Lock()
        # Whoever opens a log, or looks whether it is still there, has the turn of its home: storage may be slow.
        self._turns: dict[str, threading.Lock] = {}
        self._places: dict[str, str] = {}
        self._clock = clock
        self._this_call = threading.local()

    @contextmanager
    def serving(self) -> Iterator[None]:
        """Around one call: the logs that it asks for stay open until it is done."""
        lent: list[OpenLog] = []
        self._this_call.lent = lent
        try:
            yield
        finally:
            self._this_call.lent = None
            with self._lock:
                for log in lent:
                    log.users -= 1
                    self._close_if_over(log)

    def keep(self, home: str) -> None:
        """The log stays open until `close_log`."""
        place = self._place(home)
        with self._lock:
            log = self._logs.get(place)
            if log is not None:
                log.kept = True

    def close_log(self, home: str) -> bool:
        """Closes the log and forgets it, as soon as no call has it any more; whether it was open."""
        place = self._place(home)
        with self._lock:
            log = self._logs.pop(place, None)
            if log is not None:
                self._retire(log)
            return log is not None

    def fence(self, checkpoint: str, home: str | None, reason: str) -> None:
        """From now on every call for this checkpoint or home fails: their query has lost its lease."""
        with self._lock:
            self._fenced.update({place: (checkpoint, reason) for place in (checkpoint, home) if place})

    def unfence(self, checkpoint: str) -> None:
        """The lease is back, or a later run has it."""
        with self._lock:
            self._fenced = {place: lost for place, lost in self._fenced.items() if lost[0] != checkpoint}

    def refuse_fenced(self, place: str | None) -> None:
        """`Fenced` if the checkpoint or home is."""
        if place in self._fenced:
            raise Fenced(self._fenced[place][1])

    def get(self, home: str, settings: Settings, log_id: str | None = None) -> OpenLog:
        """The log at `home`, opened (and its index caught up) when first asked for.

        With a `log_id` it must be there and have that id, else `LogLocationError`; without one it is begun if there is
        none.
        """
        with self._turn(home) as place:
            log = self._still_there(home, place)
            if log is None:
                storage = open_storage(home)
                found = join_log(storage) if log_id is None else read_log_id(storage)
                if found is None or log_id not in (None, found):
                    raise _not_shared(home, log_id, found)
                log = self._open(place, settings, storage, found)
            elif log_id not in (None, log.log_id):
                raise _not_shared(home, log_id, log.log_id)
            log.settings, log.for_readers = settings, False
            return log

    def existing(self, home: str, settings: Settings, believed_s: float = 0.0) -> OpenLog | None:
        """The log at `home` for reading, or None if there is none; never begins one.

        One that was there `believed_s` ago is taken to be there.
        """
        with self._turn(home) as place:
            log = self._still_there(home, place, believed_s)
            if log is None:
                storage = open_storage(home)
                log_id = read_log_id(storage)
                if log_id is None:
                    return None
                log = self._open(place, settings, storage, log_id)
                log.for_readers = True
            return log

    def tidy(self) -> None:
        """What is to be done now and then, without a call: closes what has been idle for long."""
        with self._lock:
            self._retire_idle()
            for log in self._logs.values():
                log.leave_idle_segment()

    def _retire_idle(self) -> None:
        now = self._clock()
        for idle in [log for log in self._logs.values() if not log.kept and now - log.used_at > IDLE_S]:
            self._retire(self._logs.pop(idle.home))

    @contextmanager
    def _turn(self, home: str) -> Iterator[str]:
        """Where the log at `home` is, and nobody else opens it meanwhile."""
        place = self._place(home)
        with self._lock:
            turn = self._turns.setdefault(place, threading.Lock())
        with turn:
            yield place

    def _place(self, home: str) -> str:
        """`place_of`, worked out once: every append asks."""
        place = self._places.get(home)
        if place is None:
            place = self._places[home] = place_of(home)
        return place

    def _open(self, place: str, settings: Settings, storage: Storage, log_id: str) -> OpenLog:
        """In the turn of its home, opened and lent."""
        log = OpenLog(place, settings, storage, log_id)
        with self._lock:
            self._retire_idle()
            self._logs[place] = log
            return self._lent(log)

    def _lent(self, log: OpenLog) -> OpenLog:
        """With the lock: it stays open until the present call is done."""
        log.used_at = self._clock()
        lent: list[OpenLog] | None = getattr(self._this_call, "lent", None)
        if lent is not None:
            log.users += 1
            lent.append(log)
        return log

    def _retire(self, log: OpenLog) -> None:
        log.retired = True
        self._close_if_over(log)

    def _close_if_over(self, log: OpenLog) -> None:
        if log.retired and not log.users:
            log.close()

    def _still_there(self, home: str, place: str, believed_s: float = 0.0) -> OpenLog | None:
        """The open log at `home`, lent, unless it was removed or another one was begun in its place since."""
        self.refuse_fenced(home)
        with self._lock:
            log = self._logs.get(place)
            if log is None:
                return None
            self._lent(log)
        now = self._clock()
        if now - log.looked_at < believed_s:
            return log
        if read_log_id(log.storage) == log.log_id:
            log.looked_at = now
            return log
        with self._lock:
            if self._logs.get(place) is log:
                self._retire(self._logs.pop(place))
        return None

    def get_known(self, home: str) -> OpenLog:
        """The log at `home`, which its query must have opened before, with its own settings."""
        place = self._place(home)
        with self._lock:
            self.refuse_fenced(home)
            log = self._logs.get(place)
            if log is None or log.for_readers:
                raise UnknownLog(home)
            return self._lent(log)

    def close(self) -> None:
        """Closes them all."""
        for log in self._logs.values():
            log.close()


def place_of(home: str) -> str:
    """One spelling of a home: Spark writes `file:/x` where a user writes `/x`. `LogLocationError` as `open_storage`."""
    return (open_storage(home).local_path("") or home).rstrip("/") or "/"


def _not_shared(home: str, wanted: str | None, found: str | None) -> LogLocationError:
    there = "no log" if found is None else f"log {found}"
    return LogLocationError(
        home,
        f"the query writes log {wanted}, but {socket.gethostname()} finds {there} there. If it was removed, restore "
        f"it. Else the location is not the same on every machine: mount one place there on all of them; or, for a "
        f"query that has committed nothing yet, set cec.log.path to storage that the driver and all executors share",
    )


def conf_of(arguments: Mapping[str, object]) -> dict[str, str]:
    """The `conf` argument of a call."""
    conf = arguments.get("conf", {})
    assert isinstance(conf, dict)
    return {str(key): str(value) for key, value in conf.items()}
