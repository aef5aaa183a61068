"""Run Spark's own streaming suites on our provider and compare the failures with `known.toml`.

Exit status: 0 if exactly the known failures were seen, 1 if not, 2 if nothing could be run.
"""

from __future__ import annotations

import argparse
import signal
import sys
from pathlib import Path

from cec_it.maven import FetchError
from spark_cec.toolchain import BuildError
from spark_suites import report
from spark_suites.classes import prepare
from spark_suites.junit import SuiteResult
from spark_suites.jvm import Launch, run
from spark_suites.known import Kind, Known, judge, load
from spark_suites.suites import find

_ROOT = Path(__file__).resolve().parents[2]


def main(arguments: list[str] | None = None) -> int:
    """The command line; returns the exit status. The report goes to standard output, progress to standard error."""
    options = _parser().parse_args(arguments)
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))  # ends the suite's JVM, too
    known = load()
    if options.known:
        print(report.known_table(known.values()))
        return 0
    try:
        suites = find(options.suite)
        launch = _launch(options)
    except (ValueError, FetchError, BuildError) as error:
        print(error, file=sys.stderr)
        return 2
    expected = known if launch.ours else {key: one for key, one in known.items() if one.kind is Kind.RELEASE}
    results = [_one(launch, suite, f"[{number}/{len(suites)}]") for number, suite in enumerate(suites, 1)]
    return _report(options, results, expected)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="spark_suites", description=__doc__)
    parser.add_argument("--suite", action="append", default=[], help="one suite, by its short name (or any class)")
    parser.add_argument("--test", action="append", default=[], help="one test, by its name; with one --suite")
    parser.add_argument("--provider", choices=["cec", "spark"], default="cec", help="ours, or Spark's default one")
    parser.add_argument("--conf", action="append", default=[], metavar="KEY=VALUE", help="a Spark conf for all suites")
    parser.add_argument("--jar", type=Path, metavar="FILE", help="try this jar of ours, not the one of the tree")
    parser.add_argument("--timeout", type=float, default=1200, metavar="S", help="seconds for one suite (default 1200)")
    parser.add_argument("--directory", type=Path, default=_ROOT / "build" / "spark-suites", help="for output and logs")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the results there too")
    parser.add_argument("--known", action="store_true", help="print the table of known failures, and run nothing")
    return parser


def _launch(options: argparse.Namespace) -> Launch:
    confs = dict(conf.partition("=")[::2] for conf in options.conf)
    return Launch(
        classes=prepare(options.directory.resolve(), options.jar and options.jar.resolve()),
        directory=options.directory.resolve() / options.provider,
        ours=options.provider == "cec",
        timeout_s=options.timeout,
        confs=confs,
        tests=tuple(options.test),
    )


def _one(launch: Launch, suite: str, place: str) -> SuiteResult:
    print(f"{place} {suite.rsplit('.', 1)[-1]}", end=" ", file=sys.stderr, flush=True)
    result = run(launch, suite)
    print(report.line(result), file=sys.stderr, flush=True)
    return result


def _report(options: argparse.Namespace, results: list[SuiteResult], known: dict[tuple[str, str], Known]) -> int:
    verdict = judge(results, known, whole=not options.test)
    print(report.table(results))
    print(report.failures(results, known))
    print(report.verdict(verdict))
    if options.json:
        options.json.write_text(report.as_json(results, known))
    unexpected = len(verdict.unknown) + len(verdict.stale) + len(verdict.aborted)
    print(f"{sum(result.run for result in results) - len(verdict.unknown)} passed, {unexpected} failed")
    return 0 if verdict.ok else 1


if __name__ == "__main__":
    raise SystemExit(main())
