"""Checks the options of a flow at its declaration, because a query with a wrong one would fail in every run."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping

from spark_cec.errors import SettingsError
from spark_cec.pipeline.graph import GraphError, nearest
from spark_cec.settings import PREFIX, parse_settings

_BOTH = ("name", "trigger", "output_mode", "conf", "partitions", "reads", "watermarks")
FLOW_OPTIONS = frozenset({*_BOTH, "kept", "schema", "instances", "key"})
SINK_OPTIONS = frozenset({*_BOTH, "priority"})

MODES = ("append", "update", "complete")
TRIGGERS = ("processingTime", "once", "availableNow", "continuous", "realTime")
READ_OPTIONS = frozenset({"maxRowsPerTrigger", "maxBatchesPerTrigger", "failOnDataLoss"})
"""The options of a flow's reads of other flows."""

_GO_TOGETHER = ("CI", "CP", "recoveryTarget")
"""Settings that exclude or need one another. The session may have the other one, so each is not checked alone."""

_UNITS = "nanosecond|microsecond|millisecond|second|minute|hour|day|week"
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


def join_or(names: Collection[str]) -> str:
    each = list(names)
    return f"{', '.join(each[:-1])} or {each[-1]}"
