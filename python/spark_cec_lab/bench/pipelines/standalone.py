"""Spark's standalone cluster on this machine: a master, and workers of one core, each a process."""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path

from spark_cec.toolchain import java_command, spark_jars
from spark_cec_lab.bench.pipelines.driver import QUICK
from spark_cec_lab.bench.processes import BenchError, Child

LOOPBACK = "127.0.0.1"
_URL = re.compile(r"spark://127\.0\.0\.1:\d+")
_STARTS_WITHIN_S = 120.0
_LOOK_AGAIN_S = 0.05
_OPENED = ("java.lang", "java.lang.invoke", "java.net", "java.nio", "java.util", "java.util.concurrent", "sun.nio.ch",
           "sun.nio.cs", "sun.util.calendar")  # fmt: skip


class Standalone:
    """A master, and the workers that were added and not killed yet; as a context manager it ends them all."""

    def __init__(self, root: Path) -> None:
        """Starts the master. Raises `BenchError` if it does not come up."""
        self._root = root
        self._stack = ExitStack()
        self._number = 0
        self.workers: list[Child] = []
        self._master, log = self._daemon("master", "org.apache.spark.deploy.master.Master", [])
        self.url = _wait_for(_URL, log)

    def __enter__(self) -> Standalone:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def add(self) -> None:
        """Starts one more worker; the master gives it an executor."""
        self._number += 1
        name = f"worker-{self._number}"
        arguments = ["--work-dir", str(self._root / name), "--cores", "1", "--memory", "700m", self.url]
        worker, _ = self._daemon(name, "org.apache.spark.deploy.worker.Worker", arguments)
        self.workers.append(worker)

    def kill(self, number: int) -> None:
        """SIGKILL to so many workers, with their executors and these's agents."""
        lost, self.workers = self.workers[:number], self.workers[number:]
        for each in lost:
            each.signal_all()
        for each in lost:
            each.kill()

    def _daemon(self, name: str, main: str, arguments: list[str]) -> tuple[Child, Path]:
        scratch = self._root / f"{name}-tmp"
        scratch.mkdir(parents=True)
        opened = [f"--add-opens=java.base/{package}=ALL-UNNAMED" for package in _OPENED]
        command = [
            java_command(), *QUICK.split(), "-Xmx128m", f"-Djava.io.tmpdir={scratch}", *opened,
            "-cp", spark_jars().class_path, main, "--host", LOOPBACK, "--port", "0", "--webui-port", "0", *arguments,
        ]  # fmt: skip
        log = self._root / f"{name}.log"
        return self._stack.enter_context(Child(command, log, _environment(scratch))), log


def _environment(scratch: Path) -> Mapping[str, str]:
    return {
        "SPARK_HOME": str(spark_jars().directory.parent),
        "SPARK_SCALA_VERSION": spark_jars().scala,
        "SPARK_LOCAL_IP": LOOPBACK,
        "SPARK_LOCAL_DIRS": str(scratch),
        "TMPDIR": str(scratch),
        "PYSPARK_PYTHON": sys.executable,
    }


def _wait_for(pattern: re.Pattern[str], log: Path) -> str:
    deadline = time.monotonic() + _STARTS_WITHIN_S
    while not (found := pattern.search(log.read_text(errors="replace"))):
        if time.monotonic() > deadline:
            raise BenchError(f"no {pattern.pattern} in {log} after {_STARTS_WITHIN_S:.0f} s")
        time.sleep(_LOOK_AGAIN_S)
    return found[0]
