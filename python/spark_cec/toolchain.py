"""What the shim is built with: Java, and the Scala compiler among pyspark's jars. Standard library only."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from spark_cec.errors import CecError

JAVA_NEEDED = 17
SPARKS = ("4.2", "4.3")
"""The minor releases of Spark that the shim is made for, one jar for each; the last is the one to develop with."""
SCALAC_OPTIONS = (
    *("-usejavacp", "-release", str(JAVA_NEEDED), "-encoding", "UTF-8"),
    *("-deprecation", "-feature", "-unchecked"),
)
JAVAC_OPTIONS = ("--release", str(JAVA_NEEDED), "-encoding", "UTF-8", "-proc:none")
_SPARK_CORE = re.compile(r"spark-core_(\d+\.\d+)-(.+)\.jar")
_INSTALL_SPARK = f"pip install 'pyspark=={SPARKS[-1]}.*'"
_INSTALL = f"Debian, Ubuntu: apt-get install openjdk-{JAVA_NEEDED}-jdk-headless"
_JAVA_VERSION = re.compile(r'version "(?:1\.)?(\d+)')


class BuildError(CecError):
    """The shim's jar cannot be built or found: the message says what is missing and how to get it."""


@dataclass(frozen=True, slots=True)
class SparkJars:
    """A Spark distribution's jars: the directory, and the versions that `spark-core`'s file name tells."""

    directory: Path
    version: str
    scala: str

    @property
    def class_path(self) -> str:
        """For `java -cp`: every jar of the directory."""
        return str(self.directory / "*")


def minor_release(version: str) -> str:
    """Major and minor number: 4.3 of 4.3.0."""
    return ".".join(version.split(".")[:2])


def java_command(name: str = "java") -> str:
    """Path of a JDK command (`java`, `javac`): in `$JAVA_HOME` if that is set, as Spark does, else on the search path.

    Raises `BuildError` if it is not there.
    """
    home = os.environ.get("JAVA_HOME")
    found = shutil.which(name, path=str(Path(home, "bin"))) if home else shutil.which(name)
    if found is None:
        where = f"in JAVA_HOME={home}" if home else "on the search path"
        raise BuildError(f"no `{name}` {where}: install a JDK {JAVA_NEEDED} or newer ({_INSTALL})")
    return found


def require_java() -> str:
    """Path of a `java` that is new enough. Raises `BuildError` if it is missing, broken or too old."""
    java = java_command()
    shown = subprocess.run([java, "-version"], capture_output=True, text=True, check=False)
    said = shown.stderr + shown.stdout
    match = _JAVA_VERSION.search(said)
    if shown.returncode or match is None:
        raise BuildError(f"`{java} -version` does not work: install a JDK {JAVA_NEEDED} or newer ({_INSTALL})")
    if int(match[1]) < JAVA_NEEDED:
        raise BuildError(f"{java} is Java {match[1]}: point JAVA_HOME at a JDK {JAVA_NEEDED} or newer ({_INSTALL})")
    return java


def spark_jars() -> SparkJars:
    """The jars of the pyspark that this Python would import, without importing it.

    They are in the package if pip installed it, and in `$SPARK_HOME/jars` if it is `$SPARK_HOME/python/pyspark`.
    Raises `BuildError` if pyspark is missing, brings no jars (`pyspark-client`) or is not one of `SPARKS`.
    """
    spec = importlib.util.find_spec("pyspark")
    if spec is None or not spec.submodule_search_locations:
        raise BuildError(f"no pyspark in this Python: {_INSTALL_SPARK}")
    package = Path(spec.submodule_search_locations[0])
    inside, beside = package / "jars", package.parents[1] / "jars"
    return read_spark_jars(beside if beside.is_dir() and not inside.is_dir() else inside)


def read_spark_jars(directory: Path) -> SparkJars:
    """What Spark the jars of `directory` are. Raises `BuildError` as `spark_jars` does."""
    names = sorted(path.name for path in directory.glob("spark-core_*.jar"))
    match = _SPARK_CORE.fullmatch(names[0]) if names else None
    if match is None:
        raise BuildError(f"no spark-core jar in {directory}: {_INSTALL_SPARK} (not pyspark-client)")
    scala, version = match.groups()
    if minor_release(version) not in SPARKS:
        raise BuildError(f"pyspark in {directory.parent} is {version}: {_INSTALL_SPARK}, or one of {', '.join(SPARKS)}")
    return SparkJars(directory, version, scala)


def compile_sources(spark: SparkJars, scala: list[Path], java: list[Path], classes: Path, quiet: bool) -> None:
    """Compile into the directory `classes`: Scala first, which reads the Java sources' signatures, then Java.

    What the compilers say goes to standard error; with `quiet` only if they fail, which raises `BuildError`.
    """
    runtime = require_java()
    if scala:
        compiler = [runtime, "-Xss4m", "-cp", spark.class_path, "scala.tools.nsc.Main", *SCALAC_OPTIONS]
        _run("the Scala compiler", [*compiler, "-d", str(classes), *map(str, scala), *map(str, java)], quiet)
    if java:
        class_path = os.pathsep.join([str(classes), spark.class_path])
        compiler = [java_command("javac"), *JAVAC_OPTIONS, "-cp", class_path]
        _run("the Java compiler", [*compiler, "-d", str(classes), *map(str, java)], quiet)


def _run(who: str, command: list[str], quiet: bool) -> None:
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    if done.returncode or not quiet:
        sys.stderr.write(done.stdout)
    if done.returncode:
        raise BuildError(f"{who} refused the shim's sources: correct what it says above")


def main() -> int:
    """Say in one line what is missing before anything is installed; returns the exit status."""
    try:
        require_java()
    except BuildError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
