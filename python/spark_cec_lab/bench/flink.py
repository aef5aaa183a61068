"""The same query on Flink SQL: how many tuples a second it takes, beside ours."""

from __future__ import annotations

import json
import shutil
import statistics
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from spark_cec_lab.bench import flink_job
from spark_cec_lab.bench.job import JobSpec
from spark_cec_lab.bench.measure import SILENCE_S, Measured, Say, Schedule
from spark_cec_lab.bench.processes import BenchError, Child
from spark_cec_lab.bench.providers import Provider

CHECKPOINT_MS = 1000
"""Flink makes a checkpoint every second; ours at each batch, which takes about as long."""

HOW = "python -m venv flink && flink/bin/pip install 'apache-flink>=2', then --flink-python flink/bin/python"
"""Flink wants an environment of its own."""

_MINI_BATCH = {
    "table.exec.mini-batch.enabled": "true",
    "table.exec.mini-batch.allow-latency": "1 s",
    "table.exec.mini-batch.size": "300000",
}
_CHANGELOG = {"state.changelog.enabled": "true", "state.changelog.storage": "filesystem"}
_BACKENDS: Mapping[Provider, Mapping[str, str]] = {
    Provider.FLINK_HASHMAP: {"state.backend.type": "hashmap"},
    Provider.FLINK_HASHMAP_MINI: {"state.backend.type": "hashmap", **_MINI_BATCH},
    Provider.FLINK_ROCKSDB: {"state.backend.type": "rocksdb", **_CHANGELOG},
    Provider.FLINK_ROCKSDB_MINI: {"state.backend.type": "rocksdb", **_CHANGELOG, **_MINI_BATCH},
}


def conf_of_flink(provider: Provider, partitions: int, checkpoint: Path) -> dict[str, str]:
    """Flink's whole configuration for one of its backends; all else is Flink's default."""
    return {
        **_BACKENDS[provider],
        "parallelism.default": str(partitions),
        "taskmanager.numberOfTaskSlots": str(partitions),
        "taskmanager.memory.managed.size": "1g",
        "execution.checkpointing.interval": f"{CHECKPOINT_MS} ms",
        "execution.checkpointing.incremental": "true",
        "execution.checkpointing.dir": (checkpoint / "checkpoints").as_uri(),
        "state.changelog.dstl.dfs.base-path": (checkpoint / "changelog").as_uri(),
        "io.tmp.dirs": str(checkpoint / "tmp"),
        "rest.bind-address": "127.0.0.1",
        "metrics.fetcher.update-interval": "200 ms",
    }


def check_flink(python: str) -> str:
    """The version of apache-flink that a Python has. Raises `BenchError` where it has none, or one before 2.0."""
    code = "import importlib.metadata as m; print(m.version('apache-flink'))"
    try:
        done = subprocess.run([python, "-c", code], capture_output=True, text=True, timeout=60)
    except OSError as error:
        raise BenchError(f"{python}: {error.strerror}") from None
    version = done.stdout.strip()
    if done.returncode or not version:
        raise BenchError(f"{python} has no apache-flink: {HOW}")
    if int(version.split(".")[0]) < 2:
        raise BenchError(f"{python} has apache-flink {version}: 2.0 or later is wanted")
    return version


def flink(spec: JobSpec, schedule: Schedule, home: Path, say: Say, python: str) -> Measured:
    """As many tuples as the batches of the schedule have, in three phases: fill, settle, measure.

    Values: `us_per_tuple`, and processor time `cpu_us_per_tuple`. Raises `BenchError` if the query fails, or has made
    no checkpoint while it was measured: it would have promised nothing.
    """
    checkpoint, updates = Path(spec.checkpoint), spec.workload.updates
    begin, end = schedule.first_timed * updates, (schedule.last + 1) * updates
    told = {"keys": spec.workload.keys, "conf": conf_of_flink(spec.provider, spec.workload.partitions, checkpoint)}
    (checkpoint / "tmp").mkdir(parents=True)
    Path(spec.scratch).mkdir(parents=True)
    jvm = f"-Xmx{spec.memory} -Djava.io.tmpdir={spec.scratch} {spec.java_options}"
    command = [python, str(Path(flink_job.__file__).resolve()), json.dumps(told)]
    timed: list[dict[str, Any]] = []
    try:
        with Child(command, home / "stderr.log", {"TMPDIR": spec.scratch, "JVM_ARGS": jvm}) as child:
            cpu_s = 0.0
            for event in child.events(SILENCE_S):
                say(f"{event['tuples'] / 1e6:.1f} of {end / 1e6:.1f} million tuples")
                if event["tuples"] >= begin:
                    cpu_s = cpu_s if timed else child.cpu_s()
                    timed.append(event)
                if event["tuples"] >= end:
                    cpu_s = child.cpu_s() - cpu_s
                    break
    finally:
        shutil.rmtree(spec.scratch, ignore_errors=True)
    return measured(timed, cpu_s)


def measured(timed: list[dict[str, Any]], cpu_s: float) -> Measured:
    """What the events between the first and the last say. Raises `BenchError` if no checkpoint came."""
    first, last = timed[0], timed[-1]
    tuples, checkpoints = last["tuples"] - first["tuples"], last["checkpoints"] - first["checkpoints"]
    if tuples <= 0 or checkpoints <= 0:
        raise BenchError(f"{tuples} tuples and {checkpoints} checkpoints while Flink was measured: give more --batches")
    return Measured(
        {"us_per_tuple": 1e6 * (last["at_s"] - first["at_s"]) / tuples, "cpu_us_per_tuple": 1e6 * cpu_s / tuples},
        {
            "tuples": tuples,
            "checkpoints": checkpoints,
            "failed_checkpoints": last["failed_checkpoints"] - first["failed_checkpoints"],
            "checkpoint_ms": statistics.median(e["checkpoint_ms"] for e in timed if e["checkpoint_ms"] is not None),
        },
    )
