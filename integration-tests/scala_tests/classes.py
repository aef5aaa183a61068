"""The class path of the unit tests: the tests, ScalaTest's jars, our jar, pyspark's jars."""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass
from pathlib import Path

from cec_it.maven import fetch, read_pins
from spark_cec.build import build, read_properties
from spark_cec.toolchain import JAVAC_OPTIONS, SCALAC_OPTIONS, SparkJars, compile_sources, spark_jars
from spark_suites.classes import Classes, compile_once

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
SOURCES = ROOT / "jvm-shim" / "src" / "test" / "scala"
SCALATEST = {"scalatest-core_2.13", "scalatest-compatible", "scalatest-funsuite_2.13", "scalactic_2.13"}


@dataclass(frozen=True, slots=True)
class _WithLibraries(SparkJars):
    more: tuple[Path, ...] = ()

    @property
    def class_path(self) -> str:
        """Spark's jars, and what the tests compile against beside them."""
        return os.pathsep.join([str(self.directory / "*"), *map(str, self.more)])


def prepare(directory: Path) -> Classes:
    """Build the jar if it is stale, fetch ScalaTest, and compile the tests below `directory` if they are stale.

    ScalaTest has its pins in the list of `spark_suites`. Raises `FetchError` or `BuildError` if that cannot be done.
    """
    product, spark = build(quiet=True), spark_jars()
    pins = read_pins(ROOT / "integration-tests" / "spark_suites" / "jars.toml")
    library = tuple(fetch({artifact: digest for artifact, digest in pins.items() if artifact.name in SCALATEST}))
    jars = _WithLibraries(spark.directory, spark.version, spark.scala, (*library, product))
    return Classes(_compiled(jars, product, directory), library, product, spark.class_path)


def _compiled(jars: _WithLibraries, product: Path, directory: Path) -> Path:
    """The directory with the tests' classes, made again if the tests or what they are compiled against has changed."""
    sources = sorted(SOURCES.rglob("*.scala"))
    made_from = repr((SCALAC_OPTIONS, JAVAC_OPTIONS, [jar.name for jar in jars.more], read_properties(product)))
    sha = hashlib.sha256(made_from.encode())
    for source in sources:
        sha.update(f"\0{source.relative_to(SOURCES)}\0".encode() + source.read_bytes())
    return compile_once(
        directory, sha.hexdigest(), lambda classes: compile_sources(jars, sources, [], classes, quiet=True)
    )
