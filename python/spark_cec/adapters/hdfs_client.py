"""hdfs-native's client, with an end for each call.

Its calls have no limit of their own: a name node that takes a call and does not answer would hold it for ever. So each
call runs in a thread of its own, which is left behind when the time is over. hdfs-native's client for asyncio could be
cancelled, but it panics as soon as it has to wait before a second attempt.
"""

from __future__ import annotations

import errno
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Generic, TypeVar

from spark_cec.errors import LogLocationError

LEAST_S = 10.0
"""A call may always take so long: a sound name node may need some seconds."""

_MOST_LEFT = 64
"""So many calls may be left behind. Then the name node is silent for all, and no further call is made."""

_PIECE_BYTES = 8 << 20
"""Bytes that one call writes or reads: it shall end in time also where the network is slow."""

_Answer = TypeVar("_Answer")


def load_library(url: str) -> Any:
    """hdfs-native. `LogLocationError` for this URL if it is missing."""
    try:
        import hdfs_native
    except ImportError as error:
        raise LogLocationError(
            url, f"a package is missing on this machine ({error}); pip install 'spark-cec[hdfs]'"
        ) from error
    return hdfs_native


class _Call(Generic[_Answer]):
    """One call in a thread of its own. `is_left`: nobody waits for it any more."""

    def __init__(self, action: Callable[[], _Answer], when_over: Callable[[_Call[Any]], None]) -> None:
        self.is_left = False
        self.over = threading.Event()
        self._action = action
        self._when_over = when_over
        self._answer: list[_Answer] = []
        self._error: BaseException | None = None

    def start(self) -> None:
        """Makes the call."""
        threading.Thread(target=self._work, name="hdfs-call", daemon=True).start()

    def answer(self) -> _Answer:
        """The answer of a call that is over."""
        if self._error is not None:
            raise self._error
        return self._answer[0]

    def _work(self) -> None:
        try:
            self._answer.append(self._action())
        except BaseException as error:  # a panic of Rust is no Exception
            self._error = error
        finally:
            self._when_over(self)


class HdfsClient:
    """A client of one cluster, for several threads.

    `make` gives a client of hdfs-native, and takes how many were made before it; `limit_s` the time that a call may
    take. After a call without an answer the next one has a new client, and so a new connection. Calls raise what
    hdfs-native's raise, and `TimeoutError`.
    """

    def __init__(self, make: Callable[[int], Any], limit_s: Callable[[], float]) -> None:
        self._make = make
        self._limit_s = limit_s
        self._made = 1
        self._inner = make(0)
        self._turn = threading.Lock()
        self._left = 0

    def get_file_info(self, path: str) -> Any:
        """The status of a file or directory."""
        return self._call(self._inner.get_file_info, path)

    def list_status(self, path: str, recursive: bool = False) -> Sequence[Any]:
        """The status of each file and directory in a directory."""
        inner = self._inner
        return self._call(lambda: list(inner.list_status(path, recursive)))

    def read(self, path: str, offset: int, length: int | None) -> bytes:
        """A range of a file; fewer bytes at its end."""
        reader = self._call(self._inner.read, path)
        rest = len(reader) - offset  # the client panics at a range past the end
        end = offset + max(0, rest if length is None else min(length, rest))
        return b"".join(
            bytes(self._call(reader.read_range, at, min(_PIECE_BYTES, end - at)))
            for at in range(offset, end, _PIECE_BYTES)
        )

    def write(self, path: str, content: bytes, options: Mapping[str, int]) -> None:
        """Creates a file with these bytes, and closes it."""
        writer = self._call(self._inner.create, path, load_library(path).WriteOptions(**options))
        for at in range(0, len(content), _PIECE_BYTES):
            self._call(writer.write, content[at : at + _PIECE_BYTES])
        self._call(writer.close)

    def rename(self, source: str, target: str, overwrite: bool) -> None:
        """Gives a file another name."""
        self._call(self._inner.rename, source, target, overwrite)

    def delete(self, path: str, recursive: bool, limit_s: float | None = None) -> None:
        """Deletes a file or directory, if it exists."""
        self._call(self._inner.delete, path, recursive, limit_s=limit_s)

    def _call(self, method: Callable[..., _Answer], *given: Any, limit_s: float | None = None) -> _Answer:
        inner, limit_s = self._inner, self._limit_s() if limit_s is None else limit_s
        with self._turn:
            if self._left >= _MOST_LEFT:
                raise TimeoutError(errno.ETIMEDOUT, f"{self._left} calls have no answer yet")
        call = _Call(lambda: method(*given), self._end)
        call.start()
        if not call.over.wait(limit_s) and self._leave(call, inner):
            raise TimeoutError(errno.ETIMEDOUT, f"no answer within {limit_s:.0f} s")
        return call.answer()

    def _leave(self, call: _Call[Any], inner: Any) -> bool:
        """Waits for the call no more, unless it is over by now."""
        with self._turn:
            if call.over.is_set():
                return False
            call.is_left = True
            self._left += 1
            if self._inner is inner:
                self._inner, self._made = self._make(self._made), self._made + 1
            return True

    def _end(self, call: _Call[Any]) -> None:
        with self._turn:
            self._left -= call.is_left
            call.over.set()
