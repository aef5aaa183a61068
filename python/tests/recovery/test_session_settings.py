"""Which session settings a batch ran with, whatever runs came and went."""

from __future__ import annotations

import itertools
import random
from pathlib import Path

import pytest

from spark_cec.adapters.fsspec_storage import open_storage
from spark_cec.recovery.query_files import SESSION_FILE
from spark_cec.recovery.session_settings import (
    KEPT_BATCHES,
    SettingsSince,
    SettingsSpan,
    add_run,
    read_settings,
    record_settings,
    split_batches,
)


def test_random_runs_against_a_plain_record(tmp_path: Path) -> None:
    """Each batch has the settings of the run that committed it; runs may commit nothing, and crash in a replay."""
    for seed in range(200):
        dice = random.Random(seed)
        own, committed, ran_with = open_storage(str(tmp_path / str(seed))), -1, dict[int, dict[str, str]]()
        for _ in range(dice.randint(1, 8)):
            settings = {"zone": dice.choice(["UTC", "Asia/Tokyo", "Europe/Paris"])}
            record_settings(own, committed, settings)
            for _ in range(dice.choice([0, 0, 1, 3])):
                committed += 1
                ran_with[committed] = settings
        entries = read_settings(own)
        assert entries is not None
        spans = split_batches(entries, 0, committed)
        found = {batch: span.settings for span in spans for batch in range(span.first, span.last + 1)}
        assert found == ran_with, f"seed {seed}"
        assert all(one.settings != other.settings for one, other in itertools.pairwise(spans)), f"seed {seed}"


def test_batches_of_before_the_record_have_no_settings() -> None:
    entries = (SettingsSince(4, {"a": "1"}),)
    assert split_batches(entries, 3, 6) == (SettingsSpan(3, 4, None), SettingsSpan(5, 6, {"a": "1"}))
    assert split_batches((), 0, 1) == (SettingsSpan(0, 1, None),)
    assert split_batches(entries, 7, 6) == ()


def test_what_no_replay_needs_is_forgotten() -> None:
    entries: tuple[SettingsSince, ...] = ()
    for number in range(50):
        entries = add_run(entries, number * KEPT_BATCHES // 4, {"n": str(number)})
        assert len(entries) <= 6
    assert split_batches(entries, 49 * KEPT_BATCHES // 4, 49 * KEPT_BATCHES // 4)[0].settings == {"n": "48"}


@pytest.mark.parametrize("damage", [b"", b"{}", b"[1]", b"\xff\xfe", b'{"runs": 3}'])
def test_a_damaged_record_is_written_anew(tmp_path: Path, damage: bytes) -> None:
    own = open_storage(str(tmp_path))
    record_settings(own, -1, {"a": "1"})
    own.replace(SESSION_FILE, damage)
    assert read_settings(own) is None
    record_settings(own, 7, {"a": "2"})
    assert read_settings(own) == (SettingsSince(7, {"a": "2"}),)


def test_a_bit_that_has_flipped_is_found(tmp_path: Path) -> None:
    own = open_storage(str(tmp_path))
    record_settings(own, -1, {"a": "1"})
    data = bytearray(own.read(SESSION_FILE))
    data[data.index(b'"1"') + 1] ^= 2
    own.replace(SESSION_FILE, bytes(data))
    assert read_settings(own) is None
