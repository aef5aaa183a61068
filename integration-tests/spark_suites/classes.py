"""The class path of a suite: our own suites, Spark's published test jars, our jar, pyspark's jars."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import tempfile
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from cec_it.maven import fetch, read_pins
from spark_cec import jar_path
from spark_cec.toolchain import SCALAC_OPTIONS, BuildError, require_java, spark_jars

HERE = Path(__file__).resolve().parent
_PINS = HERE / "jars.toml"
_OWN = HERE / "scala"
_SQL_TESTS = "spark-sql_2.13"


@dataclass(frozen=True, slots=True)
class Classes:
    """The class path of a JVM that runs tests: the `own` classes, the jars beside them, our jar, Spark's jars."""

    own: Path
    libraries: tuple[Path, ...]
    product: Path
    spark: str

    @property
    def class_path(self) -> str:
        """For `java -cp`."""
        return os.pathsep.join([str(self.own), *map(str, self.libraries), str(self.product), self.spark])


def prepare(directory: Path, jar: Path | None = None) -> Classes:
    """Fetch the test jars, unpack the one whose resources suites open as files, compile our suites below `directory`.

    `jar` is tried instead of the one of this tree. Raises `FetchError` or `BuildError` if that cannot be done.
    """
    files = fetch(read_pins(_PINS))
    tests = tuple(_unpacked(file) if file.name.startswith(_SQL_TESTS) else file for file in files)
    product, spark = jar or Path(jar_path()), spark_jars().class_path
    own = _compiled([*map(str, tests), str(product), spark], directory)
    return Classes(own, tests, product, spark)


def _unpacked(jar: Path) -> Path:
    """The directory with the contents of `jar`, beside it: `getResource(…).toURI` of Spark's tests must be a file."""
    target = jar.with_suffix(".unpacked")
    if not target.is_dir():
        with tempfile.TemporaryDirectory(prefix=".unpack-", dir=jar.parent) as scratch:
            with zipfile.ZipFile(jar) as archive:
                archive.extractall(Path(scratch, "classes"))
            Path(scratch, "classes").rename(target)
    return target


def _compiled(class_path: list[str], directory: Path) -> Path:
    """The directory with the classes of `scala/`, which is made again when the sources or the class path changed.

    Of ours they name the provider's class alone, so a new jar of the same name is no reason.
    """
    sources = sorted(_OWN.glob("*.scala"))
    digest = hashlib.sha256("\0".join([*class_path, *(source.read_text("utf-8") for source in sources)]).encode())

    def compile_suites(classes: Path) -> None:
        command = [
            *(require_java(), "-Xss4m", "-cp", os.pathsep.join(class_path), "scala.tools.nsc.Main"),
            *(*SCALAC_OPTIONS, "-nowarn", "-d", str(classes), *map(str, sources)),
        ]
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
        if done.returncode:
            raise BuildError(f"the suites of {_OWN} do not compile:\n{done.stdout}")

    return compile_once(directory, digest.hexdigest(), compile_suites)


def compile_once(directory: Path, digest: str, compile_into: Callable[[Path], None]) -> Path:
    """The classes below `directory` for this digest; compiles them if they are not there, and removes older ones."""
    target = directory / f"classes-{digest[:16]}"
    if target.is_dir():
        return target
    directory.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".compile-", dir=directory) as scratch:
        classes = Path(scratch, "classes")
        classes.mkdir()
        compile_into(classes)
        for old in directory.glob("classes-*"):
            shutil.rmtree(old)
        classes.rename(target)
    return target
