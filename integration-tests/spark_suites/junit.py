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
    passed: list[str] = []
    failures: list[Failure] = []
    skipped: list[str] = []
    for file in sorted(directory.glob("TEST-*.xml")):
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
