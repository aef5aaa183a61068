"""The jars of the Kafka broker and of Spark's Kafka connector: a pinned list, fetched once and known by checksum.

Apache Ivy, which is among pyspark's jars and is what `spark.jars.packages` uses, fetches them from Maven Central; no
Maven is needed. `SPARK_CEC_IVY_SETTINGS` names an Ivy settings file for those who have a repository of their own,
`SPARK_CEC_CACHE` the directory to keep them in (default: `spark-cec` in the user's cache directory).
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from xml.sax.saxutils import quoteattr

from spark_cec.toolchain import require_java, spark_jars

PINNED = Path(__file__).with_name("jars.txt")
BROKER, CONNECTOR = "broker", "connector"
_FETCH_TIMEOUT_S = 600


class JarError(RuntimeError):
    """A jar cannot be had, or is not the one that it should be."""


@dataclass(frozen=True, slots=True)
class Jar:
    """One pinned jar: what needs it, where it is in a Maven repository, and the SHA-256 of its bytes."""

    parts: frozenset[str]
    organisation: str
    module: str
    revision: str
    sha256: str

    @property
    def file_name(self) -> str:
        return f"{self.module}-{self.revision}.jar"

    def is_in(self, directory: Path) -> bool:
        """Whether the jar is there, with the right bytes."""
        path = directory / self.file_name
        return path.is_file() and hashlib.sha256(path.read_bytes()).hexdigest() == self.sha256


def pinned() -> list[Jar]:
    """Every jar of the list."""
    return [_parse(line) for line in PINNED.read_text().splitlines()]


def jars(part: str, cache: Path | None = None) -> list[Path]:
    """The jars that `part` (`broker` or `connector`) needs, fetched first where they are not in the cache yet.

    Raises `JarError` if one cannot be had or has another checksum than the list says.
    """
    directory = cache or cache_directory()
    wanted = [jar for jar in pinned() if part in jar.parts]
    missing = [jar for jar in wanted if not jar.is_in(directory)]
    if missing:
        fetch(missing, directory)
    return [directory / jar.file_name for jar in wanted]


def cache_directory() -> Path:
    """Where fetched jars are kept."""
    own = os.environ.get("SPARK_CEC_CACHE")
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return (Path(own) if own else Path(base, "spark-cec")) / "jars"


def fetch(wanted: Iterable[Jar], directory: Path) -> None:
    """Bring jars into `directory`, each only if its checksum is right. Raises `JarError`."""
    wanted = list(wanted)
    directory.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=directory) as scratch:
        said = _ivy(wanted, Path(scratch))
        for jar in wanted:
            found = Path(scratch) / jar.file_name
            if not found.is_file():
                raise JarError(f"{jar.module} {jar.revision} cannot be fetched from Maven Central:\n{said[-2000:]}")
            if not jar.is_in(Path(scratch)):
                raise JarError(f"{jar.file_name} as fetched is not the one in {PINNED.name}: its checksum differs")
            found.replace(directory / jar.file_name)


def _parse(line: str) -> Jar:
    parts, coordinates, sha256 = line.split()
    organisation, module, revision = coordinates.split(":")
    return Jar(frozenset(parts.split("+")), organisation, module, revision, sha256)


def _ivy(wanted: Iterable[Jar], into: Path) -> str:
    """Run Ivy on a list without transitive dependencies; returns what it said."""
    module = into / "ivy.xml"
    module.write_text(_ivy_module(wanted))
    settings = os.environ.get("SPARK_CEC_IVY_SETTINGS")
    command = [
        *(require_java(), "-cp", spark_jars().class_path, "org.apache.ivy.Main"),
        *(("-settings", settings) if settings else ()),
        *("-ivy", str(module), "-cache", str(into / "cache"), "-types", "jar", "bundle"),
        *("-retrieve", str(into / "[artifact]-[revision].[ext]")),
    ]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_FETCH_TIMEOUT_S, check=False)
    except subprocess.TimeoutExpired:
        raise JarError(f"Maven Central has not answered in {_FETCH_TIMEOUT_S} s") from None
    return done.stdout + done.stderr


def _ivy_module(wanted: Iterable[Jar]) -> str:
    dependencies = "".join(
        f"<dependency org={quoteattr(jar.organisation)} name={quoteattr(jar.module)} rev={quoteattr(jar.revision)}"
        ' transitive="false" conf="default->master"/>\n'
        for jar in wanted
    )
    return (
        '<ivy-module version="2.0"><info organisation="spark-cec" module="jars"/>\n'
        f"<dependencies>\n{dependencies}</dependencies></ivy-module>\n"
    )
