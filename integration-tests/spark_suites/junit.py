"""What scalatest's JUnit XML files say."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree
from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Failure:
    """A test that failed, and why."""

    test: str
    reason: str


@dataclass(frozen=True, slots=True)
class SuiteResult:
    """How one suite went. `aborted` says why it did not come to its end; empty if it did."""

    suite: str
    passed: tuple[str, ...] = ()
    failures: tuple[Failure, ...] = ()
    skipped: tuple[str, ...] = ()
    seconds: float = 0.0
    aborted: str = field(default="")

    @property
    def run(self) -> int:
        """Number of tests that were run."""
        return len(self.passed) + len(self.failures)


def read(suite: str, directory: Path, seconds: float, aborted: str = "") -> SuiteResult:
    """The result of `suite` from the `TEST-*.xml` files below `directory`."""
    return _result(suite, sorted(directory.glob("TEST-*.xml")), seconds, aborted)


def read_all(directory: Path) -> list[SuiteResult]:
    """The results of all suites with tests that have a `TEST-*.xml` file below `directory`, by their short names."""
    results = []
    for file in sorted(directory.glob("TEST-*.xml")):
        root = ElementTree.parse(file).getroot()
        name = root.get("name", file.stem).rsplit(".", 1)[-1]
        results.append(_result(name, [file], float(root.get("time", "0"))))
    return [result for result in results if result.run or result.skipped]


def _result(suite: str, files: list[Path], seconds: float, aborted: str = "") -> SuiteResult:
    passed: list[str] = []
    failures: list[Failure] = []
    skipped: list[str] = []
    for file in files:
        for case in ElementTree.parse(file).getroot().iter("testcase"):
            name = case.get("name", "?")
            problem = case.find("failure") if case.find("failure") is not None else case.find("error")
            if problem is not None:
                failures.append(Failure(name, _reason(problem)))
            elif case.find("skipped") is not None:
                skipped.append(name)
            else:
                passed.append(name)
    if not aborted and not passed and not failures:
        aborted = "no test was run"
    return SuiteResult(suite, tuple(passed), tuple(failures), tuple(skipped), seconds, aborted)


def _reason(problem: ElementTree.Element) -> str:
    """What was wrong, on one line: an attribute of XML has no line breaks, and the element's text is the stack."""
    return " ".join((problem.get("message") or problem.get("type") or "no message").split())
