"""One store's life: batches, crashes and recoveries, beside a perfect model in memory."""

from __future__ import annotations

import contextlib
import itertools
import json
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from spark_cec.adapters.fsspec_storage import open_storage
from spark_cec.checkpoint.eventual import head_at
from spark_cec.checkpoint.policy import REPLAY_MARGIN
from spark_cec.ids import StoreId
from spark_cec.log.catalog import Catalog
from spark_cec.log.home import read_log_id
from spark_cec.log.index import Index, MemoryIndex
from spark_cec.log.reader import read_many
from spark_cec.log.segment import segment_path
from store_it.jvm import Key, Step, Stores, pairs
from store_it.operators import Batch, Operator, State, apply_changes

AMPLE_MS = 10_000
"""Time of a task whose checks are then not limited by time, with CI = CP."""


_runs = itertools.count()
_states = itertools.count()


@dataclass(frozen=True, slots=True)
class Bounds:
    """Q (`records` or `per_window`), U, and how many batches Spark retains. `checks` is off with CI=0ms."""

    records: int = 0
    per_window: float = 2.0
    replay: int = 1_000_000
    retained: int = 100
    checks: bool = True

    def conf(self) -> dict[str, str]:
        """As settings of the stores."""
        extent = str(self.records) if self.records else f"{self.per_window}x"
        return {
            "Q": extent,
            "U": str(self.replay),
            "CI": "10ms" if self.checks else "0ms",
            "CP": "10ms",
            "log__segmentBytes": "8KiB",
        }

    def extent(self, rows: int) -> float:
        """Most records that may have to be scanned, for that many state keys."""
        return max(self.records, self.per_window * rows if not self.records else 0, rows)


class LogReader:
    """Reads what the stores wrote to the log at `home`."""

    def __init__(self, home: str) -> None:
        self.home = home
        self._storage = open_storage(home)
        self._catalog: Catalog | None = None

    def _index(self) -> Index:
        if self._catalog is None:
            log_id = read_log_id(self._storage)
            assert log_id is not None, f"no log at {self.home}"
            self._catalog = Catalog(self._storage, MemoryIndex(log_id))
        self._catalog.refresh()
        return self._catalog.index

    def flushed(self, store: StoreId, version: int, checkpoint_id: str) -> int:
        """Records in the flush of a commit; 0 if there is none."""
        flush = self._index().flush(store, version, bytes.fromhex(checkpoint_id))
        return flush.meta.records if flush else 0

    def dirty_from(self, store: StoreId, version: int) -> int:
        """D of what stands for a version."""
        return head_at(self._index(), store, version).meta.dirty_from if version else 0

    def damage(self, store: StoreId, version: int) -> None:
        """Flips a bit in the records of every frame of a version."""
        for entry in self._index().frames(store, version, version):
            if entry.meta.records:
                path = Path(self.home) / segment_path(entry.location.segment)
                with path.open("r+b") as file:
                    file.seek(entry.location.end - 6)
                    byte = file.read(1)[0]
                    file.seek(entry.location.end - 6)
                    file.write(bytes([byte ^ 0x40]))

    def verdicts(self, store: StoreId, generation: int) -> list[bool | None]:
        """Whether the digest was right, for each load of the store in that run of the query."""
        found = [entry.location for entry in self._index().loaded(generation) if entry.meta.store == store]
        return [json.loads(bytes(frame.payload))["digest_ok"] for frame in read_many(self._storage, found)]


