"""The runner of the shim's own unit tests: what it makes of results, without a JVM."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from cec_it import python_coverage
from cec_it.maven import read_pins
from scala_tests import classes, jacoco
from scala_tests.__main__ import summary
from scala_tests.jacoco import Counter, Coverage
from scala_tests.jvm import Outcome, judge
from spark_cec.build import SOURCES
from spark_suites.junit import Failure, SuiteResult, read_all

_GOOD = SuiteResult("GoodSuite", ("one", "two"), seconds=0.1)
_BAD = SuiteResult("BadSuite", ("one",), (Failure("two", "1 did not equal 2"),))
_COUNTERS = '<counter type="LINE" missed="{}" covered="{}"/><counter type="BRANCH" missed="{}" covered="{}"/>'


@pytest.mark.parametrize(
    ("results", "status", "late", "output", "passed", "failed", "why"),
    [
        ((_GOOD,), 0, "", "", 2, 0, ""),
        ((_GOOD, _BAD), 1, "", "", 3, 1, ""),
        ((_GOOD,), 1, "", "", 2, 1, "status 1"),
        ((_GOOD, _BAD), 134, "", "", 3, 2, "status 134"),
        ((), 0, "", "", 0, 1, "no test was run"),
        ((_GOOD,), 0, "", "XSuite:\nXSuite *** ABORTED ***", 2, 1, "could not be made"),
        ((_GOOD,), -9, "not done after 3 s", "at Object.wait", 2, 1, "not done after 3 s\nat Object.wait"),
    ],
    ids=["passed", "failed", "no failed test", "killed", "no test", "a suite that throws", "late"],
)
def test_a_run_has_passed_only_if_it_came_to_its_end(
    results: tuple[SuiteResult, ...], status: int, late: str, output: str, passed: int, failed: int, why: str
) -> None:
    outcome = judge(results, status, late, output)
    assert (outcome.passed, outcome.failed) == (passed, failed)
    assert why in outcome.aborted and bool(why) == bool(outcome.aborted)


def test_the_summary_names_each_failed_test_and_ends_with_the_counts() -> None:
    lines = summary(Outcome((_GOOD, _BAD))).splitlines()
    assert lines[2:] == ["FAILED BadSuite: two", "    1 did not equal 2", "3 passed, 1 failed"]
    assert summary(Outcome((_GOOD,), "no end")).splitlines()[-2:] == ["ABORTED: no end", "2 passed, 1 failed"]


def test_suites_without_tests_are_left_out(tmp_path: Path) -> None:
    (tmp_path / "TEST-a.xml").write_text('<testsuite name="p.ASuite" time="0.5"><testcase name="t"/></testsuite>')
    (tmp_path / "TEST-b.xml").write_text('<testsuite name="p.DiscoverySuite" time="0.5"/>')
    assert read_all(tmp_path) == [SuiteResult("ASuite", ("t",), seconds=0.5)]


def test_the_tests_are_no_sources_of_the_jar() -> None:
    assert classes.SOURCES.is_dir() and not classes.SOURCES.is_relative_to(SOURCES)


def test_every_jar_is_pinned_and_scalatest_is_in_the_list_of_the_suites() -> None:
    assert {artifact.name for artifact in read_pins(classes.HERE / "jars.toml")} == {
        "org.jacoco.agent", "org.jacoco.cli",
    }  # fmt: skip
    suites = read_pins(classes.ROOT / "integration-tests" / "spark_suites" / "jars.toml")
    assert {artifact.name for artifact in suites} >= classes.SCALATEST


def test_a_report_of_jacoco_is_a_table_by_package_and_by_file(tmp_path: Path) -> None:
    xml = tmp_path / "report.xml"
    state, top = _COUNTERS.format(1, 3, 1, 1), _COUNTERS.format(6, 0, 0, 0)
    xml.write_text(
        f'<report name="r"><package name="org/apache/spark/sql/cec/state"><class name="x">{state}</class>'
        f'<sourcefile name="X.scala">{state}</sourcefile>{state}</package>'
        f'<package name="org/apache/spark/sql/cec">{top}</package>{_COUNTERS.format(7, 3, 1, 1)}</report>'
    )
    assert jacoco.read(xml) == [
        Coverage("(top)", Counter(0, 6), Counter(0, 0)),
        Coverage("state", Counter(3, 4), Counter(1, 2)),
        Coverage("all", Counter(3, 10), Counter(1, 2)),
    ]
    assert jacoco.files(xml) == [Coverage("state/X.scala", Counter(3, 4), Counter(1, 2))]
    assert [line.split() for line in jacoco.table(jacoco.read(xml)).splitlines()] == [
        ["package", "lines", "branches"],
        ["(top)", "0/6", "0", "%", "0/0", "-"],
        ["state", "3/4", "75", "%", "1/2", "50", "%"],
        ["all", "3/10", "30", "%", "1/2", "50", "%"],
    ]


def test_a_report_of_coverage_py_is_a_table_by_package(tmp_path: Path) -> None:
    def summary_of(lines: int) -> dict[str, dict[str, int]]:
        counts = {"covered_lines": lines, "num_statements": 10, "covered_branches": 1, "num_branches": 2}
        return {"summary": counts}

    files = {
        "python/spark_cec/errors.py": summary_of(10),
        "python/spark_cec/log/frame.py": summary_of(4),
        "/there/python/spark_cec/log/deep/er.py": summary_of(5),
    }
    (tmp_path / "report.json").write_text(json.dumps({"files": files}))
    assert python_coverage.read(tmp_path / "report.json") == [
        Coverage("spark_cec (top)", Counter(10, 10), Counter(1, 2)),
        Coverage("spark_cec.log", Counter(9, 20), Counter(2, 4)),
        Coverage("all", Counter(19, 30), Counter(3, 6)),
    ]
