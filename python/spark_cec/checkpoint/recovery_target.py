"""What a recovery would take, by what was measured here, and the bounds that keep it under a target.

A recovery of one store waits `base + a q + r b u`: for all that has nothing to do with the log, for the scan of q
records, and for the replay of u tuples. a is measured when a store is loaded, b whenever Spark says how long a batch
took, base and r come from the recoveries that there were (`recovery.forecast`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from spark_cec.checkpoint.effort import WriteCost, rewrites_per_check, saves_little, worthwhile_replay
from spark_cec.checkpoint.footprints import Footprints
from spark_cec.checkpoint.policy import Plan, plan_after
from spark_cec.extras import needed_by
from spark_cec.log.frame import CommitMeta
from spark_cec.settings import ExtentBound, Settings

PRIOR_LOAD_US_PER_RECORD = 2.0
"""a before the first load was measured: the must of docs/benchmarks.md, 500,000 footprints per second."""

AIM = 0.8
"""The share of the target that is aimed at: the rest is for what differs from one recovery to the next."""

_KEPT = 0.9
"""How much of what was summed up counts on, from one batch to the next."""

_MOST_AT_ONCE = 10.0
"""What an observation counts for at most, by what those before it came to: one pause tells nothing, several do."""

_RESTORED_BATCHES = 5
"""As how many batches a rate from the log counts after a restart."""

_REMEMBERED = 32
"""Versions whose input counts are kept until Spark says how long their batch took."""


def load_tuning() -> None:
    """Loads what autotuning needs, which takes a while, so that no commit waits for it; raises `ExtraMissing`."""
    with needed_by("spark.sql.streaming.stateStore.cec.autotune=on"):
        import spark_cec.tuning.optimum  # noqa: F401


@dataclass(frozen=True, slots=True)
class Forecast:
    """What the driver knew when the run began, from the recoveries before it.

    `base_ms`: a recovery beside load and replay; None before the first. `replay_ratio`: time of a replayed batch over
    its first time. `failures_per_s`: λ. `load_waves`: loads that a core does one after another.
    """

    base_ms: float | None = None
    replay_ratio: float = 1.0
    failures_per_s: float = 0.0
    load_waves: float = 1.0

    @classmethod
    def from_json(cls, fields: Mapping[str, Any] | None) -> Forecast:
        """The inverse of `dataclasses.asdict`; without fields `NEVER_FAILED`."""
        return cls(**fields) if fields else NEVER_FAILED


NEVER_FAILED = Forecast()
"""The forecast of a query that had no recovery yet."""


@dataclass(slots=True)
class Rate:
    """Time per thing, in microseconds, over the last few observations."""

    us: float = 0.0
    things: float = 0.0

    def add(self, us: float, things: float) -> None:
        """Takes in one observation; the older ones fade."""
        if self.things:
            us = min(us, _MOST_AT_ONCE * self.value * things)
        self.us = self.us * _KEPT + us
        self.things = self.things * _KEPT + things

    @property
    def value(self) -> float:
        """Microseconds per thing; 0 if nothing was observed."""
        return self.us / self.things if self.things > 0 else 0.0


@dataclass(slots=True)
class Calibration:
    """What was measured for one store; restored from the newest commit's footer.

    `scanned`: records that the last load of an eventual checkpoint went over. `checked`: windows that the newest commit
    checked.
    """

    load_us_per_record: float = 0.0
    base_ms: float = 0.0
    replay: Rate = field(default_factory=Rate)
    write: Rate = field(default_factory=Rate)
    write_cost: WriteCost = field(default_factory=WriteCost)
    scanned: int = 0
    checked: int = 0
    _inputs: dict[int, int] = field(default_factory=dict)
    _idle_us: float = 0.0

    @classmethod
    def of(cls, meta: CommitMeta | None) -> Calibration:
        """As the footer of the newest commit has it."""
        if meta is None:
            return cls()
        tuples = float(max(meta.inputs, 1) * _RESTORED_BATCHES) if meta.replay_us_per_tuple else 0.0
        return cls(
            meta.load_us_per_record, meta.recovery_base_ms, Rate(meta.replay_us_per_tuple * tuples, tuples)
        )  # fmt: skip

    def note_load(self, ms: float, forecast: Forecast) -> None:
        """The last load of an eventual checkpoint took so long."""
        if self.scanned:
            self.load_us_per_record = ms * 1000 * forecast.load_waves / self.scanned

    def note_commit(self, meta: CommitMeta, encode_us: float = 0.0, bytes_: int = 0, windows: int = 0) -> None:
        """A commit is durable: its input counts once its batch's time is known, and it tells what writing costs.

        `encode_us`: what came after the footer was made, but for the wait until it was durable. `bytes_`: its payload.
        `windows`: how many it has opened and checked.
        """
        self._inputs[meta.version - 1] = meta.inputs
        while len(self._inputs) > _REMEMBERED:
            del self._inputs[next(iter(self._inputs))]
        self.checked = meta.checked
        self.write_cost.add(
            us=meta.elapsed_us + encode_us,
            records=meta.records,
            bytes_=bytes_,
            rows=meta.opened + meta.checked,
            windows=windows,
        )
        if meta.records:
            self.write.add(meta.elapsed_us, meta.records)

    def note_batch(self, batch: int, ms: float) -> None:
        """Spark says how long a batch took; counted once, and only if it was first run here.

        One without input makes the next one dearer, as where the watermark has a batch of its own: a replay runs both.
        But a store that is idle beside busy ones learns nothing from its idleness.
        """
        inputs = self._inputs.pop(batch, None)
        if inputs is None:
            return
        us = max(ms, 0.0) * 1000  # of a clock that was set back
        if inputs:
            self.replay.add(us + min(self._idle_us, us), inputs)
            self._idle_us = 0.0
        else:
            self._idle_us += us

    def note_start(self, since_start_ms: float, forecast: Forecast) -> None:
        """How long after the run's start its first commit came: the base, until there was a recovery to learn from."""
        if forecast.base_ms is not None:
            self.base_ms = forecast.base_ms
        elif not self.base_ms:
            self.base_ms = since_start_ms

    def estimate_ms(self, extent: int, replay: int, forecast: Forecast) -> float:
        """How long a recovery would take; 0 if what it would replay was never timed."""
        if replay and not self.replay.value:
            return 0.0
        return self.base_ms + (self._load_us * extent + forecast.replay_ratio * self.replay.value * replay) / 1000

    @property
    def _load_us(self) -> float:
        return self.load_us_per_record or PRIOR_LOAD_US_PER_RECORD

    def signed(self, meta: CommitMeta, forecast: Forecast) -> CommitMeta:
        """The footer of a commit, with what was measured by now."""
        return replace(
            meta,
            load_us_per_record=self.load_us_per_record,
            replay_us_per_tuple=self.replay.value,
            recovery_base_ms=self.base_ms,
            recovery_estimate_ms=self.estimate_ms(meta.extent, meta.replay, forecast),
        )

    def plan(self, settings: Settings, forecast: Forecast, ledger: Footprints, retained_batches: int) -> Plan:
        """The plan for the next commit, by what was measured so far; `retained_batches` as `plan_after` has it."""
        bounds = self.bounds(settings, forecast, ledger)
        return plan_after(ledger, bounds, retained_batches, self.worth_bound(bounds, forecast, ledger))

    def bounds(self, settings: Settings, forecast: Forecast, ledger: Footprints) -> Settings:
        """The settings with Q, U and CP as the recovery target and autotuning would have them now."""
        if settings.recovery_target_ms is not None:
            settings = self._for_target(settings, settings.recovery_target_ms, forecast, ledger)
        return self._autotuned(settings, forecast, ledger) if settings.autotune else settings

    def _for_target(self, settings: Settings, target_ms: float, forecast: Forecast, ledger: Footprints) -> Settings:
        """The scan gets what two records per window need, but no more than half; the replay gets the rest."""
        left_us = max(AIM * target_ms - self.base_ms, 0.0) * 1000
        least_us = self._load_us * ledger.open_windows
        load_us = max(least_us, min(2 * least_us, left_us / 2))
        per_tuple_us = forecast.replay_ratio * self.replay.value
        tuples = (left_us - load_us) / per_tuple_us if per_tuple_us else settings.replay_bound
        return replace(
            settings,
            extent_bound=ExtentBound(records=max(int(load_us / self._load_us), 1)),
            replay_bound=max(min(int(tuples), settings.replay_bound), 1),
        )

    def worth_bound(self, settings: Settings, forecast: Forecast, ledger: Footprints) -> int | None:
        """The replay in tuples that is cheap to keep to, where that is less than U: see `checkpoint.effort`.

        CI/CP has no say in it: that is a share of the store's own task time, which is next to nothing where there are
        few windows, while the effort is a share of all time.
        """
        changing = ledger.dirty_windows + self.checked
        off = settings.autotune or settings.effort <= 0 or settings.checkpoint_ms <= 0
        if off or not changing:
            return None
        if saves_little(settings.replay_bound, ledger.open_windows):
            return 1
        if not self.replay.value:
            return None
        tuples = worthwhile_replay(
            self.write_cost,
            dirty_windows=ledger.dirty_windows,
            checked_rows=self.checked,
            rewrites=rewrites_per_check(settings.extent_bound, ledger.open_windows),
            waves=forecast.load_waves,
            effort=settings.effort,
            replay_us_per_tuple=self.replay.value,
        )
        return tuples if tuples < settings.replay_bound else None

    def _autotuned(self, settings: Settings, forecast: Forecast, ledger: Footprints) -> Settings:
        """What has changed is written once in T*, which is the share c/T* of the time; what came before T* is clean.

        c is what it takes to write the windows that are dirty, and those that the newest commit has just made clean:
        clean windows need no writing, so c grows with T, and is followed from commit to commit to where they agree.
        """
        cost_s = self.write.value * (ledger.dirty_windows + self.checked) / 1e6
        if cost_s <= 0 or forecast.failures_per_s <= 0 or settings.checkpoint_ms <= 0:
            return settings
        # Imported where it is needed: few queries are tuned, and scipy takes a while to load.
        from spark_cec.tuning.optimum import optimal_interval

        interval_s = float(optimal_interval(checkpoint_s=cost_s, failures_per_s=forecast.failures_per_s))
        share = min(cost_s / interval_s, 1.0)
        tuples = interval_s * 1e6 / self.replay.value if self.replay.value else settings.replay_bound
        return replace(
            settings,
            period_ms=settings.checkpoint_ms / share,
            replay_bound=max(min(int(tuples), settings.replay_bound), 1),
        )
