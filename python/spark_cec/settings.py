"""The `cec.*` settings: parsed once, into one frozen value.

Keys are spelled without their common prefix `spark.sql.streaming.stateStore.cec.`; the prefix is what lets Spark
carry them to the executors.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

from spark_cec.errors import SettingsError

PREFIX = "spark.sql.streaming.stateStore.cec."
PROVIDER_KEY = "spark.sql.streaming.stateStore.providerClass"
PROVIDER = "org.apache.spark.sql.cec.CecStateStoreProvider"

_DURATION_UNITS_MS = {"us": 0.001, "ms": 1.0, "s": 1_000.0, "min": 60_000.0, "h": 3_600_000.0}
_SIZE_UNITS = {
    "": 1,
    "b": 1,
    "kb": 1 << 10,
    "kib": 1 << 10,
    "mb": 1 << 20,
    "mib": 1 << 20,
    "gb": 1 << 30,
    "gib": 1 << 30,
}
_MORE_SIZE_UNITS = {"k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40, "tb": 1 << 40, "tib": 1 << 40}
"""As Spark writes them. A setting has none of these, because the JVM reads some settings itself."""


_FOOTPRINT_AGE = 1_000


class Mode(str, Enum):
    """Whether commits may be deferred: decided per query, never, or insisted on."""

    AUTO = "auto"
    EAGER = "eager"
    DEFERRED = "deferred"


class WriteAt(str, Enum):
    """When the stores of an executor write their commits.

    Each at the end of its task; or all together when the tasks have ended, before Spark commits the batch; or all
    together while Spark commits the batch.
    """

    TASK = "task"
    BATCH = "batch"
    ASYNC = "async"


@dataclass(frozen=True, slots=True)
class ExtentBound:
    """Q: the most log records that recovery may have to scan, per store.

    Either `records`, a count, or `per_window`, a multiple of the open windows; the other one is 0.
    """

    records: int = 0
    per_window: float = 0.0

    def limit(self, open_windows: int) -> float:
        """The bound in records; never below one record per open window, which is what a state needs at least."""
        return max(float(self.records), self.per_window * open_windows, float(open_windows))

    def __str__(self) -> str:
        return f"{self.per_window:g}x" if self.per_window else str(self.records)


@dataclass(frozen=True, slots=True)
class ProtocolSettings:
    """That a query is a flow of a pipeline under a checkpointing protocol: set by `Pipeline`, for its own sessions.

    `home`: of the pipeline; `run`: of all its flows, from one line on. `takes_part`: else it only reads what
    the protocol does not take back.
    """

    home: str
    flow: str
    run: str
    takes_part: bool


@dataclass(frozen=True, slots=True)
class Settings:
    """Everything a user can set, with units in the names and the defaults of docs/settings.md.

    `effort`: the share of an operator's time that may go into a shorter replay than U allows (`checkpoint.effort`).
    `footprint_age`: the most versions that the newest footprint of an open window may lie behind the store's version.
    `order_free_functions`: the user vouches that functions over arbitrary state do not depend on the order of rows.
    `output_readers`: streams with these names read the output; what all of them are through with is let go.
    `quiet_inputs_ms`: by how much the clock moves the watermark of an input that has no more rows; None: it does not.
    `sources_margin`: what is dirty is written when a source has less than this share of its past beyond what a recovery
    needs (`recovery.margin`); 0: never. `write_at`: None if the storage and the query decide. `bundle_segments`: how
    many segments of an object store's log go into one object; None: each stays an object of its own. `bundle_after_ms`:
    how long they stay beside it.
    """

    extent_bound: ExtentBound = ExtentBound(per_window=2.0)
    replay_bound: int = 1_000_000
    checkpoint_ms: float = 20.0
    period_ms: float = 100.0
    effort: float = 0.02
    footprint_age: int = _FOOTPRINT_AGE
    mode: Mode = Mode.AUTO
    log_path: str | None = None
    python: str | None = None
    segment_bytes: int = 64 << 20
    bundle_segments: int | None = 32
    bundle_after_ms: float = 10_000.0
    compression: str = "zstd"
    retain_output_batches: int | None = None
    output_readers: tuple[str, ...] = ()
    replayable_sources: tuple[str, ...] = ()
    order_free_functions: bool = False
    sources_margin: float = 0.1
    quiet_inputs_ms: float | None = None
    index_path: str | None = None
    recovery_target_ms: float | None = None
    autotune: bool = False
    accepts_divergence: bool = False
    flush_at_stop: bool = True
    write_at: WriteAt | None = None
    protocol: ProtocolSettings | None = None
    warnings: tuple[str, ...] = field(default=(), compare=False)

    @property
    def checkpoint_share(self) -> float:
        """CI/CP: the share of a store's task time that checkpointing may take."""
        return self.checkpoint_ms / self.period_ms

    def describe(self) -> str:
        """The numbers, or what stands in for them, as the log line at a query's start shows them."""
        bounds = (
            f"Q={self.extent_bound} U={self.replay_bound}"
            if self.recovery_target_ms is None
            else f"recoveryTarget={self.recovery_target_ms:g}ms"
        )
        if self.autotune:
            share = f"CI={self.checkpoint_ms:g}ms autotune"
        elif self.recovery_target_ms is not None and self.checkpoint_share == 1.0:
            share = "CI/CP=as the target needs"
        else:
            share = f"CI={self.checkpoint_ms:g}ms CP={self.period_ms:g}ms"
        effort = f" effort={self.effort:g}" if self.checkpoint_ms and not self.autotune else ""
        age = f" footprintAge={self.footprint_age}" if self.footprint_age != _FOOTPRINT_AGE else ""
        return f"{bounds} {share}{effort}{age} mode={self.mode.value}"


