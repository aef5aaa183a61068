"""Checks the options of a flow at its declaration, because a query with a wrong one would fail in every run."""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from enum import Enum

from spark_cec.availability.failure import FailureState, Orders
from spark_cec.availability.keep import AtKeep
from spark_cec.errors import SettingsError
from spark_cec.pipeline.graph import GraphError, nearest
from spark_cec.settings import PREFIX, duration_ms, parse_settings, size_bytes

_BOTH = (
    "name", "trigger", "output_mode", "conf", "partitions", "reads", "watermarks", "bucket", "waits_at_most",
    "keep", "at_keep",
)  # fmt: skip
FLOW_OPTIONS = frozenset(
    {*_BOTH, "kept", "schema", "instances", "key", "within", "alpha", "while_away", "while_correcting"}
)
SINK_OPTIONS = frozenset({*_BOTH, "priority", "tentative"})

DEFAULT_BUCKET = "1s"
DEFAULT_ALPHA = 0.9
"""As in the paper's evaluation: the rest of X is for the batch that answers."""

MODES = ("append", "update", "complete")
TRIGGERS = ("processingTime", "once", "availableNow", "continuous", "realTime")
READ_OPTIONS = frozenset({"maxRowsPerTrigger", "maxBatchesPerTrigger", "failOnDataLoss"})
"""The options of a flow's reads of other flows."""

_GO_TOGETHER = ("CI", "CP", "recoveryTarget")
"""Settings that exclude or need one another. The session may have the other one, so each is not checked alone."""

_UNITS = "nanosecond|microsecond|millisecond|second|minute|hour|day|week"
_PART = re.compile(rf"(\d+(?:\.\d+)?)\s*({_UNITS})s?\s*", re.IGNORECASE)
_UNIT_MS = {
    "nanosecond": 1e-6, "microsecond": 1e-3, "millisecond": 1.0, "second": 1e3, "minute": 6e4, "hour": 3.6e6,
    "day": 8.64e7, "week": 6.048e8,
}  # fmt: skip
_INTERVAL = re.compile(rf"(interval\s+)?(\d+(\.\d+)?\s*({_UNITS})s?\s*)+", re.IGNORECASE)


def check_names(pipeline: str, kind: str, given: Collection[str], known: Collection[str]) -> None:
    """Raises `GraphError` for an unknown option."""
    for option in given:
        if option not in known:
            raise GraphError(pipeline, [f"@{kind}({option}=...): there is no such option; {nearest(option, known)}"])


def check_options(
    pipeline: str, flow: str, trigger: object, output_mode: object, conf: object, reads: object
) -> None:
    """Raises `GraphError` for a value that Spark or Spark CEC would refuse in every run of the flow."""
    wrong = [
        *([] if output_mode in (None, *MODES) else [f"output_mode={output_mode!r}: give {join_or(MODES)}"]),
        *_check_trigger(trigger),
        *_check_conf(conf),
        *_check_reads(reads),
    ]
    if wrong:
        raise GraphError(pipeline, [f"{flow} has {each}" for each in wrong])


def _check_trigger(trigger: object) -> list[str]:
    if trigger is None:
        return []
    if not isinstance(trigger, Mapping) or len(trigger) != 1 or not set(trigger) <= set(TRIGGERS):
        mend = "give a trigger of Spark, {'processingTime': '10 seconds'} or {'availableNow': True}"
        return [f"trigger={trigger!r}: {mend}"]
    ((kind, value),) = trigger.items()
    if kind in ("processingTime", "continuous", "realTime") and not _INTERVAL.fullmatch(str(value).strip()):
        return [f"trigger={dict(trigger)!r}: give an interval such as '10 seconds'"]
    return []


