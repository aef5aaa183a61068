"""Jars that the tests need and pyspark does not bring: fetched by Ivy, which is one of pyspark's own jars.

So neither Maven nor Gradle has to be installed. What is fetched is pinned, by coordinate and SHA-256, in a TOML file:

    "org.scalatest:scalatest-core_2.13:3.2.19" = "2b1f…"
    "org.apache.spark:spark-sql_2.13:4.2.0:tests" = "…"        # group:name:version:classifier

Nothing is resolved transitively: the file is the whole list. Files are kept below `$SPARK_CEC_CACHE`, or else
`spark-cec` in the user's cache directory. `$SPARK_CEC_IVY_SETTINGS` names an Ivy settings file, for those who have a
repository of their own.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from xml.sax.saxutils import quoteattr

import tomllib

from spark_cec.toolchain import require_java, spark_jars

_SETTINGS = """<ivysettings>
  <settings defaultResolver="central"/>
  <resolvers><ibiblio name="central" m2compatible="true" usepoms="false"/></resolvers>
</ivysettings>
"""
_CHUNK = 1 << 20
_TIMEOUT_S = 900


class FetchError(Exception):
    """A pinned jar cannot be had, or is not the one that was pinned."""


@dataclass(frozen=True, slots=True)
class Artifact:
    """One jar of a Maven repository."""

    group: str
    name: str
    version: str
    classifier: str = ""

    @classmethod
    def parse(cls, coordinate: str) -> Artifact:
        """From `group:name:version` or `group:name:version:classifier`. Raises `ValueError` otherwise."""
        parts = coordinate.split(":")
        if len(parts) not in (3, 4) or not all(parts):
            raise ValueError(f"{coordinate!r} is not group:name:version[:classifier]")
        return cls(*parts)

    @property
    def file_name(self) -> str:
        """As Maven names it."""
        return "-".join(part for part in (self.name, self.version, self.classifier) if part) + ".jar"

    def dependency(self) -> str:
        """This jar, and nothing that it needs, as an element of an Ivy file."""
        name, classifier = quoteattr(self.name), quoteattr(self.classifier)
        marked = f" m:classifier={classifier}" if self.classifier else ""
        return (
            f'<dependency org={quoteattr(self.group)} name={name} rev={quoteattr(self.version)} transitive="false">'
            f'<artifact name={name} type="jar" ext="jar"{marked}/></dependency>'
        )


def read_pins(path: Path) -> dict[Artifact, str]:
    """The pinned jars of a TOML file with their SHA-256 in hexadecimal digits."""
    raw: dict[str, str] = tomllib.loads(path.read_text("utf-8"))
    return {Artifact.parse(coordinate): digest for coordinate, digest in raw.items()}


def cache_directory() -> Path:
    """Where jars are kept between runs; not below the source tree, so that every clone shares it."""
    own = os.environ.get("SPARK_CEC_CACHE")
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return (Path(own) if own else Path(base, "spark-cec")) / "jars"


def fetch(pins: Mapping[Artifact, str], directory: Path | None = None) -> list[Path]:
    """The files of all `pins`, in their order; those that are not in `directory` (the cache) yet are fetched first.

    Raises `FetchError` if one cannot be fetched or has another checksum.
    """
    home = directory or cache_directory()
    home.mkdir(parents=True, exist_ok=True)
    missing = [artifact for artifact in pins if not (home / artifact.file_name).is_file()]
    if missing:
        with tempfile.TemporaryDirectory(prefix=".fetch-", dir=home) as scratch:
            _retrieve(missing, Path(scratch))
            for artifact in missing:
                fetched = Path(scratch, "jars", artifact.file_name)
                _verify(fetched, pins[artifact])
                fetched.replace(home / artifact.file_name)
    files = [home / artifact.file_name for artifact in pins]
    for file, digest in zip(files, pins.values(), strict=True):
        _verify(file, digest)
    return files


def _retrieve(artifacts: Iterable[Artifact], scratch: Path) -> None:
    """Run Ivy with caches and results below `scratch`."""
    settings, module = scratch / "ivysettings.xml", scratch / "ivy.xml"
    settings.write_text(_SETTINGS)
    dependencies = "\n".join(artifact.dependency() for artifact in artifacts)
    module.write_text(
        '<ivy-module version="2.0" xmlns:m="http://ant.apache.org/ivy/maven">'
        '<info organisation="spark-cec" module="test-jars"/>'
        f"<dependencies>{dependencies}</dependencies></ivy-module>"
    )
    command = [
        *(require_java(), "-cp", spark_jars().class_path, "org.apache.ivy.Main"),
        *("-settings", os.environ.get("SPARK_CEC_IVY_SETTINGS") or str(settings), "-ivy", str(module)),
        *("-cache", str(scratch / "ivy"), "-retrieve", f"{scratch}/jars/[artifact]-[revision](-[classifier]).[ext]"),
    ]
    try:
        done = subprocess.run(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=_TIMEOUT_S, check=False
        )
    except subprocess.TimeoutExpired:
        raise FetchError(f"Ivy was not done after {_TIMEOUT_S} s") from None
    if done.returncode:
        raise FetchError(f"Ivy could not fetch the jars:\n{done.stdout[-4000:]}")


def _verify(file: Path, digest: str) -> None:
    if not file.is_file():
        raise FetchError(f"Ivy did not bring {file.name}")
    sha = hashlib.sha256()
    with file.open("rb") as stream:
        while chunk := stream.read(_CHUNK):
            sha.update(chunk)
    if sha.hexdigest() != digest:
        raise FetchError(f"{file} has SHA-256 {sha.hexdigest()}, pinned is {digest}: delete it, or correct the pin")
