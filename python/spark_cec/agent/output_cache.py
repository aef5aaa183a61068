"""Caches newly written output for readers in the same process, so that they need not read the storage."""

from __future__ import annotations

import threading
from collections import OrderedDict

LIMIT_BYTES = 64 << 20
"""The stored bytes of output that an agent caches, for all logs together."""


class OutputCache:
    """The payloads of the newest output frames; safe for several threads.

    Caches a log's frames only after a reader in this process has looked for one of them.
    """

    def __init__(self, limit_bytes: int = LIMIT_BYTES) -> None:
        self._limit_bytes = limit_bytes
        self._payloads: OrderedDict[bytes, memoryview] = OrderedDict()
        self._bytes = 0
        self._read: set[str] = set()
        self._lock = threading.Lock()

    def note(self, log_id: str, frame_id: bytes, payload: memoryview) -> None:
        """Caches a durable payload; drops the oldest payloads beyond the limit."""
        with self._lock:
            if log_id not in self._read or frame_id in self._payloads:
                return
            self._payloads[frame_id] = payload
            self._bytes += payload.nbytes
            while self._bytes > self._limit_bytes:
                _, oldest = self._payloads.popitem(last=False)
                self._bytes -= oldest.nbytes

    def find(self, log_id: str, frame_id: bytes) -> memoryview | None:
        """The payload of a frame, None if it is not in the cache."""
        with self._lock:
            self._read.add(log_id)
            return self._payloads.get(frame_id)
