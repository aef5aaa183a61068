"""The comparison with Flink SQL: its configuration, and what its progress says."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import pytest

from spark_cec_lab.bench import flink_job
from spark_cec_lab.bench.flink import check_flink, conf_of_flink, flink, measured
from spark_cec_lab.bench.job import JobSpec
from spark_cec_lab.bench.measure import Schedule
from spark_cec_lab.bench.processes import BenchError
from spark_cec_lab.bench.providers import FLINK, Provider
from spark_cec_lab.bench.workloads import Shape, Workload

SPEC = JobSpec(
    provider=Provider.FLINK_ROCKSDB, workload=Workload(Shape.UNIFORM, keys=100, updates=10), checkpoint="", scratch="",
    jar="", memory="1g", java_options="-Da=b", conf=(), last_batch=None,
)  # fmt: skip


def test_each_backend_differs_in_what_its_name_says(tmp_path: Path) -> None:
    confs = {provider: conf_of_flink(provider, 2, tmp_path) for provider in FLINK}
    assert {conf["execution.checkpointing.interval"] for conf in confs.values()} == {"1000 ms"}
    assert [conf["state.backend.type"] for conf in confs.values()] == ["hashmap", "hashmap", "rocksdb", "rocksdb"]
    assert [conf.get("state.changelog.enabled") for conf in confs.values()] == [None, None, "true", "true"]
    assert [conf.get("table.exec.mini-batch.enabled") for conf in confs.values()] == [None, "true", None, "true"]


def test_a_python_without_flink_or_with_an_old_one_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BenchError, match=r"has no apache-flink: python -m venv flink"):
        check_flink(sys.executable)
    with pytest.raises(BenchError, match="No such file"):
        check_flink(str(tmp_path / "python"))
    for version in ("1.20.1", "2.1.0"):
        python = tmp_path / version
        python.write_text(f"#!/bin/sh\necho {version}\n")
        python.chmod(0o755)
    with pytest.raises(BenchError, match=r"1\.20\.1: 2\.0 or later"):
        check_flink(str(tmp_path / "1.20.1"))
    assert check_flink(str(tmp_path / "2.1.0")) == "2.1.0"


def _event(tuples: int, at_s: float, checkpoints: int) -> dict[str, float | None]:
    return {
        "tuples": tuples, "at_s": at_s, "checkpoints": checkpoints, "failed_checkpoints": 0,
        "checkpoint_ms": 300 if checkpoints else None,
    }  # fmt: skip


def test_a_tuples_time_is_that_between_the_first_and_the_last_look() -> None:
    found = measured([_event(1_000_000, 50.0, 0), _event(1_500_000, 51.0, 1), _event(3_000_000, 54.0, 4)], 7.0)
    assert found.values == {"us_per_tuple": 2.0, "cpu_us_per_tuple": 3.5}
    assert found.details == {"tuples": 2_000_000, "checkpoints": 4, "failed_checkpoints": 0, "checkpoint_ms": 300}


def test_flink_without_a_checkpoint_is_no_comparison() -> None:
    with pytest.raises(BenchError, match="1000 tuples and 0 checkpoints"):
        measured([_event(0, 50.0, 3), _event(1000, 51.0, 3)], 1.0)
    with pytest.raises(BenchError, match="0 tuples and 0 checkpoints"):
        measured([_event(0, 50.0, 3)], 1.0)


def test_the_process_is_ended_when_it_has_taken_enough(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    job = tmp_path / "job.py"
    job.write_text(
        "import json, os, sys, time\n"
        "spec = json.loads(sys.argv[1])\n"
        "assert spec['keys'] == 100 and '-Xmx1g' in os.environ['JVM_ARGS'] and '-Da=b' in os.environ['JVM_ARGS']\n"
        "for i in range(10**9):\n"
        "    print(json.dumps({'tuples': 40 * i, 'at_s': float(i), 'checkpoints': i, 'failed_checkpoints': 0, "
        "'checkpoint_ms': 10}), flush=True)\n"
        "    time.sleep(0.01)\n"
    )
    monkeypatch.setattr(flink_job, "__file__", str(job))
    spec = replace(SPEC, checkpoint=str(tmp_path / "checkpoint"), scratch=str(tmp_path / "scratch"))
    said: list[str] = []
    # 13 batches of 10 tuples before, 20 measured: looks at 160 and 360.
    found = flink(spec, Schedule(10, 3, 20), tmp_path, said.append, sys.executable)
    assert found.values["us_per_tuple"] == 1e6 / 40
    assert found.details["tuples"] == 200
    assert not (tmp_path / "scratch").exists()
