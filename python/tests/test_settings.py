"""Settings: every good value gives the number that it says, every bad one an error that names key, value and mend."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from spark_cec.errors import SettingsError
from spark_cec.settings import PREFIX, ExtentBound, Mode, Settings, parse_settings

KEYS = (
    "Q",
    "U",
    "CI",
    "CP",
    "mode",
    "memory",
    "log.path",
    "python",
    "log.segmentBytes",
    "log.bundle",
    "log.bundleAfter",
    "log.compression",
    "output.retainBatches",
    "output.readers",
    "sources.replayable",
    "effort",
    "sources.margin",
    "sources.quiet",
    "index.path",
    "spool.path",
    "agent.timeout",
    "recoveryTarget",
    "autotune",
)


def parse(**given: str) -> Settings:
    """Settings from keys without their prefix; `__` stands for a dot."""
    return parse_settings({PREFIX + key.replace("__", "."): value for key, value in given.items()})


def test_nothing_set_gives_the_defaults_of_the_design() -> None:
    assert parse() == Settings()
    assert parse().describe() == "Q=2x U=1000000 CI=20ms CP=100ms effort=0.02 mode=auto"
    assert parse(effort="0", footprintAge="7").describe().endswith("effort=0 footprintAge=7 mode=auto"), "all of it"
    assert parse(CI="0ms").describe() == "Q=2x U=1000000 CI=0ms CP=100ms mode=auto", "nothing is checked"
    assert parse().checkpoint_share == 0.2
    assert parse().warnings == ()


def test_a_recovery_target_stands_in_for_the_bounds_and_may_take_what_it_needs() -> None:
    settings = parse(recoveryTarget="5s")
    assert settings.recovery_target_ms == 5_000
    assert settings.checkpoint_share == 1.0
    assert settings.describe() == "recoveryTarget=5000ms CI/CP=as the target needs effort=0.02 mode=auto"
    assert parse(recoveryTarget="5s", CP="200ms").checkpoint_share == 0.1
    assert parse(recoveryTarget="5s", autotune="on").checkpoint_share == 0.2


def test_autotune_stands_in_for_the_period() -> None:
    assert parse(autotune="ON").autotune
    assert not parse(autotune="off").autotune
    assert parse(autotune="on", CI="20ms").describe() == "Q=2x U=1000000 CI=20ms autotune mode=auto"


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"recoveryTarget": "5s", "Q": "2x"}, "cec.Q='2x'.*recoveryTarget stands in"),
        ({"recoveryTarget": "5s", "U": "9"}, "cec.U='9'.*recoveryTarget stands in"),
        ({"recoveryTarget": "0s"}, "above 0"),
        ({"recoveryTarget": "5"}, "duration with a unit"),
        ({"autotune": "on", "CP": "1s"}, "cec.CP='1s'.*autotune"),
        ({"autotune": "yes"}, "one of on, off"),
    ],
)
def test_what_rules_each_other_out_is_refused(given: dict[str, str], words: str) -> None:
    with pytest.raises(SettingsError, match=words):
        parse(**given)


def test_the_keys_of_others_are_left_alone() -> None:
    conf = {
        "spark.sql.streaming.stateStore.rocksdb.lockAcquireTimeoutMs": "x",
        "spark.sql.shuffle.partitions": "?",
        "cec.Q": "-",
    }
    assert parse_settings(conf) == Settings()


@pytest.mark.parametrize(
    ("key", "value", "attribute", "wanted"),
    [
        ("Q", "500000", "extent_bound", ExtentBound(records=500_000)),
        ("Q", " 1_000 ", "extent_bound", ExtentBound(records=1_000)),
        ("Q", "2x", "extent_bound", ExtentBound(per_window=2.0)),
        ("Q", "1.5X", "extent_bound", ExtentBound(per_window=1.5)),
        ("Q", "1x", "extent_bound", ExtentBound(per_window=1.0)),
        ("U", "1", "replay_bound", 1),
        ("U", "9223372036854775807", "replay_bound", 2**63 - 1),
        ("CI", "0ms", "checkpoint_ms", 0.0),
        ("CI", "100ms", "checkpoint_ms", 100.0),
        ("CI", "0.5ms", "checkpoint_ms", 0.5),
        ("CI", "250us", "checkpoint_ms", 0.25),
        ("CP", "1s", "period_ms", 1_000.0),
        ("CP", "5min", "period_ms", 300_000.0),
        ("CP", "1 h", "period_ms", 3_600_000.0),
        ("footprintAge", "1", "footprint_age", 1),
        ("footprintAge", "50", "footprint_age", 50),
        ("mode", " Eager", "mode", Mode.EAGER),
        ("mode", "deferred", "mode", Mode.DEFERRED),
        *[("log.path", each, "log_path", each) for each in ("s3://b/x", "/x", "file:/x", "file:///x")],
        ("log.segmentBytes", "4096", "segment_bytes", 4096),
        ("log.segmentBytes", "64 MiB", "segment_bytes", 64 << 20),
        ("log.segmentBytes", "1gb", "segment_bytes", 1 << 30),
        ("log.bundle", " 2 ", "bundle_segments", 2),
        ("log.bundle", "1000", "bundle_segments", 1000),
        ("log.bundle", "OFF", "bundle_segments", None),
        ("log.bundleAfter", "5min", "bundle_after_ms", 300_000.0),
        ("log.compression", "ZSTD", "compression", "zstd"),
        ("log.compression", "none", "compression", "none"),
        ("output.retainBatches", "7", "retain_output_batches", 7),
        ("output.readers", "alerts, hourly", "output_readers", ("alerts", "hourly")),
        ("sources.replayable", "a, b,,c ", "replayable_sources", ("a", "b", "c")),
        ("effort", "0.02", "effort", 0.02),
        ("effort", "0.1", "effort", 0.1),
        ("sources.margin", "0", "sources_margin", 0.0),
        ("sources.margin", " 0.25 ", "sources_margin", 0.25),
        ("sources.margin", "1", "sources_margin", 1.0),
        ("sources.quiet", "10s", "quiet_inputs_ms", 10_000.0),
        ("sources.quiet", "100ms", "quiet_inputs_ms", 100.0),
    ],
)
def test_good_values(key: str, value: str, attribute: str, wanted: Any) -> None:
    settings = parse_settings({PREFIX + key: value})
    assert getattr(settings, attribute) == wanted
    assert dataclasses.replace(settings, **{attribute: getattr(Settings(), attribute)}) == Settings(), (
        "and nothing else changed"
    )


COUNT_OR_MULTIPLE = "give a count of records above 0 such as 500000, or a multiple of the open windows such as 2x"
QUIET = "give hold, or a time of at least 100ms, because each step may cost a batch"
WHOLE_DURATION = "give a whole number above 0 with a unit, such as 90s or 10min"
DURATION = "give a duration with a unit, such as 10ms, 1s or 5min, not below 0"
SHARE = "give a share between 0 and 1, such as 0.1; 0 turns it off"


@pytest.mark.parametrize(
    ("key", "value", "mend"),
    [
        *[
            ("Q", value, COUNT_OR_MULTIPLE)
            for value in ("", "0", "-1", "x", "2.5", "1e6", "2xx", "-1x", "nanx", "_", "1__0", "2 0")
        ],
        *[
            ("U", value, "give a whole number of at least 1, below 2^63")
            for value in ("", "0", "-1", "1.5", "many", "1e6", "_", "_1", "1__0")
        ],
        *[("CI", value, DURATION) for value in ("", "10", "ms", "-1ms", "10 apples", "1.ms", "infms", "1ms2")],
        *[("agent.timeout", value, WHOLE_DURATION) for value in ("10", "soon", "1.5s", "0s", "-1s", "5us")],
        ("CP", "0ms", "the period must be longer than 0"),
        ("mode", "lazy", "give one of auto, eager, deferred"),
        ("log.bundle", "1", "give a whole number of segments from 2 to 1000, or off"),
        ("log.bundle", "1001", "give a whole number of segments from 2 to 1000, or off"),
        ("log.bundle", "on", "give a whole number of segments from 2 to 1000, or off"),
        ("log.bundleAfter", "120", "give a duration with a unit, such as 10ms, 1s or 5min, not below 0"),
        ("log.compression", "gzip", "give one of zstd, lz4, none"),
        *[("log.segmentBytes", value, "give a size such as 64MiB") for value in ("", "1.5MiB", "64XB", "-1")],
        *[("log.segmentBytes", value, "give at least 4KiB") for value in ("4095", "3KiB", "0")],
        *[("effort", value, SHARE) for value in ("", "2", "5%", "little")],
        *[("sources.quiet", value, QUIET) for value in ("", "99ms", "clock", "10")],
        *[("sources.margin", value, SHARE) for value in ("", "1.01", "-0.1", "10%", "nan", "1e-1", "all", ".")],
        ("output.retainBatches", "0", "give a whole number of at least 1, below 2^63"),
        (
            "output.readers", "a,../b",
            "'../b' is no name of a reader: give names of letters, digits, _ and -, with commas between them",
        ),
        *[("log.path", value, "give an absolute path, or a URL") for value in ("", "logs", "./logs", "../x", "~/x")],
    ],
)
def test_bad_values(key: str, value: str, mend: str) -> None:
    with pytest.raises(SettingsError) as refused:
        parse_settings({PREFIX + key: value})
    assert str(refused.value) == f"{PREFIX}{key}={value!r}: {mend}"
    assert (refused.value.key, refused.value.value) == (PREFIX + key, value)


@pytest.mark.parametrize(
    ("given", "key", "message"),
    [
        ({"CI": "2s", "CP": "1s"}, "CI", "='2s': CI may not exceed CP (1s): lower CI or raise CP"),
        ({"CI": "101ms"}, "CI", "='101ms': CI may not exceed CP (100ms): lower CI or raise CP"),
        ({"CP": "9ms"}, "CI", "='20ms': this is the default, and CI may not exceed CP (9ms): lower CI or raise CP"),
    ],
)
def test_checkpointing_takes_no_more_than_the_period(given: dict[str, str], key: str, message: str) -> None:
    with pytest.raises(SettingsError) as refused:
        parse(**given)
    assert str(refused.value) == PREFIX + key + message


@pytest.mark.parametrize(
    ("unknown", "nearest"),
    [
        ("q", "Q"),
        ("cp", "CP"),
        ("Mode", "mode"),
        ("modus", "mode"),
        ("log.segmentbytes", "log.segmentBytes"),
        ("log.segment.bytes", "log.segmentBytes"),
        ("logpath", "log.path"),
        ("output.retain", "output.retainBatches"),
        ("source.replayable", "sources.replayable"),
        ("agentTimeout", "agent.timeout"),
        ("logcompression", "log.compression"),
    ],
)
def test_an_unknown_key_names_the_nearest(unknown: str, nearest: str) -> None:
    with pytest.raises(SettingsError) as refused:
        parse_settings({PREFIX + unknown: "1"})
    assert str(refused.value) == f"{PREFIX}{unknown}='1': unknown setting; did you mean {PREFIX}{nearest}?"


@pytest.mark.parametrize("key", ["", "zzz", "foo", "🦉"])
def test_a_key_that_is_like_no_other_is_answered_with_all(key: str) -> None:
    with pytest.raises(SettingsError, match=f"unknown setting; after {PREFIX} comes one of agent.timeout, autotune"):
        parse_settings({PREFIX + key: "1"})


@pytest.mark.parametrize("value", ["0.5x", "0x", "0.99x"])
def test_less_than_one_record_per_window_is_warned_of(value: str) -> None:
    settings = parse(Q=value)
    assert settings.extent_bound == ExtentBound(per_window=1.0)
    wanted = f"{PREFIX}Q={value!r} cannot be attained: a state needs one record per open window; 1x is used"
    assert settings.warnings == (wanted,)


@pytest.mark.parametrize(
    ("bound", "open_windows", "limit"),
    [
        (ExtentBound(records=100), 10, 100),
        (ExtentBound(records=100), 200, 200),
        (ExtentBound(per_window=1.5), 10, 15),
        (ExtentBound(per_window=2.0), 0, 0),
    ],
)
def test_the_limit_is_never_below_the_open_windows(bound: ExtentBound, open_windows: int, limit: float) -> None:
    assert bound.limit(open_windows) == limit


@given(
    st.dictionaries(
        st.sampled_from(KEYS), st.text(max_size=12) | st.from_regex(r"[0-9_.]{0,4} ?[a-zA-Z]{0,3}", fullmatch=True)
    )
)
@example({"Q": "²"})
@example({"U": "²"})
@example({"CI": "²ms"})
@example({"log.segmentBytes": "²"})
@example({"U": "9" * 20})
@example({"Q": "9" * 20})
@example({"Q": "9" * 400 + "x"})
@example({"CP": "9" * 400 + "s"})
def test_whatever_is_given_there_are_settings_or_an_error_that_names_the_key(given: dict[str, str]) -> None:
    try:
        settings = parse_settings({PREFIX + key: value for key, value in given.items()})
    except SettingsError as error:
        assert error.key.removeprefix(PREFIX) in {*given, "CI"}
    else:
        assert 0 <= settings.checkpoint_share <= 1
        assert 0 <= settings.sources_margin <= 1
        assert 1 <= settings.replay_bound < 2**63, "the JVM takes it as a long"
        assert 0 <= settings.extent_bound.records < 2**63
        assert math.isfinite(settings.extent_bound.per_window)
        assert math.isfinite(settings.period_ms)


def test_a_timeout_is_the_shims_own_but_checked() -> None:
    assert parse(agent__timeout="2s") == Settings()


@pytest.mark.parametrize("value", ["50%", " 1 %", "90%", "2GiB", "512mb", "4096"])
def test_memory_is_a_size_or_a_share(value: str) -> None:
    assert parse_settings({PREFIX + "memory": value}) == Settings()


@pytest.mark.parametrize("value", ["0%", "91%", "100%", "-5%", "5.5%", "half", "2TiB", "1KiB", "", "%"])
def test_memory_of_no_known_form_is_refused(value: str) -> None:
    with pytest.raises(SettingsError, match="memory"):
        parse_settings({PREFIX + "memory": value})


@pytest.mark.parametrize("value", ["memory", "rocksdb", "anything"])
def test_the_setting_before_memory_has_no_effect_and_warns(value: str) -> None:
    found = parse_settings({PREFIX + "liveStore": value})
    assert found == Settings() and len(found.warnings) == 1 and "liveStore" in found.warnings[0]
