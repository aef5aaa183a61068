"""An HDFS on loopback, in a Java process of its own: `MiniDFSCluster` of Hadoop's own tests."""

from __future__ import annotations

import os
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from cec_it.maven import FetchError, fetch, read_pins
from spark_cec.toolchain import require_java, spark_jars

SOURCE = Path(__file__).with_name("MiniHdfs.java")
PINS = Path(__file__).with_name("mini_hdfs.toml")
NAME_SERVICE = "cluster"
_JARS = ("hadoop-client-api-", "hadoop-client-runtime-", "slf4j-api-", "jcl-over-slf4j-", "log4j-")
"""Those of Spark's jars that the server runs on, by the beginnings of their names."""


@dataclass(slots=True)
class MiniHdfs:
    """A running server. `ports`: those of its name nodes."""

    process: subprocess.Popen[str]
    ports: list[int] = field(default_factory=list)

    @property
    def url(self) -> str:
        """The root, by the first name node, or by the name service of two."""
        return f"hdfs://127.0.0.1:{self.ports[0]}" if len(self.ports) == 1 else f"hdfs://{NAME_SERVICE}"

    def settings(self) -> dict[str, str]:
        """Hadoop's settings of a client."""
        if len(self.ports) == 1:
            return {"fs.defaultFS": self.url}
        ha = "org.apache.hadoop.hdfs.server.namenode.ha."
        return {
            "fs.defaultFS": self.url,
            "dfs.nameservices": NAME_SERVICE,
            f"dfs.ha.namenodes.{NAME_SERVICE}": ",".join(f"nn{number}" for number in range(len(self.ports))),
            f"dfs.client.failover.proxy.provider.{NAME_SERVICE}": f"{ha}ConfiguredFailoverProxyProvider",
            **{f"dfs.namenode.rpc-address.{NAME_SERVICE}.nn{n}": f"127.0.0.1:{p}" for n, p in enumerate(self.ports)},
        }

    def order(self, line: str) -> None:
        """Makes the server do what the line says: see `MiniHdfs.java`."""
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.write(f"{line}\n")
        self.process.stdin.flush()
        assert (answer := self.process.stdout.readline().strip()) == "done", answer

    @contextmanager
    def paused(self) -> Iterator[None]:
        """The server takes connections and answers nothing meanwhile."""
        os.kill(self.process.pid, signal.SIGSTOP)
        try:
            yield
        finally:
            os.kill(self.process.pid, signal.SIGCONT)


@contextmanager
def run_hdfs(name_nodes: int = 1) -> Iterator[MiniHdfs]:
    """Runs a server. Skips the test for another Hadoop, or without a registry."""
    with tempfile.TemporaryDirectory(prefix="mini-hdfs-") as directory:
        command = [*(require_java(), "-Xmx512m", "-cp", _class_path()), str(SOURCE), directory, str(name_nodes)]
        with Path(directory, "stderr").open("w") as errors:
            process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True, cwd=directory,
                start_new_session=True,
            )  # fmt: skip
        try:
            assert process.stdin is not None and process.stdout is not None
            ready = process.stdout.readline().split()
            assert ready[:1] == ["ready"], Path(directory, "stderr").read_text()[-3000:]
            yield MiniHdfs(process, [int(port) for port in ready[1:]])
        finally:
            process.kill()
            process.wait()


def _class_path() -> str:
    jars = sorted(Path(spark_jars().directory).glob("*.jar"))
    hadoop = [path.name for path in jars if path.name.startswith("hadoop-client-api-")]
    if hadoop != ["hadoop-client-api-3.5.0.jar"]:
        pytest.skip(f"the pinned server is of Hadoop 3.5.0, and this Spark brings {hadoop}")
    try:
        fetched = fetch(read_pins(PINS))
    except FetchError as error:
        pytest.skip(f"the server cannot be fetched: {error}")
    return os.pathsep.join(str(path) for path in (*(each for each in jars if each.name.startswith(_JARS)), *fetched))
