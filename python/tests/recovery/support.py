"""A query's own files, as a run leaves them, and storages that end the process before a write."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from spark_cec.adapters.fsspec_storage import open_storage
from spark_cec.log.home import join_log
from spark_cec.log.manifest import Manifest, batches, load, publish
from spark_cec.log.storage import Storage
from spark_cec.recovery.attempts import read_attempts
from spark_cec.recovery.generations import newest_generation, next_generation, record_start
from spark_cec.recovery.rollback import refuse_during_rollback
from spark_cec.recovery.spark_logs import committed_batch, planned_batches

WRITES = ("create", "replace", "delete")


class Crash(Exception):
    """The process has ended."""


class Crashing:
    """A storage that ends the process before a write, counted over all that share the `budget`."""

    def __init__(self, storage: Storage, budget: list[int]) -> None:
        self._storage = storage
        self._budget = budget

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._storage, name)
        if name not in WRITES:
            return found

        def write(*arguments: Any) -> Any:
            if self._budget[0] == 0:
                raise Crash
            self._budget[0] -= 1
            return found(*arguments)

        return write


class Query:
    """A query that has committed batches 0 to 5, and planned one more, in two runs."""

    def __init__(self, place: Path) -> None:
        self.place = place
        self.checkpoint, self.own, self.log = (open_storage(f"{place}{each}") for each in ("", "/cec", "/cec/log"))
        for name, last in (("offsets", 6), ("commits", 5)):
            for batch in range(last + 1):
                self.checkpoint.replace(f"{name}/{batch}", b"v1\n{}\n")
                self.checkpoint.replace(f"{name}/.{batch}.crc", b"crc")
        for name in ("metadata", ".metadata.crc"):
            self.checkpoint.replace(f"state/0/_metadata/{name}", b"v1")
        for began in (-1, 2):
            record_start(self.own, next_generation(self.own), began)
        join_log(self.log, None)
        for batch in range(7):
            self.publish(batch, 1 if batch < 3 else 2)

    def publish(self, batch: int, generation: int) -> None:
        publish(self.log, Manifest(batch, (), 0, "{}", False, generation, 0))

    def parts(self, budget: int | None = None) -> tuple[Any, Any, Any]:
        """Its storages; with a budget they stop before so many writes more."""
        all_of_them = (self.checkpoint, self.own, self.log)
        left = [-1 if budget is None else budget]
        return tuple(Crashing(each, left) for each in all_of_them)  # type: ignore[return-value]

    def is_back_at(self, batch: int) -> None:
        kept = list(range(batch + 1))
        assert sorted(planned_batches(self.checkpoint)) == kept
        assert committed_batch(self.checkpoint) == batch
        for log in ("offsets", "commits"):
            names = sorted(path.name for path in (self.place / log).iterdir())
            assert names == sorted(name for each in kept for name in (str(each), f".{each}.crc"))
        assert batches(self.log) == kept
        about_operators = [path.name for path in self.place.glob("state/0/_metadata/*")]
        assert sorted(about_operators) == ([".metadata.crc", "metadata"] if batch >= 0 else [])
        refuse_during_rollback(self.own)
        # The run that goes on from there owns what comes, and none before it.
        attempts = read_attempts(self.checkpoint, self.own, self.log)
        assert attempts.least_generation(batch + 2) == newest_generation(self.own)
        self.publish(batch + 1, newest_generation(self.own) + 1)
        assert load(self.log, batch + 1).generation == newest_generation(self.own) + 1
