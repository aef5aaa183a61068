"""The tests of the storage layer on real servers: `python -m cec_it.storage_servers [arguments of pytest]`.

Prints a table: server, version, tests that passed, failed and were skipped, and why. The exit code is 1 if a test
failed or none ran.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from xml.etree import ElementTree

from cec_it.servers.azurite import Azurite
from cec_it.servers.fake_gcs import FakeGcs
from cec_it.servers.server import Server
from cec_it.servers.versity import VersityGateway

_TESTS = Path(__file__).resolve().parents[1] / "servers"
_SERVERS: dict[str, type[Server]] = {
    "test_versity": VersityGateway, "test_fake_gcs": FakeGcs, "test_azurite": Azurite,
}  # fmt: skip


@dataclass(slots=True)
class Row:
    """What the tests of one server came to. `reasons`: why tests were skipped."""

    passed: int = 0
    failed: int = 0
    skipped: int = 0
    reasons: Counter[str] = field(default_factory=Counter)


def read_report(path: Path) -> dict[str, Row]:
    """The rows of a report of pytest (JUnit), by the module of the tests."""
    rows = {module: Row() for module in _SERVERS}
    for case in ElementTree.parse(path).getroot().iter("testcase"):
        name = f"{case.get('classname', '')}.{case.get('name', '')}"
        row = next((row for module, row in rows.items() if module in name.split(".")), None)
        if row is None:
            continue
        skipped = case.find("skipped")
        if skipped is not None:
            row.skipped += 1
            row.reasons[(skipped.get("message") or "").partition("\n")[0]] += 1
        elif case.find("failure") is not None or case.find("error") is not None:
            row.failed += 1
        else:
            row.passed += 1
    return rows


def table(rows: dict[str, Row]) -> str:
    """The rows as a table in Markdown."""
    titles = ("server", "version", "passed", "failed", "skipped", "why")
    lines = [f"| {' | '.join(titles)} |", "|---" * len(titles) + "|"]
    for module, row in rows.items():
        server = _SERVERS[module]
        why = "; ".join(sorted(row.reasons))
        lines.append(f"| {server.name} | {server.version} | {row.passed} | {row.failed} | {row.skipped} | {why} |")
    return "\n".join(lines)


def main(arguments: Sequence[str]) -> int:
    """Runs the tests; the exit code."""
    with tempfile.TemporaryDirectory(prefix="storage-servers-") as scratch:
        report = Path(scratch, "report.xml")
        done = subprocess.run(
            [sys.executable, "-m", "pytest", "-q", "-m", "long", f"--junit-xml={report}", *arguments, str(_TESTS)],
            check=False,
        )
        rows = read_report(report) if report.exists() else {}
    print(table(rows))
    if not any(row.passed or row.failed for row in rows.values()):
        print("no test ran: install go or npm, and the packages of the skipped servers", file=sys.stderr)
        return 1
    return 1 if done.returncode else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