@dataclass
class History:
    """A store in deferred mode. `truth` is the state per version, `inputs` and `records` are its commit's counts."""

    jvm: Stores
    log: LogReader
    operator_id: int
    operator: Operator
    bounds: Bounds
    batches: list[Batch] = field(default_factory=list)
    truth: list[State] = field(default_factory=lambda: [{}])
    inputs: dict[int, int] = field(default_factory=dict)
    records: dict[int, int] = field(default_factory=dict)
    generation: int = 0
    replay_to: int = 0
    base: int = 0
    target: str = ""

    @property
    def version(self) -> int:
        """The newest committed version: as many batches as were committed."""
        return len(self.truth) - 1

    @property
    def store(self) -> StoreId:
        """Its name in the log."""
        return StoreId(self.operator_id, 0)

    def start(self, replay_to: int, generation: int | None = None, base: int | None = None) -> None:
        """A fresh store for the next run of the query; the one before is left as it is. `base`: it falls back there."""
        self.generation = self.generation + 1 if generation is None else generation
        self.replay_to, self.base = replay_to, replay_to if base is None else base
        self.open()

    def open(self, executor: int = 0, *, hears_late: bool = False) -> None:
        """A fresh store of this run, on an executor that asks the run's other ones for windows; they stay as they are.

        `hears_late`: those that hand the store over seem to say no.
        """
        run = f"{self.log.home}/{self.operator_id}/{self.generation}/{self.replay_to}"
        self.target = f"{run}/{executor}/{next(_states)}"
        self.jvm.ask(
            "state",
            name=self.target,
            group=run,
            hears_late=hears_late,
            home=self.log.home,
            operator=self.operator_id,
            partition=0,
            generation=self.generation,
            grouped=self.operator.grouped,
            deferred=True,
            replay_to=self.replay_to,
            base=self.base,
            retained=self.bounds.retained,
            # In every other run most windows are on the disk.
            conf=self.jvm.conf(**self.bounds.conf(), memory="4KiB" if next(_runs) % 2 else "50%"),
        )

    def do(self, *steps: Step) -> list[Any]:
        """Steps on the present store."""
        return self.jvm.do(self.target, *steps)

    def visible(self, version: int) -> State:
        """Begins a batch; the state that its operator sees."""
        return pairs(self.do(("begin", version, None), ("iterate",))[1])

    def run_batch(
        self, batch_id: int, batch: Batch, task_ms: int = AMPLE_MS, operator: Operator | None = None
    ) -> dict[str, int]:
        """One micro-batch from begin to commit; the commit's metrics."""
        changes = (operator or self.operator).changes(self.visible(batch_id), batch)
        metrics = self.do(*changes, ("commit", len(batch.tuples), task_ms))[-1]
        assert isinstance(metrics, dict)
        return metrics

    def commit_next(self, batch: Batch, task_ms: int) -> None:
        """The next new batch, checked against the model and the bounds."""
        batch_id = self.version
        after = dict(self.truth[-1])
        apply_changes(after, self.operator.changes(after, batch))
        metrics = self.run_batch(batch_id, batch, task_ms)
        self.batches[batch_id:] = [batch]
        self.truth[batch_id + 1 :] = [after]
        self.inputs[batch_id + 1] = len(batch.tuples)
        self.records[batch_id + 1] = metrics["opened"] + metrics["checked"] + metrics["closed"]
        self._check_books(metrics, task_ms)

    def windows(self) -> dict[Key, tuple[int, int | None]]:
        """Footprint and first dirtying batch of each window."""
        return {tuple(window): (footprint, dirty) for window, footprint, dirty in self.do(("windows",))[0]}

    def dirty_from(self) -> int:
        """D."""
        return min((dirty for _, dirty in self.windows().values() if dirty is not None), default=self.version)

    def _check_books(self, metrics: dict[str, int], task_ms: int) -> None:
        windows = self.windows()
        expected = {key[:1] if self.operator.grouped else key for key in self.truth[-1]}
        assert windows.keys() == expected
        oldest = min((footprint for footprint, _ in windows.values()), default=self.version + 1)
        dirty = [first for _, first in windows.values() if first is not None]
        dirty_from = min(dirty, default=self.version)
        assert all(first >= footprint for footprint, first in windows.values() if first is not None)
        assert metrics["dirty"] == len(dirty)
        assert metrics["extent"] == sum(count for version, count in self.records.items() if version >= oldest)
        assert metrics["replay"] == sum(count for version, count in self.inputs.items() if version > dirty_from)
        assert dirty_from >= self.version - max(self.bounds.retained - REPLAY_MARGIN, 0), (
            "a replay needs batches that Spark forgets"
        )
        if self.bounds.checks and task_ms == AMPLE_MS and self.version > 1:
            assert metrics["replay"] <= self.bounds.replay, f"u={metrics['replay']} > U={self.bounds.replay}"
            least = len(self.truth[-1]) + metrics["closed"]
            assert metrics["extent"] <= max(self.bounds.extent(len(self.truth[-1])), least), (
                f"q={metrics['extent']} > Q, {self.bounds}"
            )
        if not self.bounds.checks:
            assert metrics["checked"] == 0 or self.bounds.retained - REPLAY_MARGIN < self.version

    def recover(
        self,
        first: int,
        rubbish: Callable[[int], Batch | None] = lambda _: None,
        operator: Operator | None = None,
        until: int | None = None,
    ) -> None:
        """A new run of the query that replays from batch `first` on: what the driver does after a crash.

        `rubbish` may replace a batch (None: the true one). `until`: crash again before that batch.
        """
        self.start(self.version)
        for batch_id in range(first, self.version if until is None else until):
            self.run_batch(batch_id, rubbish(batch_id) or self.batches[batch_id], operator=operator)
        if until is None and first < self.version:
            self.note_flush()

    def written(self, windows: dict[Key, tuple[int, int | None]]) -> dict[Key, tuple[int, int | None]]:
        """Those windows after a replay up to the present version, which ends by writing what was dirty."""
        now = self.version
        return {key: (now if since is not None else footprint, None) for key, (footprint, since) in windows.items()}

    def note_flush(self) -> None:
        """Counts what the end of a replay, or a flush, has written of the present version."""
        dirty = [window for window, (_, since) in self.windows().items() if since is not None]
        assert not dirty, f"dirty after a flush: {dirty}"
        (checkpoint_id,) = self.do(("checkpoint",))
        self.records[self.version] += self.log.flushed(self.store, self.version, checkpoint_id)

    def verdicts(self) -> list[bool | None]:
        """What the log holds of the present run's loads: whether the digest was right."""
        return self.log.verdicts(self.store, self.generation)


@contextlib.contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Says with which seed it went wrong."""
    try:
        yield
    except Exception as error:
        raise AssertionError(f"seed {seed}: {error}") from error


def random_bounds(rng: random.Random) -> Bounds:
    """Tight and loose ones."""
    return Bounds(
        records=rng.choice([0, 0, 12, 30]),
        per_window=rng.choice([1.0, 1.5, 2.0, 4.0]),
        replay=rng.choice([1, 5, 20, 1_000_000, 1_000_000]),
        retained=rng.choice([6, 9, 100]),
        checks=rng.random() < 0.8,
    )
