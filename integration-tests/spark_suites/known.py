"""The failures that must be: `known.toml`, and the comparison of a run with it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any

import tomllib

from spark_suites.junit import SuiteResult

FILE = Path(__file__).resolve().parent / "known.toml"


class Kind(str, Enum):
    """Why a test fails that is no defect of ours."""

    PROVIDER = "provider"
    """It asks for what only another provider has: its files, its checkpoints, its metrics, its class."""
    PROMISE = "promise"
    """It asks for what we document to be otherwise."""
    RELEASE = "release"
    """The test jar is of another release than pyspark's jars: it fails with Spark's own provider too."""
    DEFECT = "defect"
    """A defect of ours that is known and not mended yet."""


_CODECS = (
    *("lz4", "lzf", "snappy", "zstd"),
    *(f"org.apache.spark.io.{name}CompressionCodec" for name in ("LZ4", "LZF", "Snappy", "ZStd")),
)


@dataclass(frozen=True, slots=True)
class Known:
    """One failure that is expected."""

    suite: str
    test: str
    kind: Kind
    reason: str


@dataclass(frozen=True, slots=True)
class Verdict:
    """What is wrong with a run: failures that are not known, and known ones that did not fail or are not there."""

    unknown: tuple[str, ...]
    stale: tuple[str, ...]
    aborted: tuple[str, ...]

    @property
    def ok(self) -> bool:
        """Whether the run went as `known.toml` says."""
        return not (self.unknown or self.stale or self.aborted)


def load(path: Path = FILE) -> dict[tuple[str, str], Known]:
    """The known failures by suite and test. Raises `ValueError` if one is listed twice or has no reason."""
    found: dict[tuple[str, str], Known] = {}
    entries: list[dict[str, Any]] = tomllib.loads(path.read_text("utf-8")).get("failure", [])
    for entry in entries:
        kind, reason = Kind(entry["kind"]), " ".join(str(entry["reason"]).split())
        if not reason:
            raise ValueError(f"{path}: {entry} has no reason")
        for test in _with_codecs(entry["tests"]):
            key = (entry["suite"], test)
            if key in found:
                raise ValueError(f"{path}: {key} is listed twice")
            found[key] = Known(entry["suite"], test, kind, reason)
    return found


def _with_codecs(names: Iterable[str]) -> list[str]:
    """The contract suite has many tests once for each of Spark's codecs, which a name here has as `{codec}`."""
    codecs = {True: _CODECS, False: ("",)}
    return [name.replace("{codec}", codec) for name in names for codec in codecs["{codec}" in name]]


def judge(results: Iterable[SuiteResult], known: dict[tuple[str, str], Known], whole: bool = True) -> Verdict:
    """Compare a run with the list; `whole` says that all tests of each suite were run, not a choice of them."""
    unknown: list[str] = []
    stale: list[str] = []
    aborted: list[str] = []
    for result in results:
        failed = {failure.test for failure in result.failures}
        unknown += [f"{result.suite}: {test}" for test in sorted(failed) if (result.suite, test) not in known]
        listed = {test for suite, test in known if suite == result.suite}
        seen = listed if whole else listed & set(result.passed)
        stale += [f"{result.suite}: {test}" for test in sorted(seen - failed)]
        if result.aborted:
            aborted.append(f"{result.suite}: {result.aborted}")
    return Verdict(tuple(unknown), tuple(stale), tuple(aborted))
