"""Keeps the session settings of earlier batches: `session.json` in the checkpoint's `cec` directory.

A query keeps the settings of its session at the start. A replay needs the settings that its batches first ran with, and
the session may have changed. For example, the time zone decides the day of a timestamp.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from spark_cec.errors import DamagedLog, NewerFormat
from spark_cec.log.checked_json import decode_object, encode_object
from spark_cec.log.storage import Storage
from spark_cec.recovery.query_files import SESSION_FILE

KEPT_BATCHES = 10_000
"""Settings of older batches are forgotten. By default Spark keeps the offsets of only 100 batches."""


@dataclass(frozen=True, slots=True)
class SettingsSince:
    """The settings of the batches after `after`, up to the next entry's."""

    after: int
    settings: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class SettingsSpan:
    """The settings of batches `first` to `last`; None if they are unknown."""

    first: int
    last: int
    settings: Mapping[str, str] | None


def add_run(
    entries: Sequence[SettingsSince], committed: int, settings: Mapping[str, str]
) -> tuple[SettingsSince, ...]:
    """The entries after a run begins after batch `committed` (-1: none). A run without a commit leaves no entry."""
    kept = [entry for entry in entries if entry.after < committed]
    if not kept or kept[-1].settings != settings:
        kept.append(SettingsSince(committed, dict(settings)))
    needed_after = committed - KEPT_BATCHES
    while len(kept) > 1 and kept[1].after <= needed_after:
        kept.pop(0)
    return tuple(kept)


def split_batches(entries: Sequence[SettingsSince], first: int, last: int) -> tuple[SettingsSpan, ...]:
    """Splits batches `first` to `last` into spans with equal settings."""
    spans: list[SettingsSpan] = []
    for batch in range(first, last + 1):
        known = [entry for entry in entries if entry.after < batch]
        settings = known[-1].settings if known else None
        if spans and spans[-1].settings == settings:
            spans[-1] = SettingsSpan(spans[-1].first, batch, settings)
        else:
            spans.append(SettingsSpan(batch, batch, settings))
    return tuple(spans)


def record_settings(own: Storage, committed: int, settings: Mapping[str, str]) -> None:
    """Records the settings of a run that begins after `committed`; `own` is rooted at the `cec` directory.

    If the file is unreadable, it is written anew. Then the settings of earlier batches are unknown.
    """
    before = read_settings(own) or ()
    after = add_run(before, committed, settings)
    if after != before:
        runs = [{"after": entry.after, "settings": dict(entry.settings)} for entry in after]
        own.replace(SESSION_FILE, encode_object({"runs": runs}))


def read_settings(own: Storage) -> tuple[SettingsSince, ...] | None:
    """The recorded entries; None if the file is damaged or a later release wrote it."""
    try:
        fields, _ = decode_object(SESSION_FILE, own.read(SESSION_FILE), "record of session settings")
        return tuple(_parse_entry(each) for each in fields["runs"])
    except FileNotFoundError:
        return ()
    except (DamagedLog, NewerFormat, KeyError, TypeError, ValueError, AttributeError):
        return None


def _parse_entry(raw: Mapping[str, Any]) -> SettingsSince:
    return SettingsSince(int(raw["after"]), {str(key): str(value) for key, value in raw["settings"].items()})
