"""The benchmark as a program, on Spark, in small."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from spark_cec_lab.bench.job import JobSpec
from spark_cec_lab.bench.measure import SILENCE_S
from spark_cec_lab.bench.processes import Child
from spark_cec_lab.bench.providers import PEERS, Provider
from spark_cec_lab.bench.workloads import Shape, Workload

CEC = str(Path(sys.executable).with_name("cec"))
SMALL = ["--rounds", "1", "--keys", "2000", "--updates", "1000", "--warm-up", "2", "--batches", "2"]

ZSTD = b"\x28\xb5\x2f\xfd"
"""How a zstd frame begins."""


def test_every_peer_runs(tmp_path: Path) -> None:
    command = [CEC, "bench", "uniform", *SMALL, "--output", str(tmp_path / "work")]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    *lines, summary, verdict = map(json.loads, ran.stdout.splitlines())
    assert {line["provider"] for line in lines} == {each.value for each in PEERS}
    rows = {line["provider"]: line["state_rows"] for line in lines}
    assert rows == {each.value: 2000 if each.counts_rows else 0 for each in PEERS}
    written = {line["provider"]: line["bytes_per_batch"] for line in lines}
    assert written[Provider.HASHMAP.value] == 0 < written[Provider.CEC.value]
    assert written[Provider.ROCKSDB_ZSTD.value] < written[Provider.ROCKSDB.value]
    assert written[Provider.HDFS_ZSTD.value] < written[Provider.HDFS.value]
    assert summary["kind"] == "summary"
    assert set(summary["best"]) == {"rocksdb", "hdfs"}
    assert set(summary["eager_ratios"]) == {each.value for each in PEERS} - {Provider.EAGER.value}
    assert verdict["kind"] == "verdict"
    assert not list((tmp_path / "work").iterdir())


def test_a_user_interface_is_watched(tmp_path: Path) -> None:
    command = [CEC, "bench", "ui", *SMALL, "--batches", "20", "--memory", "1g", "--output", str(tmp_path / "work")]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    *lines, summary = map(json.loads, ran.stdout.splitlines())
    assert [line["ui"] for line in lines] == ["none", "unwatched", "watched"]
    assert ["looks" in line for line in lines] == [False, False, True]
    assert all(line["batch_ms"] > 0 and line["cpu_ms"] > 0 for line in lines)
    assert set(summary["ratios"]) == {"unwatched over none", "watched over none", "watched over unwatched"}
    assert not list((tmp_path / "work").iterdir())


@pytest.mark.parametrize(
    ("provider", "kinds"), [(Provider.ROCKSDB_ZSTD, ["changelog"]), (Provider.HDFS_ZSTD, ["delta", "snapshot"])]
)
def test_zstd_is_the_codec_of_the_files(provider: Provider, kinds: list[str], tmp_path: Path) -> None:
    """What a peer's name says of its codec holds for each kind of file that Spark compresses by it."""
    spec = JobSpec(
        provider=provider, workload=Workload(Shape.UNIFORM, keys=200, updates=100),
        checkpoint=str(tmp_path / "checkpoint"), scratch=str(tmp_path), jar="", memory="1g", java_options="",
        conf=(("spark.sql.streaming.stateStore.maintenanceInterval", "100ms"),
              ("spark.sql.streaming.stateStore.minDeltasForSnapshot", "2")),
        last_batch=11,
    )  # fmt: skip
    command = [sys.executable, "-m", "spark_cec_lab.bench.job", spec.to_json()]
    with Child(command, tmp_path / "errors", {}) as child:
        assert [event["batch"] for event in child.events(SILENCE_S)][-1] == spec.last_batch
    for kind in kinds:
        files = list((tmp_path / "checkpoint/state/0").rglob(f"[0-9]*.{kind}"))
        assert files, kind
        assert {path.read_bytes()[: len(ZSTD)] for path in files} == {ZSTD}


@pytest.mark.long
def test_protocols_are_compared_in_small(tmp_path: Path) -> None:
    lines = tmp_path / "lines.jsonl"
    command = [CEC, "bench", "protocols", "--quick", "--output", str(tmp_path / "work"), "--json-out", str(lines)]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    for title in ("Fig. 7", "Table II", "Fig. 8", "Figs. 9, 10", "Fig. 11", "Table III", "Table IV", "Where both are"):
        assert f"**{title}" in ran.stdout
    runs = [json.loads(line) for line in lines.read_text().splitlines()]
    assert len([run for run in runs if run["kind"] in ("full", "failing")]) == 16
    assert all(run["recovery"] for run in runs if run["kind"] == "failing")
    assert not list((tmp_path / "work").iterdir())
