"""The logs that this agent has open, each with its catalog, its writer and its books."""

from __future__ import annotations

import hashlib
import os
import tempfile
import threading
import time
from collections.abc import Mapping
from pathlib import Path

from spark_cec.adapters.fsspec_storage import open_storage
from spark_cec.adapters.rocksdict_index import open_index
from spark_cec.checkpoint.commit import StoreBooks
from spark_cec.errors import CecError
from spark_cec.ids import new_writer_id
from spark_cec.log.catalog import Catalog
from spark_cec.log.home import join_log, read_log_id
from spark_cec.log.storage import Storage
from spark_cec.log.writer import SegmentWriter
from spark_cec.settings import Settings


class UnknownLog(CecError):
    """This process has not opened the log: call `open_log` first (the agent may be a successor of the one that had)."""

    def __init__(self, home: str) -> None:
        super().__init__(f"log {home!r} is not open in this agent")


class OpenLog:
    """One log: storage, catalog, and, from the first write on, a writer of its own segments."""

    def __init__(self, home: str, settings: Settings, storage: Storage, log_id: str) -> None:
        self.home = home
        self.settings = settings
        self.storage = storage
        self.log_id = log_id
        self.catalog = Catalog(self.storage, open_index(index_path(settings, home, self.log_id), self.log_id))
        self.books = StoreBooks()
        self._writer: SegmentWriter | None = None
        self.catalog.refresh()

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

    def close(self) -> None:
        """Closes writer and index."""
        if self._writer is not None:
            self._writer.close()
        self.catalog.index.close()


def index_path(settings: Settings, home: str, log_id: str) -> str:
    """Where the index of a log is kept on this machine: a cache, which may be deleted at any moment.

    A copy of a log has an index of its own.
    """
    root = (
        Path(settings.index_path)
        if settings.index_path
        else Path(tempfile.gettempdir()) / f"spark-cec-index-{os.getuid()}"
    )
    root.mkdir(mode=0o700, parents=True, exist_ok=True)
    return str(root / f"{log_id}-{hashlib.sha256(home.encode()).hexdigest()[:8]}")


def home_of(checkpoint: str, settings: Settings, sink_path: str | None) -> str:
    """The home of a query's log: the sink's `path`, or one of its own under `cec.log.path`, or in the checkpoint."""
    if sink_path:
        return sink_path.rstrip("/") or "/"
    if settings.log_path:
        return f"{settings.log_path.rstrip('/')}/{hashlib.sha256(checkpoint.encode()).hexdigest()[:16]}"
    return f"{checkpoint.rstrip('/')}/cec/log"


class OpenLogs:
    """All open logs of this process, by home."""

    def __init__(self) -> None:
        self._logs: dict[str, OpenLog] = {}
        self._lock = threading.Lock()

    def get(self, home: str, settings: Settings) -> OpenLog:
        """The log at `home`, opened (and its index caught up) when first asked for, begun if there is none."""
        with self._lock:
            log = self._still_there(home)
            if log is None:
                storage = open_storage(home)
                log = self._logs[home] = OpenLog(home, settings, storage, join_log(storage))
            log.settings = settings
            return log

    def existing(self, home: str, settings: Settings) -> OpenLog | None:
        """The log at `home` for reading, or None if there is none; never begins one."""
        with self._lock:
            log = self._still_there(home)
            if log is None:
                storage = open_storage(home)
                log_id = read_log_id(storage)
                if log_id is None:
                    return None
                log = self._logs[home] = OpenLog(home, settings, storage, log_id)
            return log

    def _still_there(self, home: str) -> OpenLog | None:
        """The open log at `home`, unless it was removed or another one was begun in its place since."""
        log = self._logs.get(home)
        if log is not None and read_log_id(log.storage) != log.log_id:
            del self._logs[home]
            log.close()
            return None
        return log

    def get_known(self, home: str) -> OpenLog:
        """The log at `home`, which must have been opened before."""
        with self._lock:
            if home not in self._logs:
                raise UnknownLog(home)
            return self._logs[home]

    def close(self) -> None:
        """Closes them all."""
        for log in self._logs.values():
            log.close()


def conf_of(arguments: Mapping[str, object]) -> dict[str, str]:
    """The `conf` argument of a call."""
    conf = arguments.get("conf", {})
    assert isinstance(conf, dict)
    return {str(key): str(value) for key, value in conf.items()}