def _check_conf(conf: object) -> list[str]:
    if conf is None:
        return []
    if not isinstance(conf, Mapping):
        return [f"conf={conf!r}: give a dict of Spark's keys and values"]
    found = []
    for key, value in conf.items():
        if str(key).removeprefix(PREFIX) in _GO_TOGETHER:
            continue
        try:
            parse_settings({str(key): str(value)})
        except SettingsError as error:
            found.append(f"a wrong Spark CEC setting in conf: {error}")
    return found


def _check_reads(reads: object) -> list[str]:
    if reads is None:
        return []
    if not isinstance(reads, Mapping) or not set(reads) <= READ_OPTIONS:
        return [f"reads={reads!r}: the options of a read are {', '.join(sorted(READ_OPTIONS))}"]
    found = []
    for option, value in reads.items():
        text = str(value).strip().lower()
        if option == "failOnDataLoss" and text not in ("true", "false"):
            found.append(f"reads={{{option!r}: {value!r}}}: give 'true' or 'false'")
        if option != "failOnDataLoss" and not (text.isascii() and text.isdigit() and int(text)):
            found.append(f"reads={{{option!r}: {value!r}}}: give a whole number from 1 on")
    return found


def parse_interval_ms(text: object) -> int | None:
    """The length of one of Spark's intervals, `1 minute 30 seconds`, in ms, rounded up; None if it is none."""
    found = str(text).strip()
    if not _INTERVAL.fullmatch(found):
        return None
    return math.ceil(sum(float(count) * _UNIT_MS[unit.lower()] for count, unit in _PART.findall(found)))


def parse_bucket(
    pipeline: str, flow: str, bucket: object, within: object, inputs: Collection[str],
    watermarks: Mapping[str, tuple[str, str]], trigger: Mapping[str, object] | None, reads: Mapping[str, str] | None,
) -> int | None:  # fmt: skip
    """The length of a flow's buckets in ms; None for a flow that reads whole batches. Raises `GraphError`.

    A flow with `within` reads by buckets, too.
    """
    if bucket is None and within is None:
        return None
    asked = f"within={within!r}" if bucket is None else f"bucket={bucket!r}"
    bucket = DEFAULT_BUCKET if bucket is None else bucket
    try:
        length_ms = duration_ms("", str(bucket))
    except SettingsError:
        raise GraphError(pipeline, [f"{flow} has bucket={bucket!r}: give a duration such as 1s or 500ms"]) from None
    if length_ms < 1 or length_ms != int(length_ms):
        raise GraphError(pipeline, [f"{flow} has bucket={bucket!r}: give whole milliseconds, from 1ms on"])
    if not inputs:
        mend = "let another flow read it, and give that flow the option"
        raise GraphError(pipeline, [f"{flow} has {asked}, but it reads a source and no flow: {mend}"])
    without = sorted(set(inputs) - watermarks.keys())
    if without:
        mend = f"give the column and the delay, watermarks={{{without[0]!r}: ('time', '10 seconds')}}"
        raise GraphError(pipeline, [f"{flow} has {asked}, but no watermark of {without[0]}: {mend}"])
    for read, (_, delay) in watermarks.items():
        if parse_interval_ms(delay) is None:
            mend = "give an interval such as '10 seconds'"
            raise GraphError(pipeline, [f"{flow} has the delay {delay!r} in its watermark of {read}: {mend}"])
    if "maxBatchesPerTrigger" in (reads or {}):
        mend = "bound the rows, maxRowsPerTrigger"
        raise GraphError(pipeline, [f"{flow} reads by buckets, which have no maxBatchesPerTrigger: {mend}"])
    if trigger is not None and "processingTime" not in trigger:
        mend = "leave the trigger out, or give processingTime"
        raise GraphError(pipeline, [f"{flow} reads by buckets and has trigger={dict(trigger)!r}: {mend}"])
    return int(length_ms)


_YIELDS_FOR = 0.6
"""An epoch lets its flow catch up for this part of X, but for no longer than alpha * X."""


class Pace(str, Enum):
    """When an epoch answers: at once; when rows have waited for alpha * X; or not at all (the paper's names)."""

    PROCESS = "process"
    DELAY = "delay"
    SUSPEND = "suspend"


