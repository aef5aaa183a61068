"""Spark's standalone cluster on this machine: a master and workers as processes, and the faults that befall them.

The daemons run from pyspark's own jars, on loopback, at free ports; each worker has a directory of its own.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import pyspark

from cec_it.local import child_running, eventually
from spark_cec.toolchain import java_command
from testbed.processes import ProcessTree

SPARK_HOME = Path(pyspark.__file__).parent
LOOPBACK = "127.0.0.1"
PATIENCE_S = 400.0
"""How long processes of Spark are waited for, at most: several JVMs may start at once on few cores."""
EXECUTOR = b"CoarseGrainedExecutorBackend"
AGENT = b"spark_cec.agent"
QUICK = ["-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC"]
EXECUTOR_CONF = {
    "spark.driver.host": LOOPBACK,
    "spark.driver.bindAddress": LOOPBACK,
    "spark.executor.cores": "1",
    "spark.executor.memory": "600m",
    "spark.executor.extraJavaOptions": " ".join(QUICK),
    "spark.sql.shuffle.partitions": "4",
    "spark.deploy.maxExecutorRetries": "-1",
}
"""What an application on such a cluster is given: executors of one core, and more partitions than executors."""
_MODULE_OPTIONS = [
    f"--add-opens=java.base/{package}=ALL-UNNAMED"
    for package in ("java.lang", "java.lang.invoke", "java.net", "java.nio", "java.util", "java.util.concurrent",
                    "sun.nio.ch", "sun.nio.cs", "sun.util.calendar")
]  # fmt: skip


class Daemon:
    """A master, a worker or another server, in a session of its own."""

    def __init__(
        self, name: str, command: Sequence[str], log: Path, environment: Mapping[str, str], cwd: Path | None = None
    ) -> None:
        self.name = name
        self.log = log
        with log.open("ab") as output:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env={**os.environ, **environment},
                cwd=cwd,
                start_new_session=True,
            )
        self._tree = ProcessTree(self._process.pid)

    @property
    def pid(self) -> int:
        return self._process.pid

    def lives(self) -> bool:
        """True, or an `AssertionError` with the end of its log if it has ended."""
        if self._process.poll() is not None:
            raise AssertionError(f"{self.name} has ended: {self.log.read_text(errors='replace')[-2000:]}")
        return True

    def says(self, pattern: str) -> re.Match[str]:
        """The first place in its log that matches, as soon as there is one."""
        return eventually(
            lambda: re.search(pattern, self.log.read_text(errors="replace")) if self.lives() else None,
            f"{pattern!r} in {self.log}",
            PATIENCE_S,
        )

    def exit_code(self, timeout_s: float = PATIENCE_S) -> int:
        """Wait for its end."""
        return self._process.wait(timeout_s)

    def children(self, words: bytes) -> list[int]:
        """The pids of the processes that descend from this one and have these words in their command lines."""
        return [pid for pid in self._tree.members() if pid != self.pid and words in command_of(pid)]

    def kill(self) -> None:
        """SIGKILL this process alone: its children learn of it as they would of a lost connection."""
        self._process.kill()
        self._process.wait()

    def lose(self) -> None:
        """SIGKILL it with all its descendants, as when the machine is lost."""
        self._tree.kill()
        self._process.wait()

    def signal(self, number: int) -> None:
        """Send it a signal."""
        self._process.send_signal(number)


class Cluster:
    """A master and its workers."""

    def __init__(self, root: Path, workers: int = 3, conf: Mapping[str, str] | None = None) -> None:
        """Start them, each worker with one core; `conf` are settings of the workers."""
        self.root = root
        self._conf = dict(conf or {})
        self._started = 0
        self.application = ""
        """Spark's id of the application whose executors count; empty: of all. Those of a dead one end late."""
        self.workers: list[Daemon] = []
        self._gone: list[Daemon] = []
        root.mkdir(parents=True, exist_ok=True)
        self.master = self._daemon("master", "org.apache.spark.deploy.master.Master", [], ["--port", "0"])
        try:
            self.url = str(self.master.says(r"spark://127\.0\.0\.1:\d+")[0])
            for _ in range(workers):
                self.add_worker()
            self.await_workers()
        except BaseException:
            self.stop()
            raise

    def add_worker(self) -> Daemon:
        """Start one more worker; does not wait until the master knows it."""
        self._started += 1
        name = f"worker-{self._started}"
        directory = ["--work-dir", str(self.root / name), "--cores", "1", "--memory", "1000m"]
        options = [f"-D{key}={value}" for key, value in self._conf.items()]
        worker = self._daemon(
            name, "org.apache.spark.deploy.worker.Worker", options, ["--port", "0", *directory, self.url]
        )
        self.workers.append(worker)
        return worker

    def await_workers(self) -> None:
        """Wait until the master knows every worker."""
        for worker in self.workers:
            worker.says("Successfully registered with master")

    def replace(self, worker: Daemon) -> None:
        """Start another worker in the place of one that is gone; what that may have left behind is ended with it."""
        self._gone.append(worker)
        self.workers.remove(worker)
        self.add_worker()

    def executors(self) -> list[int]:
        """The pids of the executors, in the order of the workers."""
        found = [pid for worker in self.workers for pid in worker.children(EXECUTOR)]
        return [pid for pid in found if self.application.encode() in command_of(pid)]

    def agents(self) -> list[int]:
        """The pids of the executors' agents."""
        agents = (child_running(executor, AGENT) for executor in self.executors())
        return [pid for pid in agents if pid is not None]

    def conf(self) -> dict[str, str]:
        """What an application needs to run here, beside `url` as its master."""
        return dict(EXECUTOR_CONF)

    def stop(self) -> None:
        """End all daemons, with the executors that they started."""
        for daemon in [*self._gone, *self.workers, self.master]:
            daemon.lose()
        self.workers.clear()

    def _daemon(self, name: str, main: str, options: Sequence[str], arguments: Sequence[str]) -> Daemon:
        scratch = self.root / f"{name}-tmp"
        scratch.mkdir()
        command = [
            java_command(), *QUICK, "-Xmx192m", f"-Djava.io.tmpdir={scratch}", *_MODULE_OPTIONS, *options,
            "-cp", f"{SPARK_HOME}/jars/*", main, "--host", LOOPBACK, "--webui-port", "0", *arguments,
        ]  # fmt: skip
        return Daemon(name, command, self.root / f"{name}.log", self._environment(scratch))

    @staticmethod
    def _environment(scratch: Path) -> Mapping[str, str]:
        return {
            "SPARK_HOME": str(SPARK_HOME),
            "SPARK_SCALA_VERSION": "2.13",
            "SPARK_LOCAL_IP": LOOPBACK,
            "SPARK_LOCAL_DIRS": str(scratch),
            "TMPDIR": str(scratch),
            "PYSPARK_PYTHON": sys.executable,
        }


@contextmanager
def running(root: Path, workers: int = 3, conf: Mapping[str, str] | None = None) -> Iterator[Cluster]:
    """A cluster that is gone at the end, whatever happens."""
    cluster = Cluster(root, workers, conf)
    try:
        yield cluster
    finally:
        cluster.stop()


def command_of(pid: int) -> bytes:
    """The command line of a process, its words ended by NUL; empty if it is gone."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return b""


def terminate(pid: int) -> None:
    """SIGTERM one process, which may be gone already."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGTERM)
