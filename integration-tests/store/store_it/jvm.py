"""A JVM that holds stores without Spark around them, driven by JSON lines (`scala/StoreDriver.scala`)."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import queue
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from spark_cec.session import jar_path
from spark_cec.settings import PREFIX
from spark_cec.toolchain import SparkJars, compile_sources, java_command, spark_jars

HERE = Path(__file__).resolve().parent
SOURCES = sorted((HERE.parent / "scala").glob("*.scala"))
PYTHON = HERE.parents[2] / "python"
ANSWER_TIMEOUT_S = 120.0

_OPENED = (
    "java.base/java.lang",
    "java.base/java.nio",
    "java.base/java.util",
    "java.base/sun.nio.ch",
    "java.base/jdk.internal.ref",
)
_OPTIONS = (
    "-Xmx768m",
    "-Xss4m",
    "-XX:+UseSerialGC",
    "-XX:TieredStopAtLevel=1",
    "-Djdk.reflect.useDirectMethodHandle=false",
)

Key = tuple[int, ...]
Value = tuple[int, int]
Step = Sequence[Any]


class Refused(Exception):
    """What the JVM threw. Attribute: `causes`, the exception and its causes, with class, message, kind."""

    def __init__(self, causes: list[dict[str, str]]) -> None:
        super().__init__("; caused by ".join(f"{each['class']}: {each['message']}" for each in causes))
        self.causes = causes

    @property
    def kind(self) -> str | None:
        """The kind of the first `CecException` among the causes."""
        return next((each["kind"] for each in self.causes if "kind" in each), None)


@dataclass(frozen=True, slots=True)
class _WithShim(SparkJars):
    shim: str = ""

    @property
    def class_path(self) -> str:
        """Spark's jars and the shim's."""
        return os.pathsep.join([str(self.directory / "*"), self.shim])


def _jars() -> _WithShim:
    spark = spark_jars()
    return _WithShim(spark.directory, spark.version, spark.scala, jar_path())


def compiled(cache: Path) -> str:
    """Class path of the driver and all that it needs; compiled anew when the driver or the shim has changed."""
    jars = _jars()
    sha = hashlib.sha256(Path(jars.shim).read_bytes())
    for source in SOURCES:
        sha.update(source.read_bytes())
    classes = cache / sha.hexdigest()[:20]
    if not classes.is_dir():
        fresh = classes.with_suffix(f".{os.getpid()}")
        fresh.mkdir(parents=True)
        compile_sources(jars, SOURCES, [], fresh, quiet=True)
        # Another test run may have compiled the same meanwhile.
        with contextlib.suppress(OSError):
            fresh.rename(classes)
    return os.pathsep.join([str(classes), jars.class_path])


class Stores:
    """One JVM with its agent; `options` come after the usual ones, so that they win.

    `cwd` is its working directory, `variables` are put into its environment.
    """

    def __init__(
        self,
        class_path: str,
        scratch: Path,
        options: Sequence[str] = (),
        cwd: Path | None = None,
        variables: Mapping[str, str] | None = None,
    ) -> None:
        self.scratch = scratch
        self.errors = scratch / "jvm.stderr"
        opened = [option for package in _OPENED for option in ("--add-opens", f"{package}=ALL-UNNAMED")]
        command = [java_command(), *_OPTIONS, *options, f"-Djava.io.tmpdir={scratch}", *opened, "-cp", class_path]
        with self.errors.open("wb") as errors:
            self._process = subprocess.Popen(
                [*command, "org.apache.spark.sql.cec.testing.StoreDriver"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                cwd=cwd,
                env={**os.environ, "PYTHONPATH": str(PYTHON), "TMPDIR": str(scratch), **(variables or {})},
            )
        assert self._process.stdin is not None and self._process.stdout is not None
        self._requests: IO[str] = self._process.stdin
        self._answers: queue.Queue[str] = queue.Queue()
        threading.Thread(target=self._listen, args=(self._process.stdout,), daemon=True).start()

    def _listen(self, answers: IO[str]) -> None:
        for line in answers:
            self._answers.put(line)
        self._answers.put("")

    def ask(self, op: str, **arguments: Any) -> Any:
        """One request; raises `Refused` with what the JVM threw."""
        print(json.dumps({"op": op, **arguments}), file=self._requests, flush=True)
        line = self._answers.get(timeout=ANSWER_TIMEOUT_S)
        assert line, f"the JVM ended: {self.errors.read_text()[-4000:]}"
        answer = json.loads(line)
        if "error" in answer:
            raise Refused(answer["error"])
        return answer["ok"]

    def do(self, target: str, *steps: Step, **arguments: Any) -> list[Any]:
        """Runs steps on a store, each with its answer."""
        answers = self.ask("do", target=target, steps=[list(step) for step in steps], **arguments)
        assert isinstance(answers, list)
        return answers

    def conf(self, **settings: str) -> dict[str, str]:
        """A conf for stores: `cec.*` settings, `__` for a dot in their keys."""
        base = {"python": sys.executable, "index.path": str(self.scratch / "index")}
        given = {key.replace("__", "."): value for key, value in settings.items()}
        return {PREFIX + key: value for key, value in {**base, **given}.items()}

    def agent_pid(self) -> int | None:
        """The agent's process, if one runs."""
        pid = self.ask("agent_pid")
        return None if pid is None else int(pid)

    @property
    def pid(self) -> int:
        """The JVM's process."""
        return self._process.pid

    def close(self) -> None:
        """Ends the JVM, and with it the agent."""
        self._requests.close()
        self._process.wait(timeout=30)


def pairs(answer: list[Any]) -> dict[Key, Value]:
    """The answer of `iterate`, `scan` or `next` as a dict; a key that comes twice is an error."""
    found = {tuple(key): (int(value[0]), int(value[1])) for key, value in answer}
    assert len(found) == len(answer), f"a key comes twice: {answer}"
    return found