class Step(Enum):
    """What becomes of the query of an open epoch: it goes on, is stopped, or is started again in `while_correcting`."""

    KEEP = "keep"
    SUSPEND = "suspend"
    START_AGAIN = "start-again"


@dataclass(frozen=True, slots=True)
class Within:
    """How long rows may wait for an input that is away. `x_ms` is X, `wait_ms` is alpha * X, both in ms.

    `while_away`: the pace of an epoch while an input is away. `while_correcting`: its pace while the flow catches up.
    """

    x_ms: int
    wait_ms: int
    while_away: Pace = Pace.PROCESS
    while_correcting: Pace = Pace.PROCESS

    def pause_ms(self, pace: Pace) -> int:
        """How long each row waits in an epoch of that pace, in ms."""
        return self.wait_ms if pace is Pace.DELAY else 0

    @property
    def yields_ms(self) -> int:
        """For how long an epoch plans no batch when all inputs are back. The batch behind has all that waits, so X must
        leave it some time.
        """
        return min(self.wait_ms, int(_YIELDS_FOR * self.x_ms))

    def find_step(self, orders: Orders, pace: Pace, *, changes_pace: bool = False) -> Step:
        """What becomes of the query of an epoch that runs, and stays open. `pace`: that of its query.

        `changes_pace`: a change of its pace has begun, and did not come to its end.
        """
        is_correcting = orders.state is FailureState.STABILIZATION
        wanted = self.while_correcting if is_correcting else self.while_away
        if orders.suspends or wanted is Pace.SUSPEND:
            return Step.SUSPEND
        return Step.START_AGAIN if changes_pace or (is_correcting and wanted is not pace) else Step.KEEP


def parse_within(
    pipeline: str, flow: str, output_mode: object, trigger: Mapping[str, object] | None, within: object,
    alpha: object, while_away: object, while_correcting: object,
) -> Within | None:  # fmt: skip
    """The bound of a flow's answers; None for a flow that waits for its inputs. Raises `GraphError`."""
    if within is None:
        for name, value in (("alpha", alpha), ("while_away", while_away), ("while_correcting", while_correcting)):
            if value is not None:
                mend = f"give within, too, or leave {name} out"
                raise GraphError(pipeline, [f"{flow} has {name}={value!r}, but no within: {mend}"])
        return None
    try:
        x_ms = duration_ms("", str(within))
    except SettingsError:
        raise GraphError(pipeline, [f"{flow} has within={within!r}: give a duration such as 30s"]) from None
    share = DEFAULT_ALPHA if alpha is None else alpha
    if isinstance(share, bool) or not isinstance(share, int | float) or not 0 < share < 1:
        raise GraphError(pipeline, [f"{flow} has alpha={alpha!r}: give a number between 0 and 1"])
    if share * x_ms < 100:
        raise GraphError(pipeline, [f"{flow} has within={within!r}, of which alpha leaves no 100 ms: give more"])
    if output_mode not in (None, "append"):
        mend = "let it answer in append mode, in which each row comes once"
        raise GraphError(pipeline, [f"{flow} has within={within!r} and output_mode={output_mode!r}: {mend}"])
    away = _parse_pace(pipeline, flow, "while_away", while_away, (Pace.PROCESS, Pace.DELAY))
    correcting = _parse_pace(pipeline, flow, "while_correcting", while_correcting, tuple(Pace))
    every_ms = parse_interval_ms((trigger or {}).get("processingTime", "0 seconds")) or 0
    # A flow notices at its triggers alone that it waits, and an epoch has the same trigger.
    most_ms = min(share, 1 - share) * x_ms
    if every_ms > most_ms:
        mend = f"give a trigger of at most {most_ms:.0f} ms, another alpha, or a larger within"
        raise GraphError(pipeline, [f"{flow} has trigger={dict(trigger or {})!r} and within={within!r}: {mend}"])
    return Within(int(x_ms), int(share * x_ms), away, correcting)


