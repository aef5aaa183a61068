"""One suite in a JVM of its own."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

from spark_cec.session import PYTHON_KEY
from spark_cec.settings import PROVIDER, PROVIDER_KEY
from spark_cec.toolchain import require_java, spark_jars
from spark_suites.classes import HERE, Classes
from spark_suites.junit import SuiteResult, read

_HEAP = "-Xmx2g"
_JIT = ("-Xss4m", "-XX:ReservedCodeCacheSize=256m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC")
"""A suite is over before the second compiler has paid."""
_GRACE_S = 20
_PROPERTIES = {
    "spark.testing": "1",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.master.rest.enabled": "false",
    "spark.unsafe.exceptionOnMemoryLeak": "true",
    "derby.system.durability": "test",
    "java.awt.headless": "true",
    "log4j2.configurationFile": str(HERE / "log4j2.properties"),
}
_OURS = {
    PROVIDER_KEY: PROVIDER,
    PYTHON_KEY: sys.executable,
    # Spark's SharedSparkSession switches off what META-INF/services names.
    "spark.sql.extensions": "org.apache.spark.sql.cec.CecExtensions",
}


@dataclass(frozen=True, slots=True)
class Launch:
    """How suites are run: on our provider or (`ours=False`) on Spark's default one, with confs, below `directory`."""

    classes: Classes
    directory: Path
    ours: bool = True
    timeout_s: float = 900.0
    confs: dict[str, str] = field(default_factory=dict)
    tests: tuple[str, ...] = ()


def run(launch: Launch, suite: str) -> SuiteResult:
    """Run the class `suite`; its output stays below `launch.directory`, in a directory of the suite's short name."""
    short = suite.rsplit(".", 1)[-1]
    home = launch.directory / short
    shutil.rmtree(home, ignore_errors=True)
    (home / "tmp").mkdir(parents=True)
    (home / "jars").symlink_to(spark_jars().directory)  # executors of their own take Spark's jars from its home
    begun = time.monotonic()
    with (home / "out").open("wb") as out, (home / "err").open("wb") as err:
        process = subprocess.Popen(
            command(launch, suite, home),
            cwd=home,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=err,
            env=_environment(launch.classes),
            start_new_session=True,
        )
        try:
            process.wait(launch.timeout_s)
            aborted = _aborted(process.returncode, home)
        except subprocess.TimeoutExpired:
            aborted = f"not done after {launch.timeout_s:g} s; the last line was: {_last_line(home / 'out')}"
        finally:
            _end(process)
    result = read(short, home / "junit", time.monotonic() - begun, aborted)
    shutil.rmtree(home / "tmp", ignore_errors=True)
    return result


def _environment(classes: Classes) -> dict[str, str]:
    """Agents are of this tree, wherever the virtual environment has its package from; executors have all classes."""
    return {
        **os.environ,
        "PYTHONPATH": str(HERE.parents[1] / "python"),
        "PYSPARK_PYTHON": sys.executable,
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_SCALA_VERSION": spark_jars().scala,
        "SPARK_DIST_CLASSPATH": classes.class_path,
    }


def command(launch: Launch, suite: str, home: Path) -> list[str]:
    """The command line of the suite's JVM."""
    properties = {
        **_PROPERTIES,
        **(_OURS if launch.ours else {}),
        **launch.confs,
        "java.io.tmpdir": str(home / "tmp"),
        "spark.test.home": str(home),
        "cec.suite.log": str(home / "unit.log"),
    }
    chosen = [option for test in launch.tests for option in ("-t", test)]
    return [
        *(require_java(), _HEAP, *_JIT),
        *module_options(),
        *(f"-D{key}={value}" for key, value in properties.items()),
        *("-cp", launch.classes.class_path, "org.scalatest.tools.Runner"),
        *("-R", str(launch.classes.own), "-s", suite, *chosen, "-oW", "-u", str(home / "junit")),
    ]


def module_options() -> list[str]:
    """What Spark's launcher opens to a JVM: the public constant of its `JavaModuleOptions`."""
    if not _MODULE_OPTIONS:
        jars = spark_jars().class_path
        source = HERE / "ModuleOptions.java"
        shown = subprocess.run([require_java(), "-cp", jars, str(source)], capture_output=True, text=True, check=True)
        _MODULE_OPTIONS.extend(shown.stdout.split())
    return _MODULE_OPTIONS


_MODULE_OPTIONS: list[str] = []


def _aborted(status: int, home: Path) -> str:
    """Why the JVM ended before the suite did; scalatest ends with 1 if a test failed, and with 0 otherwise."""
    out = (home / "out").read_text("utf-8", "replace")
    lines = out.splitlines()
    for number, line in enumerate(lines):
        if "*** ABORTED ***" in line or "Exception encountered when attempting to run a suite" in line:
            return " ".join(part.strip() for part in lines[number : number + 2])
    return "" if status in (0, 1) else f"the JVM ended with status {status}: {_last_line(home / 'err')}"


def _last_line(file: Path) -> str:
    lines = file.read_text("utf-8", "replace").split("\n") if file.is_file() else []
    return next((line for line in reversed(lines) if line.strip()), "nothing")


def _end(process: subprocess.Popen[bytes]) -> None:
    """End the JVM and what it started: they are a session, and so a process group, of their own."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(process.pid, number)
        except ProcessLookupError:
            break
        try:
            process.wait(_GRACE_S)
        except subprocess.TimeoutExpired:
            continue
    process.wait()
