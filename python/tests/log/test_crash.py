"""A crash at every storage call of appending, rolling and publishing; then everything again on what is left."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path

import pytest

from spark_cec.adapters.fsspec_storage import open_storage
from spark_cec.errors import CecError
from spark_cec.log.catalog import Catalog
from spark_cec.log.frame import FrameKind
from spark_cec.log.home import join_log
from spark_cec.log.index import MemoryIndex
from spark_cec.log.manifest import Manifest, batches, load, publish
from spark_cec.log.reader import read_frame, verify
from spark_cec.log.scan import Corrupt
from spark_cec.log.storage import Storage
from tests.log.support import (
    LOG_ID,
    STORE,
    CannotAppend,
    Crash,
    Fault,
    FaultyStorage,
    commit_meta,
    frame_bytes,
    make_writer,
    memory_storage,
    output_meta,
    payload_of,
)

COMMITS = range(1, 7)
SEGMENT_BYTES = 3 * len(frame_bytes(commit_meta(1), payload_of(1)))
MANIFEST = Manifest(0, (output_meta(1).frame_id.hex(),), 3, "{}", False, 1, 7)
NEXT_WRITER = "0198c0ffee01-00112233445566ff"


@dataclasses.dataclass
class Ledger:
    """What was acknowledged before the crash."""

    commits: list[int] = dataclasses.field(default_factory=list)
    output: bool = False
    manifest: bool = False
    errors: int = 0


def _run(storage: Storage, ledger: Ledger) -> None:
    """Joins the log, appends commits over several segments, then output and its manifest. Errors are survived."""

    def attempt(step: Callable[[], object]) -> bool:
        try:
            step()
        except (CecError, OSError):
            ledger.errors += 1
            return False
        return True

    attempt(lambda: join_log(storage, LOG_ID))
    writer = make_writer(storage, SEGMENT_BYTES)
    for version in COMMITS:
        if attempt(lambda v=version: writer.append(FrameKind.COMMIT, commit_meta(v), payload_of(v))):  # type: ignore[misc]
            ledger.commits.append(version)
    ledger.output = attempt(lambda: writer.append(FrameKind.OUTPUT, output_meta(1), b"rows"))
    if ledger.output:
        ledger.manifest = attempt(lambda: publish(storage, MANIFEST))
    writer.close()


def _calls(make: Callable[[], Storage]) -> int:
    storage = FaultyStorage(make())
    _run(storage, Ledger())
    return storage.fault.calls


def _check(storage: Storage, ledger: Ledger, unacknowledged: int) -> None:
    """Nothing acknowledged is lost, nothing is there in part, and the log can be gone on with."""
    assert not any(isinstance(damage, Corrupt) for damage in verify(storage).damages)
    catalog = Catalog(storage, MemoryIndex(join_log(storage, LOG_ID)))
    catalog.refresh()
    entries = catalog.index.commits(STORE, 0, 100)
    found = [entry.meta.version for entry in entries]
    assert set(ledger.commits) <= set(found)
    assert len(set(found) - set(ledger.commits)) <= unacknowledged
    assert len(found) == len(set(found))
    for entry in entries:
        frame = read_frame(storage, entry.location)
        assert (frame.meta, bytes(frame.payload)) == (commit_meta(entry.meta.version), payload_of(entry.meta.version))
    if ledger.manifest:
        assert batches(storage) == [0]
    if batches(storage):
        assert load(storage, 0) == MANIFEST
        assert catalog.index.output(output_meta(1).frame_id) is not None
    writer = make_writer(storage, SEGMENT_BYTES, NEXT_WRITER)
    catalog.note(*writer.append(FrameKind.COMMIT, commit_meta(50), payload_of(50)))
    fresh = Catalog(storage, MemoryIndex(LOG_ID))
    fresh.refresh()
    assert [e.meta.version for e in fresh.index.commits(STORE, 0, 100)] == [*found, 50]
    assert publish(storage, dataclasses.replace(MANIFEST, generation=2)) == load(storage, 0)


KINDS: dict[str, Callable[[], Storage]] = {
    "append": memory_storage,
    "objects": lambda: CannotAppend(memory_storage()),
}
POINTS = [
    (kind, call, when, zeros)
    for kind, make in KINDS.items()
    for call in range(1, _calls(make) + 1)
    for when, zeros in (("before", False), ("during", False), ("during", True), ("after", False))
]


def test_there_is_something_to_crash() -> None:
    storage = FaultyStorage(memory_storage())
    ledger = Ledger()
    _run(storage, ledger)
    assert ledger == Ledger(list(COMMITS), True, True)
    assert storage.fault.seen.count("append_to_new") >= 3
    assert storage.fault.seen.count("append") == len(COMMITS) + 1
    assert storage.fault.seen.count("create") == 2


@pytest.mark.parametrize(("kind", "call", "when", "zeros"), POINTS)
def test_crash(kind: str, call: int, when: str, zeros: bool) -> None:
    left = KINDS[kind]()
    storage = FaultyStorage(left, Fault(call, when, zeros))
    ledger = Ledger()
    with pytest.raises(Crash):
        _run(storage, ledger)
    if when == "during" and zeros and storage.fault.seen[-1] == "append":
        _check_zeroed(left, ledger)
    else:
        _check(left, ledger, unacknowledged=1)


def _check_zeroed(left: Storage, ledger: Ledger) -> None:
    """Bytes that a crash left zeroed within a frame are no frame; a scan of headers must not believe the header."""
    catalog = Catalog(left, MemoryIndex(LOG_ID))
    catalog.refresh()
    assert [entry.meta.version for entry in catalog.index.commits(STORE, 0, 100)] == ledger.commits
    assert catalog.index.outputs(0) == []
    assert len(catalog.damages) == 1


@pytest.mark.parametrize(("kind", "call", "when", "zeros"), POINTS)
def test_an_error_that_the_process_survives(kind: str, call: int, when: str, zeros: bool) -> None:
    left = KINDS[kind]()
    storage = FaultyStorage(left, Fault(call, when, zeros, error=lambda: OSError("disk on fire")))
    ledger = Ledger()
    _run(storage, ledger)
    assert storage.fault.tripped
    assert ledger.errors == 1
    assert len(ledger.commits) >= len(COMMITS) - 1
    if when == "during" and zeros and storage.fault.seen[call - 1] == "append":
        catalog = Catalog(left, MemoryIndex(LOG_ID))
        catalog.refresh()
        assert [entry.meta.version for entry in catalog.index.commits(STORE, 0, 100)] == ledger.commits
    else:
        _check(left, ledger, unacknowledged=1)


@pytest.mark.parametrize("call", range(1, _calls(memory_storage) + 1, 3))
@pytest.mark.parametrize("when", ["before", "during", "after"])
def test_crash_on_a_real_disk(call: int, when: str, tmp_path: Path) -> None:
    left = open_storage(str(tmp_path))
    ledger = Ledger()
    with pytest.raises(Crash):
        _run(FaultyStorage(left, Fault(call, when)), ledger)
    _check(left, ledger, unacknowledged=1)