def duration_ms(key: str, value: str) -> float:
    """A duration of a setting, such as 10ms. Raises `SettingsError`."""
    match = re.fullmatch(r"\s*(\d{1,15}(?:\.\d{1,15})?)\s*([a-z]+)\s*", value.lower())
    if not match or match[2] not in _DURATION_UNITS_MS:
        raise SettingsError(PREFIX + key, value, "give a duration with a unit, such as 10ms, 1s or 5min, not below 0")
    return float(match[1]) * _DURATION_UNITS_MS[match[2]]


def _whole_duration(key: str, value: str) -> None:
    """Checks a duration that the JVM will parse, by Spark's rules: a whole number with a unit."""
    if not re.fullmatch(r"\d{1,9}\s*(ms|s|m|min|h)", value.strip().lower()) or value.strip().startswith("0"):
        raise SettingsError(PREFIX + key, value, "give a whole number above 0 with a unit, such as 90s or 10min")


def size_bytes(key: str, value: str) -> int:
    """A size of a user's option, such as 64MiB or 10g, in bytes, above 0. Raises `SettingsError`."""
    match = re.fullmatch(r"\s*(\d{1,15})\s*([a-z]*)\s*", value.lower(), re.ASCII)
    units = {**_SIZE_UNITS, **_MORE_SIZE_UNITS}
    if not match or match[2] not in units or not int(match[1]):
        raise SettingsError(PREFIX + key, value, "give a size above 0, such as 64MiB or 10g")
    return int(match[1]) * units[match[2]]


def _size(key: str, value: str) -> int:
    match = re.fullmatch(r"\s*(\d+)\s*([a-z]*)\s*", value.lower())
    if not match or match[2] not in _SIZE_UNITS:
        raise SettingsError(PREFIX + key, value, "give a size such as 64MiB")
    size = int(match[1]) * _SIZE_UNITS[match[2]]
    if size < 4096:
        raise SettingsError(PREFIX + key, value, "give at least 4KiB")
    return size


def _memory(value: str) -> None:
    """`memory`: a size, or a share of the heap. The shim takes it from its configuration itself."""
    share = re.fullmatch(r"\s*(\d{1,3})\s*%\s*", value, re.ASCII)
    if share is None:
        _size("memory", value)
    elif not 1 <= int(share[1]) <= 90:
        raise SettingsError(PREFIX + "memory", value, "give 1% to 90% of the heap, or a size such as 2GiB")


def _bundle(value: str) -> int | None:
    """`log.bundle`: the segments of an object, or None for `off`."""
    if value.strip().lower() == "off":
        return None
    count = _whole(value)
    if count is None or not 2 <= count <= 1000:
        raise SettingsError(PREFIX + "log.bundle", value, "give a whole number of segments from 2 to 1000, or off")
    return count


def _whole(value: str) -> int | None:
    """The number, if it is a whole one of at least 1 that fits into the 64 bits that the JVM has for it."""
    match = re.fullmatch(r"\s*([0-9]{1,25}(?:_[0-9]{1,25}){0,8})\s*", value)
    number = int(match[1]) if match else 0
    return number if 1 <= number < 1 << 63 else None


def _count(key: str, value: str) -> int:
    count = _whole(value)
    if count is None:
        raise SettingsError(PREFIX + key, value, "give a whole number of at least 1, below 2^63")
    return count


def _share(key: str, value: str) -> float:
    match = re.fullmatch(r"\s*([01](?:\.[0-9]{1,15})?)\s*", value)
    if not match or float(match[1]) > 1.0:
        raise SettingsError(PREFIX + key, value, "give a share between 0 and 1, such as 0.1; 0 turns it off")
    return float(match[1])


def _place(key: str, value: str) -> str:
    """A directory that means the same to every process: each has a working directory of its own."""
    if is_relative(value):
        raise SettingsError(PREFIX + key, value, "give an absolute path, or a URL")
    return value


