"""The one recipe for the shim's jar: `python -m spark_cec.build`. Standard library only.

The Scala compiler among pyspark's jars compiles `jvm-shim/`. The jar says in `META-INF/spark-cec/build.properties`
what it was made from, and is made again only when that has changed.
"""

from __future__ import annotations

import argparse
import hashlib
import sys
import tempfile
import zipfile
import zlib
from dataclasses import dataclass
from pathlib import Path

from spark_cec.toolchain import (
    JAVAC_OPTIONS,
    SCALAC_OPTIONS,
    BuildError,
    SparkJars,
    compile_sources,
    minor_release,
    spark_jars,
)
from spark_cec.version import __version__

PACKAGE = Path(__file__).resolve().parent
JARS = PACKAGE / "jars"
SOURCES = PACKAGE.parents[1] / "jvm-shim" / "src" / "main"
PROPERTIES = "META-INF/spark-cec/build.properties"
_ZIP_EPOCH = (1980, 1, 1, 0, 0, 0)


@dataclass(frozen=True, slots=True)
class Sources:
    """The shim's source tree: `scala/`, `java/` and `resources/` below `root`."""

    root: Path

    def exist(self) -> bool:
        """Whether this is a checkout with something to compile."""
        return bool(self.code(".scala", ".java"))

    def code(self, *suffixes: str) -> list[Path]:
        """Source files with one of `suffixes`, sorted."""
        return [path for part in ("java", "scala") for path in _files(self.root / part) if path.suffix in suffixes]

    def resources(self) -> list[tuple[str, Path]]:
        """Each resource's name in the jar, and its file."""
        base = self.root / "resources"
        return [(path.relative_to(base).as_posix(), path) for path in _files(base)]

    def digest(self) -> str:
        """SHA-256 over names, contents and compiler options: whatever else changes, the jar would be the same."""
        sha = hashlib.sha256(repr((SCALAC_OPTIONS, JAVAC_OPTIONS)).encode())
        for path in [*self.code(".scala", ".java"), *(path for _, path in self.resources())]:
            content = path.read_bytes()
            sha.update(f"{path.relative_to(self.root).as_posix()}\0{len(content)}\0".encode() + content)
        return sha.hexdigest()


def _files(directory: Path) -> list[Path]:
    return sorted(path for path in directory.rglob("*") if path.is_file())


def build(sources: Path = SOURCES, out: Path = JARS, *, force: bool = False, quiet: bool = False) -> Path:
    """The jar, built first if it is missing or stale (or `force`); returns its path.

    `sources` is `jvm-shim/src/main`, `out` the directory of the jar; without sources the jar that is there must do.
    Raises `BuildError`, also when the compiler does.
    """
    tree, spark = Sources(sources), spark_jars()
    if not tree.exist():
        return _installed_jar(out, spark)
    jar, wanted = out / jar_name(spark), _properties(tree, spark)
    if force or read_properties(jar) != wanted:
        _say(quiet, f"building {jar.name}")
        _build(tree, spark, jar, wanted, quiet)
    return jar


def is_current(sources: Path = SOURCES, out: Path = JARS) -> bool:
    """Whether `build` would have nothing to do. Raises `BuildError` if there is neither a jar nor its sources."""
    tree, spark = Sources(sources), spark_jars()
    if not tree.exist():
        return _installed_jar(out, spark).is_file()
    return read_properties(out / jar_name(spark)) == _properties(tree, spark)


def _installed_jar(out: Path, spark: SparkJars) -> Path:
    """The jar that came with the installed package. Raises `BuildError` if it is missing or for another Spark.

    One for another patch release will do: in the JVM it looks whether that Spark has all that it uses.
    """
    jar = out / jar_name(spark)
    if jar.is_file():
        return jar
    others = {
        read_properties(path).get("spark.version", "?"): path
        for path in sorted(out.glob(f"spark-cec_{spark.scala}-{__version__}-*.jar"))
    }
    near = [path for version, path in others.items() if minor_release(version) == minor_release(spark.version)]
    if near:
        return near[-1]
    if others:
        newest = list(others)[-1]
        raise BuildError(
            f"the installed jar is for Spark {' and '.join(others)}, but pyspark is {spark.version}: pip install "
            f"'pyspark=={newest}', or spark-cec from its sources with --config-settings spark="
            f"{minor_release(spark.version)}"
        )
    raise BuildError(f"no {jar.name} in {out}, and no sources to build it: install spark-cec again")


