"""The open logs of this agent, each with its catalog, its writer and the ledgers of its stores."""

from __future__ import annotations

import hashlib
import math
import os
import socket
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from spark_cec.adapters.fsspec_storage import open_storage
from spark_cec.adapters.rocksdict_index import open_index
from spark_cec.agent.private import is_writable_by_others, private_directory
from spark_cec.checkpoint.commit_frames import StoreLedgers
from spark_cec.errors import GONE, CecError, Fenced, LogLocationError, SettingsError
from spark_cec.ids import new_writer_id
from spark_cec.log.borrowed import Borrowed, show_borrowed
from spark_cec.log.bundles import Bundles
from spark_cec.log.bundling import bundle_segments, choose_segments, choose_settled, delete_copied
from spark_cec.log.catalog import Catalog
from spark_cec.log.home import FORMAT_VERSION, LogFile, join_log, read_log_file, read_log_id
from spark_cec.log.index import MemoryIndex
from spark_cec.log.manifest import PublishedBatches
from spark_cec.log.recent_objects import RecentObjects
from spark_cec.log.storage import Storage
from spark_cec.log.trim import Summaries
from spark_cec.log.writer import SegmentWriter
from spark_cec.recovery.sources import SeenSources
from spark_cec.settings import PREFIX, Settings, is_relative

IDLE_S = 600.0
"""A log stays open for this time after its last use, unless the JVM keeps it open."""


_TRUSTED_S = 30.0
"""How long a log on an object store counts as present after it was seen: a bucket is not unmounted."""


class UnknownLog(CecError):
    """This agent has not opened the log, or has closed it: call `open_log`, and repeat the call."""

    def __init__(self, home: str) -> None:
        super().__init__(f"log {home!r} is not open in this agent")


class OpenLog:
    """One log: storage, catalog, and, from the first write on, a writer with its own segments.

    `kept`: the JVM keeps the log open, and will close it. `users`: the running calls that use it. `retired`: the log
    closes when the last of its users ends. `for_readers`: only readers have asked for it, so `settings` are theirs and
    do not decide what the log keeps. `OpenLogs` manages all four.

    `cuts_looked_by`: the run that has looked for cuts of the output. `newest_output_ms`: the time of the newest batch
    of the output. None if it is unknown. `seen_sources`: what the query's sources told its driver last.
    """

    def __init__(self, home: str, settings: Settings, storage: Storage, log_id: str) -> None:
        self.home = home
        self.settings = settings
        is_fork = isinstance(storage, Borrowed)
        self.storage = Bundles(storage if storage.can_append or is_fork else RecentObjects(storage))
        self.log_id = log_id
        # A fork ends soon, and nothing would delete its index.
        index = MemoryIndex(log_id) if is_fork else open_index(index_path(settings, home, log_id), log_id)
        self.catalog = Catalog(self.storage, index)
        self.ledgers = StoreLedgers()
        self.summaries = Summaries()
        self.published = PublishedBatches(self.storage)
        self.cuts_looked_by: int | None = None
        self.newest_output_ms: int | None = None
        self.seen_sources: SeenSources | None = None
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
        """The writer, created at first use."""
        if self._writer is None:
            now_ms = int(time.time() * 1000)
            self._writer = SegmentWriter(
                self.storage,
                self.log_id,
                new_writer_id(now_ms),
                lambda: int(time.time() * 1000),
                self.settings.segment_bytes,
                self.refuse_vanished_log,
            )
        return self._writer

    def refuse_vanished_log(self) -> None:
        """Raises `LogLocationError` if a directory without this log is in its place, such as an empty mount point."""
        if self.storage.can_append and read_log_id(self.storage) != self.log_id:
            raise LogLocationError(self.home, GONE)

    def bundle_segments(self) -> None:
        """Makes bundles of older segments, as of the last listing, and deletes files that are in one for long enough.

        Only on a storage that cannot append, as the settings say, and not in a fork, which ends soon.
        """
        count = self.settings.bundle_segments
        if count is None or self.storage.can_append or isinstance(self.storage.inner, Borrowed):
            return
        before = time.monotonic() - self.settings.bundle_after_ms / 1000
        delete_copied(self.storage, choose_settled(self.storage.duplicates, before))
        for chosen in choose_segments(self.storage.beside, self.catalog.index.covered(), count):
            bundle_segments(self.storage, chosen, new_writer_id(int(time.time() * 1000)))

    def leave_idle_segment(self) -> None:
        """Closes a segment's file if nothing was appended for long. Does not wait for an append."""
        if self._writer is not None:
            self._writer.leave_if_idle()

    def close(self) -> None:
        """Closes writer and index."""
        if self._writer is not None:
            self._writer.close()
        self.catalog.close()


