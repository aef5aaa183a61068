"""Watches a pipeline that runs, from what it writes: how far its input has come out, its checkpoints, its messages."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from spark_cec.adapters.fsspec_storage import open_storage
from spark_cec.errors import DamagedLog
from spark_cec.log.catalog import Catalog
from spark_cec.log.home import read_log_id
from spark_cec.log.index import MemoryIndex
from spark_cec.log.manifest import Manifest, batches, load, read_batch
from spark_cec.protocols.records import DIRECTORY
from spark_cec_lab.bench.processes import BenchError
from spark_cec_lab.bench.protocols.spec import Recovery
from spark_cec_lab.simulation.protocols.outcome import Taken

_ENTRY = re.compile(r'\{"logOffset":(\d+)\}')


class Channel:
    """The manifests of one flow, as they come."""

    def __init__(self, home: str, name: str) -> None:
        self.name = name
        self._storage = open_storage(f"{home}/flows/{name}/cec/log")
        self.next = 0
        self.known: dict[int, Manifest] = {}

    def news(self) -> list[Manifest]:
        """Those that have come since the last look."""
        found: list[Manifest] = []
        while True:
            try:
                found.append(load(self._storage, self.next))
            except (FileNotFoundError, DamagedLog):  # damaged: it is being written
                return found
            self.known[self.next] = found[-1]
            self.next += 1

    def goes_back(self, batch: int) -> None:
        """Its batches behind that one come again."""
        self.next = min(self.next, batch + 1)


class Files:
    """What Spark's source of files has noted: how many files there are up to each of its entries."""

    def __init__(self, home: str, name: str) -> None:
        self._place = Path(home, "flows", name, "sources", "0")
        self._known: dict[int, int] = {}

    def up_to(self, entry: int) -> int:
        """How many files that entry has, and those before it."""
        if entry not in self._known:
            before = self.up_to(entry - 1) if entry > 0 else 0
            self._known[entry] = before + self._of(entry)
        return self._known[entry]

    def _of(self, entry: int) -> int:
        for path in (self._place / f"{entry}", self._place / f"{entry}.compact"):
            if path.exists():  # a compact one has those of all entries before, too
                notes = [json.loads(line) for line in path.read_text().splitlines()[1:]]
                return sum(note["batchId"] == entry for note in notes)
        raise BenchError(f"{self._place} has no entry {entry}")


class Progress:
    """How many pieces of the input have come out of all flows of the query."""

    def __init__(self, home: str, sources: Sequence[str], query: Sequence[str]) -> None:
        """`sources`: the flows that read the pieces; `query`: those that read them, each of which must have a piece."""
        self._home = home
        self._sources = {name: Channel(home, name) for name in sources}
        self._files = {name: Files(home, name) for name in sources}
        self._query = {name: Channel(home, name) for name in query}
        self._out = dict.fromkeys(query, (0, 0.0))
        self._number = 1
        self.rollbacks: list[dict[str, Any]] = []

    def look(self) -> tuple[int, float]:
        """How many pieces are done, and when the last of them was, s since the epoch."""
        self._look_for_rollbacks()
        for channel in self._sources.values():
            channel.news()
        for name, channel in self._query.items():
            for each in channel.news():
                done = self._pieces_of(each)
                if done > self._out[name][0]:
                    self._out[name] = done, each.wall_ms / 1000
        least = min(done for done, _ in self._out.values())
        return least, max((at for done, at in self._out.values()), default=0.0)

    def _pieces_of(self, manifest: Manifest) -> int:
        """How many pieces have gone into a batch of the query, and those before it: the least of its sources."""
        least: dict[str, int] = {}
        for each in manifest.consumed:
            name = each.source.rsplit("/", 1)[-1]
            if name not in self._sources:
                continue  # a cycle
            channel = self._sources[name]
            batch = -1 if each.end is None else read_batch(each.end)
            channel.news()
            ends = channel.known[batch].consumed if batch in channel.known else ()
            found = _ENTRY.fullmatch(ends[0].end or "") if ends else None
            pieces = self._files[name].up_to(int(found[1])) if found else 0
            least[name] = min(pieces, least.get(name, pieces))
        return min((least.get(name, 0) for name in self._sources), default=0)

    def _look_for_rollbacks(self) -> None:
        path = Path(self._home, "rollbacks", f"{self._number + 1:010d}.json")
        if not path.exists():
            return
        told = json.loads(path.read_text())
        self._number += 1
        self.rollbacks.append(told)
        for name, channel in {**self._sources, **self._query}.items():
            if name in told["flows"]:
                channel.goes_back(int(told["flows"][name]["batch"]))


class Checkpoints:
    """Those of all flows, before they are forgotten."""

    def __init__(self, home: str, flows: Sequence[str], began: float) -> None:
        """`began`: s since the epoch."""
        self._places = {name: Path(home, "flows", name, "cec", DIRECTORY) for name in flows}
        self._began = began
        self._found: dict[tuple[str, int, int], Taken] = {}

    def look(self) -> None:
        """Takes in what is there now."""
        for name, place in self._places.items():
            for path in place.glob("*.json") if place.is_dir() else ():
                try:
                    fields = json.loads(path.read_text())
                except (FileNotFoundError, ValueError):  # forgotten, or not whole yet
                    continue
                end, number = fields["wall_ms"] / 1000 - self._began, int(fields["number"])
                begun = end - fields["took_ms"] / 1000
                taken = Taken(name, number, begun, end, fields["forced"], fields["round"])
                self._found[name, number, int(fields["wall_ms"])] = taken

    @property
    def taken(self) -> tuple[Taken, ...]:
        """All that were seen, those of a history that was given up, too."""
        return tuple(sorted(self._found.values(), key=lambda each: each.durable_s))


def recovery_of(told: Mapping[str, Any], restart_s: float) -> Recovery:
    """From what the pipeline has written down of a rollback."""
    flows = told["flows"].values()
    return Recovery(
        restart_s, told["took_ms"] / 1000, len(flows), sum(each["batches"] for each in flows),
        sum(each["invalid"] for each in flows),
    )  # fmt: skip


def bytes_of(home: str, flows: Sequence[str]) -> tuple[int, int, int]:
    """Of the messages of these flows: all bytes, and those that the protocol has added. And what the stores wrote."""
    payload = added = stores = 0
    for name in flows:
        storage = open_storage(f"{home}/flows/{name}/cec/log")
        log_id = read_log_id(storage)
        if log_id is None:
            continue
        catalog = Catalog(storage, MemoryIndex(log_id))
        catalog.refresh()
        for batch in batches(storage):
            manifest = load(storage, batch)
            outputs = (catalog.index.output(bytes.fromhex(frame)) for frame in manifest.frames)
            payload += sum(each.location.length for each in outputs if each is not None)
            more = 0 if manifest.piggyback is None else len(json.dumps(manifest.piggyback, separators=(",", ":")))
            added += more
            payload += len(json.dumps([each.end for each in manifest.consumed])) + 200  # of the manifest itself
        for store in catalog.index.stores():
            stores += sum(each.location.length for each in catalog.index.frames(store, 0, 1 << 62))
    return payload, added, stores
