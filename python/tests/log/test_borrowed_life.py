"""A fork reads along while the flow's log grows, is trimmed and bundled, and while its process is killed at any call.

A frame that the fork finds is the flow's, whole. It may miss a frame only if the flow has let that frame go.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable

import pytest

from spark_cec.errors import CecError
from spark_cec.ids import new_writer_id
from spark_cec.log.borrowed import Loan, show_borrowed
from spark_cec.log.bundles import Bundles
from spark_cec.log.bundling import bundle_segments, choose_segments, choose_settled, delete_copied
from spark_cec.log.catalog import Catalog
from spark_cec.log.frame import FrameKind
from spark_cec.log.home import begin_fork, join_log
from spark_cec.log.index import MemoryIndex
from spark_cec.log.manifest import Manifest, batches, publish
from spark_cec.log.reader import read_frame
from spark_cec.log.segment import SEGMENTS, list_segments
from spark_cec.log.storage import Storage
from spark_cec.log.trim import TrimHorizon, trim
from tests.log.support import (
    LOG_ID,
    STORE,
    CannotAppend,
    Crash,
    Fault,
    FaultyStorage,
    clear_memory,
    commit_meta,
    frame_bytes,
    make_writer,
    memory_storage,
    payload_of,
)

SEED = int(os.environ.get("SEED", "0"))
KEPT = 4
"""The flow needs this many of its newest versions."""

KINDS: dict[str, Callable[[], Storage]] = {
    "append": memory_storage,
    "objects": lambda: CannotAppend(memory_storage()),
}


class Fork:
    """A fork of the flow after `version`, with frames of its own behind those."""

    def __init__(self, lender: Storage, version: int) -> None:
        self.own, self.version, self.kept_from = memory_storage(), version, 0
        there = Catalog(Bundles(lender), MemoryIndex(LOG_ID))
        there.refresh()
        # A killed process leaves a frame of the batch that ran.
        self.newest = max(entry.meta.version for entry in there.index.commits(STORE, 0, 1_000))
        sizes = {file.name: file.size for file in list_segments(Bundles(lender))}
        begin_fork(self.own, LOG_ID, Loan("memory://lender", sizes, version))
        self.storage = Bundles(show_borrowed(self.own, lambda _: lender))
        self.catalog = Catalog(self.storage, MemoryIndex(LOG_ID))
        if version % 2:  # it may be opened later, too
            self.catalog.refresh()
        writer = make_writer(self.storage, writer_id=new_writer_id(version + 1))
        self.catalog.note(*writer.append(FrameKind.COMMIT, commit_meta(100 + version), payload_of(100 + version)))
        writer.close()
        publish(self.storage, Manifest(version + 1, (), 1, "{}", False, 1, 7))

    def trim(self) -> None:
        """Lets frames go that this fork does not need."""
        self.kept_from = max(1, self.version - KEPT)
        trim(self.storage, self.catalog.index, TrimHorizon({STORE: self.kept_from}, 1, None, 10))

    def check(self, kept_from: int) -> None:
        """Reads what is there. `kept_from`: the oldest version that the flow needs."""
        self.catalog.refresh()
        kept_from, found = max(kept_from, self.kept_from), set[int]()
        for entry in self.catalog.index.commits(STORE, 0, 1_000):
            version = entry.meta.version
            try:
                frame = read_frame(self.storage, entry.location)
            except (CecError, FileNotFoundError):
                assert version < kept_from, f"the fork of {self.version} lost {version}, kept from {kept_from}"
                continue
            assert (frame.meta, bytes(frame.payload)) == (commit_meta(version), payload_of(version))
            found.add(version)
        own = 100 + self.version
        assert own in found and max(found - {own}, default=0) <= self.newest, "it has no later frame of the flow"
        needed = set(range(max(kept_from, 1), self.version + 1))
        assert needed <= found, f"the fork of {self.version} lacks {needed - found}"
        assert batches(self.storage) == [*range(1, self.version + 2)]


class Flow:
    """A flow's log and its writer. Each version is a commit; `kept_from`: the oldest that the flow needs."""

    def __init__(self, storage: Storage, version: int) -> None:
        self.storage, self.version, self.kept_from = Bundles(storage, lambda: 0.0), version, 0
        self.catalog = Catalog(self.storage, MemoryIndex(LOG_ID))
        self.writer = make_writer(self.storage, 5 * len(frame_bytes(commit_meta(1), payload_of(1))), new_writer_id(1))

    def commit(self) -> None:
        version = self.version + 1
        self.catalog.note(*self.writer.append(FrameKind.COMMIT, commit_meta(version), payload_of(version)))
        publish(self.storage, Manifest(version, (), 1, "{}", False, 1, 7))
        self.version = version

    def trim(self) -> None:
        self.catalog.refresh()
        self.kept_from = max(self.kept_from, self.version - KEPT)
        trim(self.storage, self.catalog.index, TrimHorizon({STORE: self.kept_from}, 1, None, 10))

    def bundle(self) -> None:
        if not self.storage.can_append:
            self.storage.list(SEGMENTS)
            delete_copied(self.storage, choose_settled(self.storage.duplicates, 1.0))
            for chosen in choose_segments(self.storage.beside, self.catalog.index.covered(), 2):
                bundle_segments(self.storage, chosen, new_writer_id(1))


def live(kind: str, seed: int, call: int, when: str) -> int:
    """A random life, with a kill of the flow's process at that call; answers how many calls there were."""
    chance, left = random.Random(seed), KINDS[kind]()
    fault = Fault(call, when)
    join_log(left, LOG_ID)
    flow, forks, kept_from = Flow(FaultyStorage(left, fault), 0), list[Fork](), 0
    for _ in range(24):
        what = chance.random()
        try:
            for step in [flow.commit] if what < 0.5 else [flow.trim, flow.bundle] if what < 0.8 else []:
                step()
        except Crash:
            version = max(batches(left), default=0)
            kept_from = max(kept_from, flow.kept_from)
            for fork in forks:
                fork.check(kept_from)
            flow = Flow(left, version)
        kept_from = max(kept_from, flow.kept_from)
        if what >= 0.8 and flow.version:
            forks.append(Fork(left, flow.version))
        before = sorted((file.name, file.size) for file in left.list(SEGMENTS))
        for fork in forks:
            fork.check(kept_from)
            if chance.random() < 0.2:
                fork.trim()
        assert sorted((file.name, file.size) for file in left.list(SEGMENTS)) == before, "a fork changes nothing"
    clear_memory()
    return fault.calls


@pytest.mark.parametrize("seed", range(SEED, SEED + int(os.environ.get("CEC_LIVES", "2"))))
@pytest.mark.parametrize("kind", KINDS)
def test_a_fork_reads_along(kind: str, seed: int) -> None:
    calls = live(kind, seed, 0, "before")
    for call in range(1 + seed, calls + 1, max(1, calls // 4)):
        for when in ("before", "after"):
            try:
                live(kind, seed, call, when)
            except BaseException:
                print(f"seed={seed} call={call} {when}")
                raise