def _parse_pace(pipeline: str, flow: str, option: str, value: object, known: Collection[Pace]) -> Pace:
    if value is None:
        return Pace.PROCESS
    names = [each.value for each in known]
    if value not in names:
        mend = f"give {join_or([repr(each) for each in names])}"
        raise GraphError(pipeline, [f"{flow} has {option}={value!r}: {mend}"])
    return Pace(value)


def parse_wait(
    pipeline: str, flow: str, waits: object, bucket_ms: int | None, within: Within | None
) -> int | None:  # fmt: skip
    """How long rows wait for an input before the flow goes on without it, in ms; None if it never does.

    Raises `GraphError`.
    """
    if waits is None:
        return None
    try:
        most_wait_ms = duration_ms("", str(waits))
    except SettingsError:
        raise GraphError(pipeline, [f"{flow} has waits_at_most={waits!r}: give a duration such as 6h"]) from None
    if bucket_ms is None:
        mend = "give bucket or within, too, or leave waits_at_most out"
        raise GraphError(pipeline, [f"{flow} has waits_at_most={waits!r}, but does not wait for its inputs: {mend}"])
    least_ms = bucket_ms if within is None else within.x_ms
    if most_wait_ms <= least_ms:
        mend = f"give more than {least_ms} ms, the bucket or within"
        raise GraphError(pipeline, [f"{flow} has waits_at_most={waits!r}: {mend}"])
    return int(most_wait_ms)


@dataclass(frozen=True, slots=True)
class Keep:
    """How many stored bytes of its inputs may wait for a flow, and what happens when more do."""

    most_bytes: int
    at_keep: AtKeep = AtKeep.BLOCK


def parse_keep(pipeline: str, flow: str, keep: object, at_keep: object, bucket_ms: int | None) -> Keep | None:
    """The bound for what waits for a flow; None without one. Raises `GraphError`."""
    if keep is None:
        if at_keep is not None:
            mend = "give keep, too, or leave at_keep out"
            raise GraphError(pipeline, [f"{flow} has at_keep={at_keep!r}, but no keep: {mend}"])
        return None
    if isinstance(keep, bool):
        mend = "give a size such as 10g; for readers outside the pipeline give kept"
        raise GraphError(pipeline, [f"{flow} has keep={keep!r}: {mend}"])
    try:
        most_bytes = size_bytes("", str(keep))
    except SettingsError:
        raise GraphError(pipeline, [f"{flow} has keep={keep!r}: give a size above 0, such as 64MiB or 10g"]) from None
    known = [each.value for each in AtKeep]
    if at_keep is not None and at_keep not in known:
        mend = f"give {join_or([repr(each) for each in known])}; {nearest(str(at_keep), known)}"
        raise GraphError(pipeline, [f"{flow} has at_keep={at_keep!r}: {mend}"])
    if bucket_ms is None:
        mend = "give bucket or within, too, or leave keep out"
        raise GraphError(pipeline, [f"{flow} has keep={keep!r}, but does not wait for its inputs: {mend}"])
    return Keep(most_bytes, AtKeep.BLOCK if at_keep is None else AtKeep(at_keep))


def check_tentative(pipeline: str, sink: str, tentative: object, bucket: object, watermarks: object) -> bool:
    """Whether a sink reads tentative rows. Raises `GraphError` for a sink that would keep state of them."""
    if not isinstance(tentative, bool):
        raise GraphError(pipeline, [f"{sink} has tentative={tentative!r}: give True or False"])
    if tentative and watermarks and bucket is None:
        mend = "aggregate in a flow, and let the sink write its rows"
        raise GraphError(pipeline, [f"{sink} reads tentative rows, and has watermarks without a bucket: {mend}"])
    return tentative


def join_or(names: Collection[str]) -> str:
    each = list(names)
    return f"{', '.join(each[:-1])} or {each[-1]}" if len(each) > 1 else each[0]