def is_relative(place: str) -> bool:
    """Whether a place is meant from a working directory on."""
    return "://" not in place and not place.startswith(("/", "file:/"))


def _choice(key: str, value: str, allowed: tuple[str, ...]) -> str:
    if value.strip().lower() not in allowed:
        raise SettingsError(PREFIX + key, value, f"give one of {', '.join(allowed)}")
    return value.strip().lower()


def _extent_bound(key: str, value: str) -> tuple[ExtentBound, tuple[str, ...]]:
    match = re.fullmatch(r"\s*(\d{1,9}(?:\.\d{1,9})?)\s*x\s*", value.lower())
    if not match:
        records = _whole(value)
        if records is None:
            raise SettingsError(
                PREFIX + key,
                value,
                "give a count of records above 0 such as 500000, or a multiple of the open windows such as 2x",
            )
        return ExtentBound(records=records), ()
    if float(match[1]) >= 1.0:
        return ExtentBound(per_window=float(match[1])), ()
    warning = f"{PREFIX}{key}={value!r} cannot be attained: a state needs one record per open window; 1x is used"
    return ExtentBound(per_window=1.0), (warning,)


READER_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_-]{0,99}")
"""Of a stream that says how far it is: the name is that of a file."""

_KEYS = {
    "Q", "U", "CI", "CP", "effort", "footprintAge", "mode", "log.path", "python", "log.segmentBytes", "log.bundle",
    "log.bundleAfter", "log.compression", "output.retainBatches", "output.readers", "sources.replayable",
    "sources.margin", "sources.quiet", "functions.orderFree", "index.path", "spool.path", "agent.timeout",
    "storage.retry", "recoveryTarget", "autotune", "onDivergence", "stop.flush", "driver.python", "liveStore", "memory",
    "writeAt", "protocol", "protocol.home", "protocol.flow", "protocol.run", "replica", "replica.agreements",
    "replica.every",
}  # fmt: skip


def _all_keys() -> str:
    return f"after {PREFIX} comes one of {', '.join(sorted(_KEYS, key=str.lower))}"


def _refuse_unknown(given: Mapping[str, str]) -> None:
    for key, value in given.items():
        if key not in _KEYS:
            nearest = difflib.get_close_matches(key, _KEYS, n=1)
            by_case = [known for known in _KEYS if known.lower() == key.lower()]
            hint = f"did you mean {PREFIX}{(by_case or nearest)[0]}?" if by_case or nearest else _all_keys()
            raise SettingsError(PREFIX + key, value, f"unknown setting; {hint}")


def _switch(given: Mapping[str, str], key: str, default: str) -> bool:
    return _choice(key, given.get(key, default), ("on", "off")) == "on"


def _names(given: Mapping[str, str], key: str) -> tuple[str, ...]:
    return tuple(name.strip() for name in given.get(key, "").split(",") if name.strip())


def _readers(given: Mapping[str, str]) -> tuple[str, ...]:
    readers = _names(given, "output.readers")
    for name in readers:
        if not READER_NAME.fullmatch(name):
            raise SettingsError(
                PREFIX + "output.readers", given["output.readers"],
                f"{name!r} is no name of a reader: give names of letters, digits, _ and -, with commas between them",
            )  # fmt: skip
    return readers


def _protocol(given: Mapping[str, str]) -> ProtocolSettings | None:
    if "protocol.home" not in given:
        if "protocol" in given:
            mend = "a query alone has no protocol: declare a pipeline, Pipeline(..., protocol=...)"
            raise SettingsError(PREFIX + "protocol", given["protocol"], mend)
        return None
    flow, run = given.get("protocol.flow", ""), given.get("protocol.run", "")
    return ProtocolSettings(given["protocol.home"], flow, run, "protocol" in given)


def _quiet_inputs_ms(given: Mapping[str, str]) -> float | None:
    """`sources.quiet`: `hold`, or the time by which the clock moves a watermark."""
    text = given.get("sources.quiet", "hold").strip()
    if text == "hold":
        return None
    mend = "give hold, or a time of at least 100ms, because each step may cost a batch"
    try:
        step_ms = duration_ms("sources.quiet", text)
    except SettingsError:
        raise SettingsError(PREFIX + "sources.quiet", text, mend) from None
    if step_ms < 100:
        raise SettingsError(PREFIX + "sources.quiet", text, mend)
    return step_ms


def _recovery_target_ms(given: Mapping[str, str]) -> float | None:
    if "recoveryTarget" not in given:
        return None
    for bound in ("Q", "U"):
        if bound in given:
            raise SettingsError(
                PREFIX + bound, given[bound], "recoveryTarget stands in for Q and U: give that, or these two"
            )
    target = duration_ms("recoveryTarget", given["recoveryTarget"])
    if target <= 0:
        raise SettingsError(PREFIX + "recoveryTarget", given["recoveryTarget"], "give a time above 0, such as 5s")
    return target