def index_path(settings: Settings, home: str, log_id: str) -> str:
    """The index's directory for a log on this machine: a cache, which may be deleted at any moment.

    A copy of a log gets its own index.
    """
    return str(index_root(settings) / f"{log_id}-{hashlib.sha256(home.encode()).hexdigest()[:8]}")


def index_root(settings: Settings) -> Path:
    """The directory of all indexes on this machine; creates it, or raises `SettingsError`.

    Only this user can write to it. If other users can write to the place, it is a private directory within.
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
    """The checkpoint's `cec` directory, which has all files except the log."""
    return open_storage(f"{checkpoint.rstrip('/')}/cec")


def home_of(checkpoint: str, settings: Settings, sink_path: str | None) -> str:
    """The home of a query's log: the sink's `path`, or a directory under `cec.log.path`, or one in the checkpoint.

    Raises `SettingsError` for a relative `path`, because each process has its own working directory.
    """
    if sink_path:
        if is_relative(sink_path):
            raise SettingsError("the sink's path", sink_path, "give an absolute path, or a URL")
        return sink_path.rstrip("/") or "/"
    if settings.log_path:
        return f"{settings.log_path.rstrip('/')}/{hashlib.sha256(checkpoint.encode()).hexdigest()[:16]}"
    return f"{checkpoint.rstrip('/')}/cec/log"


