"""The judge of Spark's own suites: what a run is compared with, without Spark."""

from __future__ import annotations

from pathlib import Path

import pytest

from cec_it.maven import Artifact, FetchError, fetch, read_pins
from spark_suites import classes, report
from spark_suites.junit import Failure, SuiteResult, read
from spark_suites.known import Kind, Known, judge, load
from spark_suites.suites import SUITES, find

_XML = """<testsuite><testcase name="good" classname="S"/>
<testcase name="bad" classname="S"><failure message="
== Results ==
  1 did not equal 2" type="T">  at S.bad(S.scala:1)</failure></testcase>
<testcase name="left" classname="S"><skipped/></testcase></testsuite>"""
_KNOWN = {("S", "bad"): Known("S", "bad", Kind.PROVIDER, "why")}


def _result(passed: tuple[str, ...], failed: tuple[str, ...], aborted: str = "") -> SuiteResult:
    return SuiteResult("S", passed, tuple(Failure(test, "why") for test in failed), aborted=aborted)


def test_reads_what_passed_failed_and_was_left_out(tmp_path: Path) -> None:
    (tmp_path / "TEST-S.xml").write_text(_XML)
    result = read("S", tmp_path, 1.0)
    assert (result.passed, result.skipped, result.aborted) == (("good",), ("left",), "")
    assert [(failure.test, failure.reason) for failure in result.failures] == [
        ("bad", "== Results == 1 did not equal 2")
    ]


def test_a_suite_without_tests_did_not_come_to_its_end(tmp_path: Path) -> None:
    assert read("S", tmp_path, 1.0).aborted


@pytest.mark.parametrize(
    ("result", "unknown", "stale", "aborted"),
    [
        (_result(("good",), ("bad",)), 0, 0, 0),
        (_result(("good",), ("bad", "worse")), 1, 0, 0),
        (_result(("good", "bad"), ()), 0, 1, 0),
        (_result(("good",), ()), 0, 1, 0),
        (_result(("good",), ("bad",), "timed out"), 0, 0, 1),
    ],
    ids=["as listed", "one that is not listed", "a listed one passes", "a listed one is not there", "aborted"],
)
def test_a_run_is_as_listed_or_says_what_differs(result: SuiteResult, unknown: int, stale: int, aborted: int) -> None:
    verdict = judge([result], _KNOWN)
    assert (len(verdict.unknown), len(verdict.stale), len(verdict.aborted)) == (unknown, stale, aborted)
    assert verdict.ok is not bool(unknown or stale or aborted)


def test_a_choice_of_tests_is_judged_by_those_that_ran() -> None:
    assert judge([_result(("good",), ())], _KNOWN, whole=False).ok
    assert not judge([_result(("bad",), ())], _KNOWN, whole=False).ok


def test_the_list_of_known_failures_names_suites_that_are_run() -> None:
    names = {suite.rsplit(".", 1)[-1] for suite in SUITES}
    assert {suite for suite, _ in load()} <= names


def test_a_failure_is_listed_once_and_with_a_reason(tmp_path: Path) -> None:
    entry = '[[failure]]\nsuite = "S"\nkind = "provider"\nreason = "why"\ntests = ["bad"]\n'
    (tmp_path / "known.toml").write_text(entry)
    assert load(tmp_path / "known.toml") == _KNOWN
    (tmp_path / "known.toml").write_text(entry + entry)
    with pytest.raises(ValueError, match="twice"):
        load(tmp_path / "known.toml")
    (tmp_path / "known.toml").write_text(entry.replace('"why"', '" "'))
    with pytest.raises(ValueError, match="no reason"):
        load(tmp_path / "known.toml")


def test_a_suite_is_chosen_by_its_short_name() -> None:
    assert find(["StreamSuite"]) == ["org.apache.spark.sql.streaming.StreamSuite"]
    assert find([]) == list(SUITES)
    with pytest.raises(ValueError, match="StremSuite"):
        find(["StremSuite"])


def test_a_jar_that_is_not_the_pinned_one_is_refused(tmp_path: Path) -> None:
    artifact = Artifact.parse("g:name:1.0:tests")
    (tmp_path / artifact.file_name).write_bytes(b"other")
    assert artifact.file_name == "name-1.0-tests.jar"
    with pytest.raises(FetchError, match="pinned"):
        fetch({artifact: "0" * 64}, tmp_path)


def test_every_jar_is_pinned_by_a_checksum() -> None:
    pins = read_pins(classes.HERE / "jars.toml")
    assert pins and all(len(digest) == 64 for digest in pins.values())


def test_a_test_of_all_codecs_is_listed_by_one_name(tmp_path: Path) -> None:
    tests = 'tests = ["get - with codec {codec} - x", "put"]'
    entry = f'[[failure]]\nsuite = "S"\nkind = "provider"\nreason = "why"\n{tests}\n'
    (tmp_path / "known.toml").write_text(entry)
    known = load(tmp_path / "known.toml")
    assert len(known) == 9 and ("S", "get - with codec org.apache.spark.io.ZStdCompressionCodec - x") in known
    assert "| S | get - with codec * - x<br>put | provider | why |" in report.known_table(known.values())


def test_the_page_has_the_table_of_the_list() -> None:
    page = (classes.HERE.parents[1] / "docs" / "spark-suites.md").read_text("utf-8")
    assert report.known_table(load().values()) in page, "python -m spark_suites --known prints it"
