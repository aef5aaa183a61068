"""What a run prints."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import asdict

from spark_suites.junit import SuiteResult
from spark_suites.known import Known, Verdict

_REASON_CHARACTERS = 220
_CODEC = re.compile(r"with codec \S+")


def line(result: SuiteResult) -> str:
    """One suite in a line."""
    counts = f"{len(result.passed)} passed, {len(result.failures)} failed, {result.seconds:.0f} s"
    return f"{counts}: {result.aborted}" if result.aborted else counts


def table(results: Iterable[SuiteResult]) -> str:
    """Suites with their counts."""
    rows = [
        (one.suite, *map(str, (one.run, len(one.passed), len(one.failures), round(one.seconds)))) for one in results
    ]
    total = [str(sum(int(row[column]) for row in rows)) for column in range(1, 5)]
    lines = [("suite", "run", "passed", "failed", "seconds"), *rows, ("all", *total)]
    width = max(len(row[0]) for row in lines)
    return "\n".join(f"{row[0]:<{width}}" + "".join(f"{cell:>9}" for cell in row[1:]) for row in lines)


def failures(results: Iterable[SuiteResult], known: dict[tuple[str, str], Known]) -> str:
    """Each failed test with the first line of its reason, and whether it is known."""
    lines: list[str] = []
    for result in results:
        for failure in result.failures:
            listed = known.get((result.suite, failure.test))
            lines.append(f"{result.suite}: {failure.test} [{listed.kind.value if listed else 'NOT KNOWN'}]")
            lines.append(f"    {failure.reason[:_REASON_CHARACTERS]}")
        if result.aborted:
            lines.append(f"{result.suite}: {result.aborted}")
    return "\n".join(lines)


def verdict(of: Verdict) -> str:
    """What differs from `known.toml`."""
    parts = [
        ("failed, and is not known to", of.unknown),
        ("is listed in known.toml, but did not fail", of.stale),
        ("did not come to its end", of.aborted),
    ]
    lines = [f"{what}: {one}" for what, found in parts for one in found]
    return "\n".join(lines) if lines else "all failures are known ones, and all known ones were seen"


def known_table(known: Iterable[Known]) -> str:
    """The known failures as a Markdown table."""
    rows: dict[tuple[str, str, str], list[str]] = {}
    for one in known:
        rows.setdefault((one.suite, one.kind.value, one.reason), []).append(one.test)
    lines = ["| suite | tests | kind | why |", "|---|---|---|---|"]
    for (suite, kind, reason), tests in rows.items():
        names = "<br>".join(_once(test.replace("|", "\\|") for test in tests))
        lines.append(f"| {suite} | {names} | {kind} | {reason} |")
    return "\n".join(lines)


def _once(tests: Iterable[str]) -> list[str]:
    """Names in their order, with one for all codecs."""
    return list(dict.fromkeys(_CODEC.sub("with codec *", test) for test in tests))


def as_json(results: Iterable[SuiteResult], known: dict[tuple[str, str], Known]) -> str:
    """The results for programs."""
    rows = []
    for result in results:
        row = asdict(result)
        for failure in row["failures"]:
            listed = known.get((result.suite, failure["test"]))
            failure["known"] = listed.kind.value if listed else None
        rows.append(row)
    return json.dumps(rows, indent=1)
