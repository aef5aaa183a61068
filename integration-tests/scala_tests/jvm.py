"""All unit tests in one JVM."""

from __future__ import annotations

import shutil
import signal
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from scala_tests.classes import ROOT
from spark_cec.toolchain import require_java
from spark_suites.classes import Classes
from spark_suites.junit import SuiteResult, read_all
from spark_suites.jvm import module_options

_OPTIONS = ("-Xmx768m", "-Xss4m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Djava.awt.headless=true")
"""The tests are over before the second compiler has paid."""
_LAST_LINES = 40
_GRACE_S = 5.0


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a run went. `aborted` says why it did not come to its end, with the last lines of its output; else empty."""

    results: tuple[SuiteResult, ...]
    aborted: str = ""

    @property
    def passed(self) -> int:
        """Number of tests that passed."""
        return sum(len(result.passed) for result in self.results)

    @property
    def failed(self) -> int:
        """Number of tests that failed, and one more if the run did not come to its end."""
        return sum(len(result.failures) for result in self.results) + bool(self.aborted)


def run(
    classes: Classes, directory: Path, arguments: Sequence[str], options: Sequence[str], timeout_s: float,
    java: str | None = None,
) -> Outcome:  # fmt: skip
    """Run ScalaTest's runner with more `arguments`, in a JVM with more `options`; its files are below `directory`.

    `java`: the command of another Java than the one that compiles.
    """
    shutil.rmtree(directory, ignore_errors=True)
    (directory / "tmp").mkdir(parents=True)
    output = directory / "output"
    command = [
        *(java or require_java(), *_OPTIONS, *module_options(), *options),
        *(f"-Djava.io.tmpdir={directory / 'tmp'}", f"-Dcec.suite.log={directory / 'unit.log'}"),
        f"-Dlog4j2.configurationFile={ROOT / 'integration-tests' / 'spark_suites' / 'log4j2.properties'}",
        *("-cp", classes.class_path, "org.scalatest.tools.Runner"),
        *("-R", str(classes.own), "-oWDF", "-u", str(directory / "junit"), *arguments),
    ]
    with output.open("wb") as stream:
        process = subprocess.Popen(command, cwd=directory, stdin=subprocess.DEVNULL, stdout=stream, stderr=stream)
        try:
            status = process.wait(timeout_s)
            late = ""
        except subprocess.TimeoutExpired:
            late = f"not done after {timeout_s:g} s; {output} ends with the stacks of all threads"
            status = _stop(process)
        finally:
            process.kill()
    return judge(tuple(read_all(directory / "junit")), status, late, output.read_text("utf-8", "replace"))


def judge(results: tuple[SuiteResult, ...], status: int, late: str, output: str) -> Outcome:
    """What a run with these results and this exit status is. A run without a test has not come to its end."""
    whole = status == 0 or (status == 1 and any(result.failures for result in results))
    broken = late or next((f"{result.suite}: {result.aborted}" for result in results if result.aborted), "")
    if not broken and "*** ABORTED ***" in output:
        broken = "a suite could not be made"
    if not broken and not whole:
        broken = f"the JVM ended with status {status}"
    if not broken and not results:
        broken = "no test was run"
    return Outcome(results, broken and "\n".join([broken, *output.splitlines()[-_LAST_LINES:]]))


def _stop(process: subprocess.Popen[bytes]) -> int:
    """End a JVM that hangs, after it has written where each thread is."""
    process.send_signal(signal.SIGQUIT)
    try:
        return process.wait(_GRACE_S)
    except subprocess.TimeoutExpired:
        process.kill()
        return process.wait()
