"""What may be said of a flow, looked at before anything starts: a query that cannot run so would be tried in vain."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from typing import Any

from spark_cec.errors import SettingsError
from spark_cec.pipeline.graph import GraphError, nearest
from spark_cec.settings import PREFIX, parse_settings

_BOTH = ("name", "trigger", "output_mode", "conf", "partitions", "reads", "watermarks")
FLOW_OPTIONS = frozenset({*_BOTH, "kept", "schema", "instances", "key"})
SINK_OPTIONS = frozenset({*_BOTH, "priority"})

MODES = ("append", "update", "complete")
TRIGGERS = ("processingTime", "once", "availableNow", "continuous", "realTime")
READ_OPTIONS = frozenset({"maxRowsPerTrigger", "maxBatchesPerTrigger", "failOnDataLoss"})
"""What a flow may say of how it reads others."""

_GO_TOGETHER = ("CI", "CP", "recoveryTarget")
"""What the other one is may be said of the whole session."""

_UNITS = "nanosecond|microsecond|millisecond|second|minute|hour|day|week"
_INTERVAL = re.compile(rf"(interval\s+)?(\d+(\.\d+)?\s*({_UNITS})s?\s*)+", re.IGNORECASE)


def check_names(pipeline: str, kind: str, given: Collection[str], known: Collection[str]) -> None:
    """`GraphError` for an option that there is not."""
    for option in given:
        if option not in known:
            raise GraphError(pipeline, [f"@{kind}({option}=...): there is no such option; {nearest(option, known)}"])


def check_options(
    pipeline: str, flow: str, trigger: object, output_mode: object, conf: object, reads: object
) -> None:
    """`GraphError` for a value that Spark, or we, would refuse in every run of the flow."""
    wrong = [
        *([] if output_mode in (None, *MODES) else [f"output_mode={output_mode!r}: give {_or(MODES)}"]),
        *_of_trigger(trigger),
        *_of_conf(conf),
        *_of_reads(reads),
    ]
    if wrong:
        raise GraphError(pipeline, [f"{flow} has {each}" for each in wrong])


def _of_trigger(trigger: object) -> list[str]:
    if trigger is None:
        return []
    if not isinstance(trigger, Mapping) or len(trigger) != 1 or not set(trigger) <= set(TRIGGERS):
        mend = "give one of Spark's, {'processingTime': '10 seconds'} or {'availableNow': True}"
        return [f"trigger={trigger!r}: {mend}"]
    ((kind, value),) = trigger.items()
    if kind in ("processingTime", "continuous", "realTime") and not _INTERVAL.fullmatch(str(value).strip()):
        return [f"trigger={dict(trigger)!r}: give an interval, as '10 seconds'"]
    return []


def _of_conf(conf: object) -> list[str]:
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
            found.append(f"conf of ours that is wrong: {error}")
    return found


def _of_reads(reads: object) -> list[str]:
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


def _or(names: Collection[str]) -> str:
    each: list[Any] = list(names)
    return f"{', '.join(each[:-1])} or {each[-1]}"