def jar_name(spark: SparkJars) -> str:
    """The jar's file name: product, Scala, product version and Spark version."""
    return f"spark-cec_{spark.scala}-{__version__}-spark{spark.version}.jar"


def _properties(tree: Sources, spark: SparkJars) -> dict[str, str]:
    return {"product.version": __version__, "spark.version": spark.version, "sources.sha256": tree.digest()}


def read_properties(jar: Path) -> dict[str, str]:
    """What `jar` says it was made from; empty if it is missing, not a jar or not ours."""
    try:
        with zipfile.ZipFile(jar) as archive:
            lines = archive.read(PROPERTIES).decode().splitlines()
    except (OSError, KeyError, UnicodeDecodeError, zipfile.BadZipFile, zlib.error):
        return {}
    return dict(line.split("=", 1) for line in lines if "=" in line)


def _build(tree: Sources, spark: SparkJars, jar: Path, properties: dict[str, str], quiet: bool) -> None:
    """Compile beside the jar and rename over it: nobody ever sees half a jar, and a JVM keeps the one it has open."""
    jar.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".build-", dir=jar.parent) as scratch:
        classes, packed = Path(scratch, "classes"), Path(scratch, jar.name)
        classes.mkdir()
        compile_sources(spark, tree.code(".scala"), tree.code(".java"), classes, quiet)
        _pack(packed, classes, tree, properties)
        packed.replace(jar)
    for old in jar.parent.glob("spark-cec_*.jar"):
        if old != jar and not _goes_along(read_properties(old), properties):
            old.unlink(missing_ok=True)


def _goes_along(theirs: dict[str, str], ours: dict[str, str]) -> bool:
    """Whether a jar is of the same sources, for another minor release of Spark: a wheel may carry several."""
    spark = "spark.version"
    return {**theirs, spark: ""} == {**ours, spark: ""} and minor_release(theirs[spark]) != minor_release(ours[spark])


def _pack(jar: Path, classes: Path, tree: Sources, properties: dict[str, str]) -> None:
    """A jar whose bytes depend on its entries only: sorted, with the same time in all of them."""
    entries = {path.relative_to(classes).as_posix(): path.read_bytes() for path in _files(classes)}
    entries |= {name: path.read_bytes() for name, path in tree.resources()}
    entries[PROPERTIES] = "".join(f"{key}={value}\n" for key, value in sorted(properties.items())).encode()
    manifest = f"Manifest-Version: 1.0\nImplementation-Title: spark-cec\nImplementation-Version: {__version__}\n\n"
    with zipfile.ZipFile(jar, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in [("META-INF/MANIFEST.MF", manifest.encode()), *sorted(entries.items())]:
            archive.writestr(zipfile.ZipInfo(name, _ZIP_EPOCH), content, zipfile.ZIP_DEFLATED)


def _say(quiet: bool, text: str) -> None:
    if not quiet:
        print(text, file=sys.stderr)


def main(arguments: list[str] | None = None, sources: Path = SOURCES, out: Path = JARS) -> int:
    """The command line; returns the exit status. The jar's path goes to standard output, all else to standard error."""
    parser = argparse.ArgumentParser(prog="python -m spark_cec.build", description="Build the jar of Spark CEC.")
    parser.add_argument("--force", action="store_true", help="build even if nothing has changed")
    parser.add_argument("--check", action="store_true", help="build nothing; exit 1 if the jar is missing or stale")
    parser.add_argument("-q", "--quiet", action="store_true", help="say nothing unless it fails")
    options = parser.parse_args(arguments)
    try:
        if options.check:
            return _check(sources, out, options.quiet)
        jar = build(sources, out, force=options.force, quiet=options.quiet)
    except BuildError as error:
        print(f"spark_cec.build: {error}", file=sys.stderr)
        return 1
    if not Sources(sources).exist():
        _say(options.quiet, "installed without sources: the jar is there already")
    if not options.quiet:
        print(jar)
    return 0


def _check(sources: Path, out: Path, quiet: bool) -> int:
    if not is_current(sources, out):
        raise BuildError("the jar is missing or stale: run `python -m spark_cec.build`")
    _say(quiet, "the jar is up to date")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
