"""Lines and branches of the shim that the unit tests run, by JaCoCo."""

from __future__ import annotations

import subprocess
import xml.etree.ElementTree as ElementTree
from dataclasses import dataclass
from pathlib import Path

from cec_it.maven import FetchError, fetch, read_pins
from scala_tests.classes import HERE
from spark_cec.toolchain import require_java
from spark_suites.classes import Classes

_PACKAGES = "org.apache.spark.sql.cec"
_TOP = "(top)"


@dataclass(frozen=True, slots=True)
class Counter:
    """Lines or branches: how many ran (`covered`), of how many."""

    covered: int
    all: int

    def __str__(self) -> str:
        share = f"{100 * self.covered / self.all:.0f} %" if self.all else "-"
        return f"{self.covered}/{self.all} {share:>6}"


@dataclass(frozen=True, slots=True)
class Coverage:
    """The lines and branches of a package, or of a source file."""

    name: str
    lines: Counter
    branches: Counter


def tools() -> tuple[Path, Path]:
    """The jars of JaCoCo's agent and of its command line. Raises `FetchError` if a download fails."""
    agent, command_line = fetch(read_pins(HERE / "jars.toml"))
    return agent, command_line


def options(agent: Path, data: Path) -> list[str]:
    """The options of a JVM that records in `data` which code ran."""
    return [f"-javaagent:{agent}=destfile={data},includes={_PACKAGES}.*,excludes=*Suite*"]


def report(command_line: Path, data: Path, classes: Classes, xml: Path) -> list[Coverage]:
    """The coverage of the classes in our jar by `data`, by package. Raises `FetchError` if JaCoCo cannot read it."""
    command = [
        *(require_java(), "-jar", str(command_line), "report", str(data), "--quiet"),
        *("--classfiles", str(classes.product), "--xml", str(xml)),
    ]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    if done.returncode:
        raise FetchError(f"JaCoCo wrote no report:\n{done.stdout[-4000:]}")
    return read(xml)


def read(xml: Path) -> list[Coverage]:
    """The packages of a report, and all of them together at the end."""
    root = ElementTree.parse(xml).getroot()
    rows = [_coverage(_short(package.get("name", "?")), package) for package in root.iter("package")]
    return [*sorted(rows, key=lambda row: row.name), _coverage("all", root)]


def files(xml: Path) -> list[Coverage]:
    """The source files of a report."""
    packages = ElementTree.parse(xml).getroot().iter("package")
    rows = [
        _coverage(f"{_short(package.get('name', '?'))}/{file.get('name')}", file)
        for package in packages
        for file in package.iter("sourcefile")
    ]
    return sorted(rows, key=lambda row: row.name)


def table(rows: list[Coverage], what: str = "package") -> str:
    """One row a line, with covered and all lines and branches."""
    cells = [(what, "lines", "branches"), *((row.name, str(row.lines), str(row.branches)) for row in rows)]
    widths = [max(len(row[column]) for row in cells) for column in range(3)]
    return "\n".join(f"{name:<{widths[0]}}  {lines:>{widths[1]}}  {of:>{widths[2]}}" for name, lines, of in cells)


def _short(package: str) -> str:
    return package.replace("/", ".").removeprefix(_PACKAGES).removeprefix(".") or _TOP


def _coverage(name: str, element: ElementTree.Element) -> Coverage:
    """The counters of an element itself; those of its children are in the sum already."""
    counters = {counter.get("type"): counter for counter in element.findall("counter")}

    def count(kind: str) -> Counter:
        counter = counters.get(kind)
        if counter is None:
            return Counter(0, 0)
        covered, missed = int(counter.get("covered", "0")), int(counter.get("missed", "0"))
        return Counter(covered, covered + missed)

    return Coverage(name, count("LINE"), count("BRANCH"))
