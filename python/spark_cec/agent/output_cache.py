"""Output that was just written, for readers in the same process: they need not ask the storage for it."""

from __future__ import annotations

import threading
from collections import OrderedDict

LIMIT_BYTES = 64 << 20
"""Stored bytes of output that an agent keeps, of all logs together."""


class RecentOutput:
    """The payloads of the newest output frames of those logs that are read here; safe for several threads.

    What nobody reads in this process is not kept: a log's frames are, from the first time that one was looked for.
    """

    def __init__(self, limit_bytes: int = LIMIT_BYTES) -> None:
        self._limit_bytes = limit_bytes
        self._payloads: OrderedDict[bytes, memoryview] = OrderedDict()
        self._bytes = 0
        self._read: set[str] = set()
        self._lock = threading.Lock()

    def note(self, log_id: str, frame_id: bytes, payload: memoryview) -> None:
        """This payload is durable in its log; it is kept while there is room, the oldest go first."""
        with self._lock:
            if log_id not in self._read or frame_id in self._payloads:
                return
            self._payloads[frame_id] = payload
            self._bytes += payload.nbytes
            while self._bytes > self._limit_bytes:
                _, oldest = self._payloads.popitem(last=False)
                self._bytes -= oldest.nbytes

    def find(self, log_id: str, frame_id: bytes) -> memoryview | None:
        """The payload of a frame, None if it is not kept."""
        with self._lock:
            self._read.add(log_id)
            return self._payloads.get(frame_id)
