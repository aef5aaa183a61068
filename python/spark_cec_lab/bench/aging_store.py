"""A state store of counts: it obeys the agent's plans as the shim does, without a JVM."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

import pyarrow as pa

from spark_cec.agent.messages import CommitPlan, ExtentStep, ReplayStep, StoreCommit
from spark_cec.ids import StoreId, new_id
from spark_cec.log.record import PLAIN_SCHEMA, RecordKind

_CLEAN = 1 << 62


class Workload(Protocol):
    """What a batch does: windows to open, to touch and to close."""

    def batch(self, number: int) -> tuple[list[int], list[int], list[int]]:
        """Of a batch."""


@dataclass(frozen=True, slots=True)
class Quiet:
    """Ten windows of the first batch; nobody touches them again."""

    def batch(self, number: int) -> tuple[list[int], list[int], list[int]]:
        """Openings in batch 0."""
        return (list(range(10)), [], []) if number == 0 else ([], [], [])


@dataclass(frozen=True, slots=True)
class Busy:
    """Fifty windows that stay, twenty of them touched by each batch."""

    def batch(self, number: int) -> tuple[list[int], list[int], list[int]]:
        """Openings in batch 0, then touches."""
        return (list(range(50)), [], []) if number == 0 else ([], [(number * 20 + i) % 50 for i in range(20)], [])


@dataclass(frozen=True, slots=True)
class Passing:
    """Three windows open in each batch and close thirty batches later."""

    def batch(self, number: int) -> tuple[list[int], list[int], list[int]]:
        """Openings, and closings once there are old ones."""
        closing = number - 30
        return [3 * number + i for i in range(3)], [], [3 * closing + i for i in range(3)] if closing >= 0 else []


@dataclass
class AgingStore:
    """One store; `footprint` and `dirty` by window, as its books."""

    partition: int
    workload: Workload
    version: int = 0
    footprint: dict[int, int] = field(default_factory=dict)
    dirty: dict[int, int] = field(default_factory=dict)
    plan: CommitPlan | None = None
    whole: bool = True
    base_id: str | None = None

    @property
    def id(self) -> StoreId:
        """As calls name it."""
        return StoreId(0, self.partition)

    @property
    def ledger_span(self) -> int:
        """Versions that the agent's ledger of this store has to know."""
        return self.version - min([*self.footprint.values(), *self.dirty.values()], default=self.version) + 1

    def commit(self, generation: int, retained: int) -> tuple[StoreCommit, pa.Table | None]:
        """The next batch: its request, without a spool file, and its records."""
        opened, touched, closed = self.workload.batch(self.version)
        before, version = dict(self.footprint), self.version + 1
        for window in touched:
            self.dirty.setdefault(window, self.version)
        for window in closed:
            del self.footprint[window]
            self.dirty.pop(window, None)
        inputs = len(opened) + len(touched)
        checked = self._checks(len(opened) + len(closed), inputs)
        for window in (*opened, *checked):
            self.footprint[window] = version
            self.dirty.pop(window, None)
        checkpoint_id = new_id().hex()
        request = StoreCommit(
            store=self.id, version=version, generation=generation, retained=retained, forecast=None,
            checkpoint_id=checkpoint_id, base_checkpoint_id=self.base_id, spool=None, live=tuple(self._live(before)),
            live_is_whole=self.whole, digest="0", flags=0, open_windows=len(self.footprint),
            state_rows=len(self.footprint),
            dirty_from=min(self.dirty.values(), default=version), dirty_windows=len(self.dirty),
            opened=len(opened), checked=len(checked), closed=len(closed), inputs=inputs, elapsed_us=100,
        )  # fmt: skip
        self.version, self.base_id, self.whole = version, checkpoint_id, False
        return request, _records(opened, checked, closed)

    def _live(self, before: dict[int, int]) -> list[tuple[int, int]]:
        changes: dict[int, int] = {}
        for footprints, sign in ((self.footprint, 1), *([] if self.whole else [(before, -1)])):
            for at in footprints.values():
                changes[at] = changes.get(at, 0) + sign
        return [(at, change) for at, change in changes.items() if change]

    def _checks(self, records: int, inputs: int) -> list[int]:
        """With time enough for all that the plan asks for."""
        plan = self.plan
        if plan is None:
            return []
        replay = _look_up(plan.replay_steps, plan.replay_bound - inputs)
        limit = max(plan.extent_records, int(plan.extent_per_window * len(self.footprint)), len(self.footprint))
        extent = _look_up(plan.extent_steps, limit - records)
        oldest = sorted(self.footprint, key=self.footprint.__getitem__)
        due = max(plan.forced_before, replay)
        return [
            window
            for rank, window in enumerate(oldest)
            if rank < plan.rewrite_windows or self.dirty.get(window, _CLEAN) < due or self.footprint[window] < extent
        ]


def _look_up(steps: Sequence[ReplayStep | ExtentStep], enough: int) -> int:
    return next((step.before for step in steps if step.cost <= enough), steps[-1].before if steps else -1)


def _records(opened: list[int], checked: list[int], closed: list[int]) -> pa.Table | None:
    kinds = [RecordKind.OPEN] * len(opened) + [RecordKind.CHECK] * len(checked) + [RecordKind.CLOSE] * len(closed)
    if not kinds:
        return None
    windows = [b"window %d" % window for window in (*opened, *checked, *closed)]
    values = [None if kind is RecordKind.CLOSE else b"%040d" % int(kind) for kind in kinds]
    kind_column = pa.array([int(kind) for kind in kinds], pa.int8())
    return pa.table([kind_column, pa.array(windows, pa.binary()), pa.array(values, pa.binary())], schema=PLAIN_SCHEMA)
