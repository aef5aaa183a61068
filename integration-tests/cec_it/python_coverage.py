"""Lines and branches of the Python packages, from the JSON report of coverage.py: `make coverage` prints them."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from scala_tests.jacoco import Counter, Coverage, table


def read(report: Path) -> list[Coverage]:
    """The packages of a report by name, and all of them together at the end. A module at the top counts as `(top)`."""
    files: dict[str, Any] = json.loads(report.read_text("utf-8"))["files"]
    packages: dict[str, list[dict[str, int]]] = {}
    for name, of in files.items():
        packages.setdefault(_package(Path(name)), []).append(of["summary"])
    every = [summary for summaries in packages.values() for summary in summaries]
    rows = [_coverage(name, summaries) for name, summaries in sorted(packages.items())]
    return [*rows, _coverage("all", every)]


def _package(file: Path) -> str:
    parts = file.parts[file.parts.index("python") + 1 : -1] if "python" in file.parts else file.parts[:-1]
    return ".".join(parts[:2]) if len(parts) > 1 else f"{'.'.join(parts)} (top)"


def _coverage(name: str, summaries: list[dict[str, int]]) -> Coverage:
    def count(covered: str, every: str) -> Counter:
        return Counter(sum(one[covered] for one in summaries), sum(one[every] for one in summaries))

    return Coverage(name, count("covered_lines", "num_statements"), count("covered_branches", "num_branches"))


if __name__ == "__main__":
    print(table(read(Path(sys.argv[1]))))
