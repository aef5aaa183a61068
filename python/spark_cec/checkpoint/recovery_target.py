"""Estimates a recovery by measurements, and derives the bounds that keep it under a target.

The recovery of one store takes `base + a q + r b u`. base is independent of the log. a q is the scan of q records, and
r b u is the replay of u tuples. The load of a store measures a, and Spark's time of each batch measures b. Earlier
recoveries give base and r (`recovery.forecast`).
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
"""a before the first measured load: the requirement of docs/benchmarks.md, 500,000 footprints per second."""

AIMED_SHARE = 0.8
"""The bounds use this share of the target; the rest covers the variation between recoveries."""

_KEPT = 0.9
"""The weight of the earlier sum after each new observation."""

_MOST_AT_ONCE = 10.0
"""An observation counts at most this many times the earlier average, so a single pause moves the rate little."""

_RESTORED_BATCHES = 5
"""After a restart, a rate from the log counts as this many batches."""

_REMEMBERED = 32
"""The number of versions whose input count is kept until Spark reports the time of their batch."""


def load_tuning() -> None:
    """Imports the tuning modules early, because that takes a while and no commit should wait; raises `ExtraMissing`."""
    with needed_by("spark.sql.streaming.stateStore.cec.autotune=on"):
        import spark_cec.tuning.optimum  # noqa: F401


@dataclass(frozen=True, slots=True)
class Forecast:
    """The driver's knowledge from earlier recoveries when the run begins.

    `base_ms`: a recovery without load and replay; None before the first recovery. `replay_ratio`: a replayed batch's
    time over its first time. `failures_per_s`: λ. `load_waves`: the loads that a core does one after another.
    """

    base_ms: float | None = None
    replay_ratio: float = 1.0
    failures_per_s: float = 0.0
    load_waves: float = 1.0

    @classmethod
    def from_json(cls, fields: Mapping[str, Any] | None) -> Forecast:
        """The inverse of `dataclasses.asdict`; `NEVER_FAILED` without fields."""
        return cls(**fields) if fields else NEVER_FAILED


NEVER_FAILED = Forecast()
"""The forecast of a query that had no recovery yet."""


@dataclass(slots=True)
class Rate:
    """Microseconds per thing, over the newest observations."""

    us: float = 0.0
    things: float = 0.0

    def add(self, us: float, things: float) -> None:
        """Adds one observation; older ones fade."""
        if self.things:
            us = min(us, _MOST_AT_ONCE * self.value * things)
        self.us = self.us * _KEPT + us
        self.things = self.things * _KEPT + things

    @property
    def value(self) -> float:
        """Microseconds per thing; 0 without an observation."""
        return self.us / self.things if self.things > 0 else 0.0


@dataclass(slots=True)
class Calibration:
    """The measurements of one store; the newest commit's footer restores them.

    `scanned`: records that the last load of an eventual checkpoint scanned. `checked`: windows that the newest commit
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
        """The measurements in the footer of the newest commit."""
        if meta is None:
            return cls()
        tuples = float(max(meta.inputs, 1) * _RESTORED_BATCHES) if meta.replay_us_per_tuple else 0.0
        return cls(
            meta.load_us_per_record, meta.recovery_base_ms, Rate(meta.replay_us_per_tuple * tuples, tuples)
        )  # fmt: skip

    def note_load(self, ms: float, forecast: Forecast) -> None:
        """Records the time of the last load of an eventual checkpoint."""
        if self.scanned:
            self.load_us_per_record = ms * 1000 * forecast.load_waves / self.scanned

    def note_commit(self, meta: CommitMeta, encode_us: float = 0.0, bytes_: int = 0, windows: int = 0) -> None:
        """Records a durable commit and its costs; its input counts once the time of its batch is known.

        `encode_us`: the time after the footer was made, without the wait for durability. `bytes_`: the payload's size.
        `windows`: the windows that the commit opened and checked.
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
        """Records the time that Spark reports for a batch; counts it once, and only if the batch was committed here.

        A batch without input adds its time to the next batch, because a replay runs both; an example is Spark's extra
        batch for a watermark. That addition is at most the next batch's own time, so that an idle store beside busy
        ones learns little from idle batches.
        """
        inputs = self._inputs.pop(batch, None)
        if inputs is None:
            return
        us = max(ms, 0.0) * 1000  # a clock that was set back gives a negative time
        if inputs:
            self.replay.add(us + min(self._idle_us, us), inputs)
            self._idle_us = 0.0
        else:
            self._idle_us += us

    def record_start(self, since_start_ms: float, forecast: Forecast) -> None:
        """Records the time from the run's start to its first commit: the base until a recovery gives a better one."""
        if forecast.base_ms is not None:
            self.base_ms = forecast.base_ms
        elif not self.base_ms:
            self.base_ms = since_start_ms

    def estimate_ms(self, extent: int, replay: int, forecast: Forecast) -> float:
        """The time of a recovery in ms; 0 if tuples must be replayed and no batch was timed."""
        if replay and not self.replay.value:
            return 0.0
        return self.base_ms + (self._load_us * extent + forecast.replay_ratio * self.replay.value * replay) / 1000

    @property
    def _load_us(self) -> float:
        return self.load_us_per_record or PRIOR_LOAD_US_PER_RECORD

    def sign_footer(self, meta: CommitMeta, forecast: Forecast) -> CommitMeta:
        """The commit's footer with the measurements so far."""
        return replace(
            meta,
            load_us_per_record=self.load_us_per_record,
            replay_us_per_tuple=self.replay.value,
            recovery_base_ms=self.base_ms,
            recovery_estimate_ms=self.estimate_ms(meta.extent, meta.replay, forecast),
        )

    def plan(self, settings: Settings, forecast: Forecast, ledger: Footprints, retained_batches: int) -> Plan:
        """The plan for the next commit, by the measurements so far; `retained_batches` as in `plan_after`."""
        bounds = self.bounds(settings, forecast, ledger)
        return plan_after(ledger, bounds, retained_batches, self.worth_bound(bounds, forecast, ledger))

    def bounds(self, settings: Settings, forecast: Forecast, ledger: Footprints) -> Settings:
        """The settings with Q, U and CP as the recovery target and autotuning set them now."""
        if settings.recovery_target_ms is not None:
            settings = self._apply_target(settings, settings.recovery_target_ms, forecast, ledger)
        return self._apply_autotune(settings, forecast, ledger) if settings.autotune else settings

    def _apply_target(self, settings: Settings, target_ms: float, forecast: Forecast, ledger: Footprints) -> Settings:
        """Gives the scan the time for two records per window, but at most half, and the replay the rest."""
        left_us = max(AIMED_SHARE * target_ms - self.base_ms, 0.0) * 1000
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
        """The replay in tuples that is cheap to keep, if it is less than U, else None; see `checkpoint.effort`.

        CI/CP does not limit it. CI/CP is a share of the store's own task time, which is tiny with few windows. The
        effort is a share of all time.
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

    def _apply_autotune(self, settings: Settings, forecast: Forecast, ledger: Footprints) -> Settings:
        """Sets CP and U so that a store writes its changed windows once in T*, which takes the share c/T* of its time.

        c is the time to write the dirty windows and the windows that the newest commit checked. Clean windows need no
        writes, so c grows with T. Each commit moves c and T closer to the point where they agree.
        """
        cost_s = self.write.value * (ledger.dirty_windows + self.checked) / 1e6
        if cost_s <= 0 or forecast.failures_per_s <= 0 or settings.checkpoint_ms <= 0:
            return settings
        # Few queries use autotune, and scipy takes a while to load.
        from spark_cec.tuning.optimum import optimal_interval

        interval_s = float(optimal_interval(checkpoint_s=cost_s, failures_per_s=forecast.failures_per_s))
        share = min(cost_s / interval_s, 1.0)
        tuples = interval_s * 1e6 / self.replay.value if self.replay.value else settings.replay_bound
        return replace(
            settings,
            period_ms=settings.checkpoint_ms / share,
            replay_bound=max(min(int(tuples), settings.replay_bound), 1),
        )
