"""Sizes of the workloads, the order of the providers, and what a job is told."""

from __future__ import annotations

import sys
from dataclasses import replace

import pytest

from spark_cec_lab.bench.job import JobSpec, facts_of
from spark_cec_lab.bench.providers import PEERS, Provider, Rival, conf_of, in_turn
from spark_cec_lab.bench.workloads import DEFAULTS, Shape, Workload, output_mode

SPEC = JobSpec(
    provider=Provider.CEC, workload=DEFAULTS[Shape.SLOW], checkpoint="/c", scratch="/s p", jar="/j.jar", memory="3g",
    java_options="-Xint", conf=(("spark.x", "1"),), last_batch=7,
)  # fmt: skip


SPARKS = (*Rival.ROCKSDB.peers, *Rival.HDFS.peers)


@pytest.mark.parametrize(
    ("keys", "updates", "batches"), [(2_000_000, 300_000, 7), (200, 300, 1), (600, 300, 2), (601, 300, 3)]
)
def test_the_fill_opens_every_window(keys: int, updates: int, batches: int) -> None:
    assert Workload(Shape.UNIFORM, keys, updates).fill_batches == batches
    assert batches * updates >= keys > (batches - 1) * updates


@pytest.mark.parametrize(("keys", "delay_s"), [(900, 1), (1, 1), (1500, 2), (2100, 3)])
def test_fast_windows_stay_open_for_a_number_of_batches(keys: int, delay_s: int) -> None:
    workload = Workload(Shape.FAST, keys, updates=300)
    assert workload.delay_s == delay_s
    assert _open_after(workload.fill_batches - 1, delay_s) == _open_after(workload.fill_batches + 5, delay_s)
    assert _open_after(workload.fill_batches - 2, delay_s) <= 2 * delay_s + 1


def _open_after(batch: int, delay_s: int) -> int:
    """Batches whose windows are open after `batch`: those that expire after its watermark."""
    watermark = batch - 1 - delay_s
    return sum(1 for each in range(batch + 1) if each + delay_s > watermark)


def test_only_a_uniform_state_has_a_size_that_is_known() -> None:
    sizes = {shape: workload.expected_rows() for shape, workload in DEFAULTS.items()}
    assert sizes == {Shape.UNIFORM: 2_000_000, Shape.SLOW: None, Shape.FAST: None, Shape.NEXMARK: None}


def test_output_modes() -> None:
    shapes = [shape for shape in Shape if shape is not Shape.NEXMARK]
    assert [output_mode(Workload(shape, 1, 1)) for shape in shapes] == ["update", "update", "append", "append"]
    modes = [output_mode(Workload(Shape.NEXMARK, 0, 1, nexmark=name)) for name in ("q4", "q18")]
    assert modes == ["append", "update"]


def test_each_provider_is_first_once_in_as_many_rounds_and_runs_once_in_each() -> None:
    rounds = [in_turn(PEERS, number) for number in range(len(PEERS) + 1)]
    assert {order[0] for order in rounds[:-1]} == set(PEERS)
    assert all(set(order) == set(PEERS) and len(order) == len(PEERS) for order in rounds)
    assert rounds[-1] == rounds[0]
    assert in_turn((Provider.CEC,), 5) == (Provider.CEC,)


def test_the_changelog_of_rocksdb_is_on_and_nothing_of_ours_is_off() -> None:
    for provider in Rival.ROCKSDB.peers:
        rocksdb = conf_of(provider, "/j.jar")
        assert rocksdb["spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled"] == "true"
    assert not any("cec" in key for peer in SPARKS for key in conf_of(peer, "/j.jar"))
    assert conf_of(Provider.CEC, "/j.jar") == {
        "spark.sql.streaming.stateStore.providerClass": "org.apache.spark.sql.cec.CecStateStoreProvider",
        "spark.jars": "/j.jar",
        "spark.sql.streaming.stateStore.cec.python": sys.executable,
    }


def test_a_setting_of_sparks_stores_differs_from_their_defaults_by_what_its_name_says() -> None:
    prefix = "spark.sql.streaming.stateStore."
    zstd = {(prefix + "compression.codec", "zstd")}
    tuned = {(prefix + "rocksdb.boundedMemoryUsage", "true"), (prefix + "rocksdb.trackTotalNumberOfRows", "false")}
    rocksdb, hdfs = (conf_of(each, "").items() for each in (Provider.ROCKSDB, Provider.HDFS))
    assert conf_of(Provider.ROCKSDB_ZSTD, "").items() ^ rocksdb == zstd
    assert conf_of(Provider.ROCKSDB_TUNED, "").items() ^ rocksdb == zstd | tuned
    assert conf_of(Provider.HDFS_ZSTD, "").items() ^ hdfs == zstd


@pytest.mark.parametrize("spec", [SPEC, replace(SPEC, provider=Provider.HDFS, conf=(), last_batch=None)])
def test_a_spec_survives_json(spec: JobSpec) -> None:
    assert JobSpec.from_json(spec.to_json()) == spec


def test_our_policies_differ_in_one_setting() -> None:
    ours = conf_of(Provider.CEC, "/j.jar").items()
    for provider, setting in ((Provider.EAGER, ("mode", "eager")), (Provider.LAZY, ("effort", "0"))):
        key, value = setting
        assert conf_of(provider, "/j.jar").items() - ours == {(f"spark.sql.streaming.stateStore.cec.{key}", value)}
        assert ours <= conf_of(provider, "/j.jar").items()


def test_conf_of_the_user_wins() -> None:
    conf = replace(SPEC, conf=(("spark.ui.enabled", "true"), ("spark.jars", "/other.jar"))).spark_conf()
    assert (conf["spark.ui.enabled"], conf["spark.jars"]) == ("true", "/other.jar")
    assert conf["spark.driver.extraJavaOptions"] == '"-Djava.io.tmpdir=/s p" -Xint'
    assert conf["spark.sql.shuffle.partitions"] == "2"


def test_facts_of_a_progress() -> None:
    custom = {"cecCommitMs": 9, "rocksdbGetLatency": 1}
    times = {"allUpdatesTimeMs": 1, "allRemovalsTimeMs": 2, "commitTimeMs": 3}
    state = {"numRowsTotal": 5, **times, "customMetrics": custom}
    progress = {
        "batchId": 4, "durationMs": {"triggerExecution": 70, "addBatch": 60}, "numInputRows": 6,
        "stateOperators": [state],
    }  # fmt: skip
    assert facts_of(progress) == {
        "batch": 4, "batch_ms": 70, "input_rows": 6, "state_rows": 5,
        "metrics": {"updateMs": 1, "removeMs": 2, "commitMs": 3, "cecCommitMs": 9},
    }  # fmt: skip
    assert facts_of({**progress, "observedMetrics": {"windows": {"lifetime": 2.5}}})["lifetime_batches"] == 2.5
    assert "lifetime_batches" not in facts_of({**progress, "observedMetrics": {"windows": {"lifetime": None}}})
    del state["customMetrics"]  # as of a provider that has none: the hash map
    assert facts_of(progress)["metrics"] == {"updateMs": 1, "removeMs": 2, "commitMs": 3}