def _autotune(given: Mapping[str, str]) -> bool:
    on = _switch(given, "autotune", "off")
    if on and "CP" in given:
        raise SettingsError(PREFIX + "CP", given["CP"], "autotune=on sets the period itself: give one of the two")
    if on and "effort" in given:
        raise SettingsError(PREFIX + "effort", given["effort"], "autotune=on decides that itself: give one of the two")
    return on


def parse_settings(conf: Mapping[str, str]) -> Settings:
    """Settings from a Spark conf; keys without the prefix `spark.sql.streaming.stateStore.cec.` are left alone.

    Raises `SettingsError` for an unknown key (naming the nearest known one), a malformed value, CI > CP, or two that
    rule each other out. With a recovery target and nothing said of CI and CP, checks may take what the target needs.
    """
    given = {key[len(PREFIX) :]: value for key, value in conf.items() if key.startswith(PREFIX)}
    _refuse_unknown(given)
    if "agent.timeout" in given:  # the shim's own; it is only checked here
        _whole_duration("agent.timeout", given["agent.timeout"])
    if "storage.retry" in given:  # the storage reads it when the agent starts
        duration_ms("storage.retry", given["storage.retry"])
    if "memory" in given:  # the shim's, too
        _memory(given["memory"])
    default = Settings()
    extent, warnings = _extent_bound("Q", given["Q"]) if "Q" in given else (default.extent_bound, ())
    if "liveStore" in given:
        warnings += (f"{PREFIX}liveStore has no effect any more: {PREFIX}memory bounds the memory of the state",)
    target_ms, autotune = _recovery_target_ms(given), _autotune(given)
    unlimited = target_ms is not None and not autotune and not {"CI", "CP"} & set(given)
    checkpoint_ms = duration_ms("CI", given["CI"]) if "CI" in given else default.checkpoint_ms
    checkpoint_ms = default.period_ms if unlimited else checkpoint_ms
    period_ms = duration_ms("CP", given["CP"]) if "CP" in given else default.period_ms
    if period_ms <= 0:
        raise SettingsError(PREFIX + "CP", given["CP"], "the period must be longer than 0")
    if checkpoint_ms > period_ms:
        raise SettingsError(
            PREFIX + "CI",
            given.get("CI", f"{default.checkpoint_ms:g}ms"),
            f"{'' if 'CI' in given else 'this is the default, and '}CI may not exceed CP "
            f"({given.get('CP', f'{default.period_ms:g}ms')}): lower CI or raise CP",
        )
    return Settings(
        extent_bound=extent,
        replay_bound=_count("U", given["U"]) if "U" in given else default.replay_bound,
        checkpoint_ms=checkpoint_ms,
        period_ms=period_ms,
        effort=_share("effort", given["effort"]) if "effort" in given else default.effort,
        footprint_age=_count("footprintAge", given["footprintAge"])
        if "footprintAge" in given
        else default.footprint_age,
        mode=Mode(_choice("mode", given.get("mode", "auto"), tuple(m.value for m in Mode))),
        log_path=_place("log.path", given["log.path"]) if "log.path" in given else None,
        python=given.get("python"),
        segment_bytes=_size("log.segmentBytes", given["log.segmentBytes"])
        if "log.segmentBytes" in given
        else default.segment_bytes,
        bundle_segments=_bundle(given["log.bundle"]) if "log.bundle" in given else default.bundle_segments,
        bundle_after_ms=duration_ms("log.bundleAfter", given["log.bundleAfter"])
        if "log.bundleAfter" in given
        else default.bundle_after_ms,
        compression=_choice(
            "log.compression", given.get("log.compression", default.compression), ("zstd", "lz4", "none")
        ),
        retain_output_batches=_count("output.retainBatches", given["output.retainBatches"])
        if "output.retainBatches" in given
        else None,
        output_readers=_readers(given),
        replayable_sources=_names(given, "sources.replayable"),
        order_free_functions=_switch(given, "functions.orderFree", "off"),
        sources_margin=_share("sources.margin", given["sources.margin"])
        if "sources.margin" in given
        else default.sources_margin,
        quiet_inputs_ms=_quiet_inputs_ms(given),
        index_path=given.get("index.path"),
        recovery_target_ms=target_ms,
        autotune=autotune,
        accepts_divergence=_choice("onDivergence", given.get("onDivergence", "fail"), ("fail", "accept")) == "accept",
        protocol=_protocol(given),
        flush_at_stop=_switch(given, "stop.flush", "on"),
        write_at=WriteAt(_choice("writeAt", given["writeAt"], tuple(at.value for at in WriteAt)))
        if "writeAt" in given
        else None,
        warnings=warnings,
    )
