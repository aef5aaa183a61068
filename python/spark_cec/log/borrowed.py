"""A log that begins with segments of another log, and reads them where they are (`FORMAT.md`, section 1).

A fork of a query goes on from the state of that query, and its log need not copy the state.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from spark_cec.errors import DamagedLog
from spark_cec.log.bundles import Bundles
from spark_cec.log.checked_json import decode_object, encode_object
from spark_cec.log.delegating_storage import DelegatingStorage
from spark_cec.log.frame import Buffer
from spark_cec.log.manifest import MANIFESTS
from spark_cec.log.segment import SEGMENTS, segment_path
from spark_cec.log.storage import Listing, Storage, StoredFile

LOAN_FILE = "borrowed.json"


@dataclass(frozen=True, slots=True)
class Loan:
    """The part of another log that this one begins with.

    `home`: the URL of that log's home. `sizes`: by segment, the bytes that belong to this log, too. `through`: the last
    batch whose manifest belongs to it, -1 for none.
    """

    home: str
    sizes: Mapping[str, int]
    through: int = -1


def read_loan(storage: Storage) -> Loan:
    """The loan of the log at this home. Errors: `DamagedLog`, `NewerFormat`, `FileNotFoundError`."""
    fields, _ = decode_object(LOAN_FILE, storage.read(LOAN_FILE), "list of borrowed segments")
    try:
        sizes = {str(name): int(size) for name, size in fields["segments"].items()}
        return Loan(str(fields["home"]), sizes, int(fields["through"]))
    except (KeyError, ValueError, TypeError, AttributeError) as error:
        raise DamagedLog(LOAN_FILE, 0, f"no list of borrowed segments: {error!r}") from error


def write_loan(storage: Storage, loan: Loan) -> None:
    """Notes the loan, before the log's `log.json`."""
    storage.create(LOAN_FILE, encode_object({"home": loan.home, "segments": dict(loan.sizes), "through": loan.through}))


def show_borrowed(storage: Storage, open_home: Callable[[str], Storage]) -> Borrowed:
    """The home of a log with a loan, with the borrowed segments among its own. Errors: as `read_loan`."""
    loan = read_loan(storage)
    return Borrowed(storage, Bundles(open_home(loan.home)), loan)


class Borrowed(DelegatingStorage):
    """A log's home with the borrowed segments and manifests among its own. Never writes to the other log.

    What is deleted here stays in the other log. If a borrowed file is deleted there, reading it raises
    `FileNotFoundError`.
    """

    def __init__(self, inner: Storage, lender: Storage, loan: Loan) -> None:
        """`lender`: the other log's home, in which the segments of bundles are files."""
        super().__init__(inner)
        self._lender = lender
        self._lock = threading.Lock()
        own = {file.name for file in inner.list(SEGMENTS)}
        self._sizes = {segment_path(name): size for name, size in loan.sizes.items() if name not in own}
        self._through = loan.through

    def list(self, directory: str) -> Listing:
        """The files directly in the directory."""
        found = super().list(directory)
        if directory == MANIFESTS:
            return sorted([*found, *(file for file in self._lender.list(directory) if self._is_before(file.name))])
        if directory != SEGMENTS:
            return found
        with self._lock:
            borrowed = [StoredFile(path.removeprefix(f"{SEGMENTS}/"), size) for path, size in self._sizes.items()]
        return sorted([*found, *borrowed])

    def read(self, path: str, offset: int = 0, length: int | None = None) -> bytes:
        """At most `length` bytes from `offset`; of a borrowed segment none that came later."""
        size = self._size_of(path)
        if size is None:
            return self._home_of(path).read(path, offset, length)
        rest = max(0, size - offset)
        count = rest if length is None else min(length, rest)
        return self._lender.read(path, offset, count) if count else b""

    def size(self, path: str) -> int:
        """Bytes in the file."""
        size = self._size_of(path)
        return self._home_of(path).size(path) if size is None else size

    def exists(self, path: str) -> bool:
        """Whether the file exists."""
        return self._home_of(path).exists(path)

    def sync(self, path: str) -> None:
        """Makes the file durable."""
        self._home_of(path).sync(path)

    def replace(self, path: str, data: Buffer) -> None:
        """Creates or replaces a file of this log with these bytes."""
        self._inner.replace(path, data)
        self._forget([path])

    def delete(self, path: str) -> None:
        """Deletes the file from this log, if it exists."""
        self.delete_all([path])

    def delete_all(self, paths: Sequence[str]) -> None:
        """Deletes the files from this log that exist."""
        own = [path for path in paths if self._home_of(path) is self._inner]
        self._forget(paths)
        if own:
            self._inner.delete_all(own)

    def local_path(self, path: str) -> str | None:
        """The file's path on this machine's own file system, or None, as for a borrowed segment, which may grow."""
        return self._inner.local_path(path) if self._home_of(path) is self._inner else None

    def _home_of(self, path: str) -> Storage:
        """The home that has the file."""
        directory, _, name = path.rpartition("/")
        is_borrowed = self._size_of(path) is not None or (directory == MANIFESTS and self._is_before(name))
        return self._lender if is_borrowed else self._inner

    def _is_before(self, name: str) -> bool:
        """Whether this is the name of the manifest of a batch that the log has borrowed."""
        batch = name.removesuffix(".json")
        return batch.isascii() and batch.isdigit() and int(batch) <= self._through

    def _size_of(self, path: str) -> int | None:
        """The size of a borrowed segment; None for another file."""
        with self._lock:
            return self._sizes.get(path)

    def _forget(self, paths: Sequence[str]) -> None:
        with self._lock:
            for path in paths:
                self._sizes.pop(path, None)
