"""Run the shim's unit tests, which need no Python, no agent and no Spark session.

Exit status: 0 if all tests passed, 1 if not, 2 if nothing could be run.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from cec_it.maven import FetchError
from scala_tests import jacoco
from scala_tests.classes import ROOT, prepare
from scala_tests.jvm import Outcome, run
from spark_cec.toolchain import BuildError
from spark_suites.classes import Classes

_PACKAGE = "org.apache.spark.sql.cec"


def main(arguments: list[str] | None = None) -> int:
    """The command line; returns the exit status."""
    options = _parser().parse_args(arguments)
    directory = options.directory.resolve()
    try:
        classes = prepare(directory)
        outcome, coverage = _run(options, classes, directory)
    except (FetchError, BuildError) as error:
        print(error, file=sys.stderr)
        return 2
    print(summary(outcome))
    if coverage:
        print(coverage)
    return 1 if outcome.failed else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="scala_tests", description=__doc__)
    parser.add_argument("--suite", action="append", default=[], help="one suite, such as state.PagesSuite")
    parser.add_argument("--test", action="append", default=[], help="tests with this text in their names")
    parser.add_argument("--seed", type=int, help="run random tests with this seed alone, which a failure names")
    parser.add_argument("--java", metavar="COMMAND", help="run the tests with this java; the usual one compiles them")
    parser.add_argument("--coverage", action="store_true", help="print lines and branches that were run, by package")
    parser.add_argument("--files", action="store_true", help="with --coverage: print them by source file, too")
    parser.add_argument("--timeout", type=float, default=300, metavar="S", help="seconds for all tests (default 300)")
    parser.add_argument("--directory", type=Path, default=ROOT / "build" / "scala-tests", help="for classes and output")
    return parser


def _run(options: argparse.Namespace, classes: Classes, directory: Path) -> tuple[Outcome, str]:
    """How the tests went, and the tables of coverage or an empty text."""
    chosen = [word for suite in options.suite for word in ("-s", f"{_PACKAGE}.{suite}")]
    chosen += [word for test in options.test for word in ("-z", test)]
    jvm = [] if options.seed is None else [f"-Dcec.test.seed={options.seed}"]
    output = directory / "output"
    if not options.coverage:
        return run(classes, output, chosen, jvm, options.timeout, options.java), ""
    agent, command_line = jacoco.tools()
    data, xml = output / "jacoco.exec", output / "jacoco.xml"
    outcome = run(classes, output, chosen, [*jvm, *jacoco.options(agent, data)], options.timeout, options.java)
    tables = [jacoco.table(jacoco.report(command_line, data, classes, xml))]
    if options.files:
        tables.append(jacoco.table(jacoco.files(xml), "source file"))
    return outcome, "\n\n".join(tables)


def summary(outcome: Outcome) -> str:
    """Each suite with its count and time, each failed test with its reason, and the counts of all on the last line."""
    width = max((len(result.suite) for result in outcome.results), default=0)
    lines = [f"{one.suite:<{width}} {one.run:4} {one.seconds:6.1f} s" for one in outcome.results]
    lines += [
        f"FAILED {one.suite}: {failure.test}\n    {failure.reason}"
        for one in outcome.results
        for failure in one.failures
    ]
    if outcome.aborted:
        lines.append(f"ABORTED: {outcome.aborted}")
    return "\n".join([*lines, f"{outcome.passed} passed, {outcome.failed} failed"])


if __name__ == "__main__":
    raise SystemExit(main())
