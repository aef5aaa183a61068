"""A Kafka broker on loopback: one process that is broker and controller (KRaft), in a directory of its own."""

from __future__ import annotations

import contextlib
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import TracebackType

from spark_cec.toolchain import require_java, spark_jars
from testbed.jars import BROKER, jars
from testbed.processes import die_with_parent

HOST = "127.0.0.1"
_CLUSTER = "MkU3OEVBNTcwNTJENDM2Qg"
_UP_WITHIN_S = 120.0
_DOWN_WITHIN_S = 30.0
_LOOK_EVERY_S = 0.02
_UP = "Kafka Server started"


class BrokerError(RuntimeError):
    """The broker does not come up: the message has the end of what it said."""


class Broker:
    """A broker that keeps its port and its data from one start to the next; in a `with` block it runs.

    It ends with the process that started it (on Linux also if that one is killed).
    """

    def __init__(self, root: Path, options: Mapping[str, str] | None = None) -> None:
        """`root` is the broker's own directory; `options` are further lines of its `server.properties`."""
        self.root = root
        self.port, self._controller_port = _free_ports(2)
        self._options = dict(options or {})
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def address(self) -> str:
        """For `kafka.bootstrap.servers`."""
        return f"{HOST}:{self.port}"

    @property
    def log(self) -> Path:
        """What the broker says."""
        return self.root / "broker.log"

    def __enter__(self) -> Broker:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        self.stop()

    def start(self) -> None:
        """Start the broker, with the data that it has, and wait until it serves. Raises `BrokerError`."""
        self._write_files()
        if not (self.root / "data").exists():
            self._format()
        began = self.log.stat().st_size if self.log.exists() else 0
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                self._java("kafka.Kafka", str(self._properties)),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                preexec_fn=die_with_parent if sys.platform == "linux" else None,
            )
        self._wait_until_up(began)

    def stop(self) -> None:
        """End the broker as an administrator would; it is killed if that takes long."""
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        """SIGKILL: what it has not written yet is lost."""
        self._end(signal.SIGKILL)

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """The broker does not answer meanwhile."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)
        try:
            yield
        finally:
            self._process.send_signal(signal.SIGCONT)

    def _end(self, how: signal.Signals) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        process.send_signal(how)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_DOWN_WITHIN_S)
            return
        process.kill()
        process.wait()

    def _wait_until_up(self, began: int) -> None:
        assert self._process is not None
        deadline = time.monotonic() + _UP_WITHIN_S
        while _UP not in (said := self._said_since(began)):
            if self._process.poll() is not None or time.monotonic() > deadline:
                self.kill()
                raise BrokerError(f"the Kafka broker does not come up:\n{said[-3000:]}")
            time.sleep(_LOOK_EVERY_S)

    def _said_since(self, began: int) -> str:
        with self.log.open("rb") as log:
            log.seek(began)
            return log.read().decode(errors="replace")

    @property
    def _properties(self) -> Path:
        return self.root / "server.properties"

    def _write_files(self) -> None:
        self.root.mkdir(parents=True, exist_ok=True)
        lines = {**_server(self.root / "data", self.port, self._controller_port), **self._options}
        self._properties.write_text("".join(f"{key}={value}\n" for key, value in lines.items()))
        (self.root / "log4j2.properties").write_text(_LOGGING)

    def _format(self) -> None:
        done = subprocess.run(
            self._java("kafka.tools.StorageTool", "format", "-t", _CLUSTER, "-c", str(self._properties)),
            capture_output=True,
            text=True,
            timeout=_UP_WITHIN_S,
            check=False,
        )
        if done.returncode:
            raise BrokerError(f"the broker's storage cannot be formatted:\n{done.stdout}{done.stderr}")

    def _java(self, *arguments: str) -> list[str]:
        # What Kafka shares with Spark (logging, Jackson, Scala) comes from Spark's jars.
        path = ":".join([*map(str, jars(BROKER)), spark_jars().class_path])
        options = ("-Xmx384m", "-Xms64m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC")
        logging = f"-Dlog4j2.configurationFile={self.root / 'log4j2.properties'}"
        return [require_java(), *options, logging, "-cp", path, *arguments]


_LOGGING = """\
rootLogger.level = warn
rootLogger.appenderRef.out.ref = out
logger.up.name = kafka.server.KafkaRaftServer
logger.up.level = info
appender.out.type = Console
appender.out.name = out
appender.out.layout.type = PatternLayout
appender.out.layout.pattern = %d %p %c{1}: %m%n%ex
"""


def _server(data: Path, port: int, controller_port: int) -> dict[str, str]:
    return {
        "process.roles": "broker,controller",
        "node.id": "1",
        "listeners": f"PLAINTEXT://{HOST}:{port},CONTROLLER://{HOST}:{controller_port}",
        "advertised.listeners": f"PLAINTEXT://{HOST}:{port}",
        "controller.listener.names": "CONTROLLER",
        "controller.quorum.voters": f"1@{HOST}:{controller_port}",
        "listener.security.protocol.map": "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT",
        "log.dirs": str(data),
        "auto.create.topics.enable": "false",
        "offsets.topic.num.partitions": "1",
        "offsets.topic.replication.factor": "1",
        "transaction.state.log.num.partitions": "1",
        "transaction.state.log.replication.factor": "1",
        "transaction.state.log.min.isr": "1",
        "group.initial.rebalance.delay.ms": "0",
        "log.cleaner.dedupe.buffer.size": "8388608",
        "num.network.threads": "2",
        "num.io.threads": "2",
        "background.threads": "2",
    }


def _free_ports(count: int) -> list[int]:
    """Ports that nobody listens on; all are held until all are known, so that they differ."""
    with contextlib.ExitStack() as held:
        sockets = [held.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind((HOST, 0))
        return [int(each.getsockname()[1]) for each in sockets]