class OpenLogs:
    """All open logs of this process, by home; one home may have several spellings.

    A log closes when the JVM says so. A log that was opened only for readers or a plan closes after `IDLE_S` without
    use. No log closes during a call that uses it. If one log is slow or does not open, the others are not affected.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._logs: dict[str, OpenLog] = {}
        self._fenced: dict[str, tuple[str, str]] = {}
        # Nothing under this lock waits for a storage, a disk or another log: each call needs it.
        self._lock = threading.Lock()
        self._closing: set[OpenLog] = set()
        self._has_closed = threading.Condition(self._lock)
        # A thread that opens or checks a log holds the lock of its home: storage may be slow.
        self._turns: dict[str, threading.Lock] = {}
        self._places: dict[str, str] = {}
        self._clock = clock
        self._this_call = threading.local()

    @contextmanager
    def serving(self) -> Iterator[None]:
        """Keeps the logs of one call open until the call ends."""
        lent: list[OpenLog] = []
        self._this_call.lent = lent
        try:
            yield
        finally:
            self._this_call.lent = None
            with self._lock:
                for log in lent:
                    log.users -= 1
                unused = self._take_unused(lent)
            self._close_all(unused)

    def keep(self, home: str) -> None:
        """Keeps the log open until `close_log`."""
        place = self._find_place(home)
        with self._lock:
            log = self._logs.get(place)
            if log is not None:
                log.kept = True

    def close_log(self, home: str) -> bool:
        """Closes the log after its last running call; answers whether it was open."""
        place = self._find_place(home)
        with self._lock:
            log = self._logs.pop(place, None)
            unused = [] if log is None else self._retire(log)
        self._close_all(unused)
        return log is not None

    def fence(self, checkpoint: str, home: str | None, reason: str) -> None:
        """Fails all later calls for this checkpoint or home, because their query has lost its lease."""
        with self._lock:
            self._fenced.update({place: (checkpoint, reason) for place in (checkpoint, home) if place})

    def unfence(self, checkpoint: str) -> None:
        """Ends a fence: the run has its lease again, or a later run has it."""
        with self._lock:
            self._fenced = {place: lost for place, lost in self._fenced.items() if lost[0] != checkpoint}

    def refuse_fenced(self, place: str | None) -> None:
        """Raises `Fenced` if the checkpoint or home is fenced."""
        if place in self._fenced:
            raise Fenced(self._fenced[place][1])

    def get(self, home: str, settings: Settings, log_id: str | None = None) -> OpenLog:
        """The log at `home`; opens it, and updates its index, at first use.

        If `log_id` is given, the log must exist with that id, else `LogLocationError`. Without `log_id`, a missing log
        is created.
        """
        with self._lock_home(home) as place:
            log = self._find_open(home, place)
            if log is None:
                storage = open_storage(home)
                found = read_log_file(storage)
                if found is None and log_id is None:
                    found = LogFile(join_log(storage), FORMAT_VERSION)
                if found is None or log_id not in (None, found.log_id):
                    raise _not_shared(home, log_id, None if found is None else found.log_id)
                log = self._open_log(place, settings, open_storage(home, must_exist=True), found)
            elif log_id not in (None, log.log_id):
                raise _not_shared(home, log_id, log.log_id)
            log.settings, log.for_readers = settings, False
            return log

    def existing(self, home: str, settings: Settings, trusted_s: float = 0.0) -> OpenLog | None:
        """The log at `home` for reading, or None if there is none; never creates one.

        A log that was there within the last `trusted_s` seconds is not checked again.
        """
        with self._lock_home(home) as place:
            log = self._find_open(home, place, trusted_s)
            if log is None:
                storage = open_storage(home)
                found = read_log_file(storage)
                if found is None:
                    return None
                log = self._open_log(place, settings, open_storage(home, must_exist=True), found)
                log.for_readers = True
            return log

    def tidy(self) -> None:
        """Closes logs that are long idle; called at intervals."""
        self._close_idle()
        with self._lock:
            logs = list(self._logs.values())
        for log in logs:  # a log that is closed meanwhile has no open segment
            log.leave_idle_segment()

    def _close_idle(self) -> None:
        with self._lock:
            now = self._clock()
            idle = [log for log in self._logs.values() if not log.kept and now - log.used_at > IDLE_S]
            unused = [each for log in idle for each in self._retire(self._logs.pop(log.home))]
        self._close_all(unused)

    @contextmanager
    def _lock_home(self, home: str) -> Iterator[str]:
        """Locks the opening of the log at `home`, and yields its place. Then closes idle logs."""
        place = self._find_place(home)
        with self._lock:
            turn = self._turns.setdefault(place, threading.Lock())
        with turn:
            yield place
        self._close_idle()

    def _find_place(self, home: str) -> str:
        """`place_of`, computed once, because every append asks."""
        place = self._places.get(home)
        if place is None:
            place = self._places[home] = place_of(home)
        return place

    def _open_log(self, place: str, settings: Settings, storage: Storage, found: LogFile) -> OpenLog:
        """Opens a log and lends it to the call; the caller has the home's lock."""
        if found.borrows:
            storage = show_borrowed(storage, open_storage)
        with self._has_closed:  # two logs cannot have one index
            self._has_closed.wait_for(lambda: place not in {closing.home for closing in self._closing})
        log = OpenLog(place, settings, storage, found.log_id)
        log.looked_at = self._clock()
        with self._lock:
            self._logs[place] = log
            return self._lend(log)

    def _lend(self, log: OpenLog) -> OpenLog:
        """Lends a log to the current call, so that it stays open until then; the caller has the lock."""
        log.used_at = self._clock()
        lent: list[OpenLog] | None = getattr(self._this_call, "lent", None)
        if lent is not None:
            log.users += 1
            lent.append(log)
        return log

    def _retire(self, log: OpenLog) -> list[OpenLog]:
        """Retires a log; answers as `_take_unused`. The caller has the lock."""
        log.retired = True
        return self._take_unused([log])

    def _take_unused(self, logs: Iterable[OpenLog]) -> list[OpenLog]:
        """The retired logs without a user. The caller has the lock, lets it go, and calls `_close_all`."""
        unused = {log for log in logs if log.retired and not log.users}
        self._closing |= unused
        return list(unused)

    def _close_all(self, logs: Iterable[OpenLog]) -> None:
        """Closes logs, also if one fails; the caller has no lock, because a storage or a disk may be slow."""
        with ExitStack() as stack:
            for log in logs:
                stack.callback(self._close, log)

    def _close(self, log: OpenLog) -> None:
        try:
            log.close()
        finally:
            with self._has_closed:
                self._closing.discard(log)
                self._has_closed.notify_all()

    def _find_open(self, home: str, place: str, trusted_s: float = 0.0) -> OpenLog | None:
        """The open log at `home`, lent to the call; None if it was deleted or another log has replaced it."""
        self.refuse_fenced(home)
        with self._lock:
            log = self._logs.get(place)
            if log is None:
                return None
            self._lend(log)
        now = self._clock()
        if now - log.looked_at < max(trusted_s, 0.0 if log.storage.can_append else _TRUSTED_S):
            return log
        if read_log_id(log.storage) == log.log_id:
            log.looked_at = now
            return log
        with self._lock:
            unused = self._retire(self._logs.pop(place)) if self._logs.get(place) is log else []
        self._close_all(unused)
        return None

    def get_known(self, home: str) -> OpenLog:
        """The log at `home` with its query's settings; `UnknownLog` unless its query has opened it."""
        place = self._find_place(home)
        with self._lock:
            self.refuse_fenced(home)
            log = self._logs.get(place)
            if log is None or log.for_readers:
                raise UnknownLog(home)
            return self._lend(log)

    def close(self) -> None:
        """Closes all logs."""
        for log in self._logs.values():
            log.close()


def place_of(home: str) -> str:
    """One spelling of a home: Spark writes `file:/x` for a user's `/x`. `LogLocationError` as `open_storage`."""
    return (open_storage(home).local_path("") or home).rstrip("/") or "/"


def _not_shared(home: str, wanted: str | None, found: str | None) -> LogLocationError:
    there = "no log" if found is None else f"log {found}"
    return LogLocationError(
        home,
        f"the query writes log {wanted}, but {socket.gethostname()} finds {there} there. If it was removed, restore "
        f"it. Else the location is not the same on every machine: mount one place there on all of them; or, for a "
        f"query that has committed nothing yet, set cec.log.path to storage that the driver and all executors share",
    )
