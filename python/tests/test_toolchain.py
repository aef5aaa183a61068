"""Finding Java and Spark: one line that names what is missing, and what to install."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from spark_cec.toolchain import (
    SPARKS,
    BuildError,
    SparkJars,
    java_command,
    main,
    minor_release,
    read_spark_jars,
    require_java,
    spark_jars,
)


@pytest.fixture(autouse=True)
def bare_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine with neither JAVA_HOME nor anything but an empty `bin` on the search path."""
    (tmp_path / "bin").mkdir()
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.delenv("JAVA_HOME", raising=False)


def install_java(root: Path, says: str, status: int = 0) -> str:
    """A `java` in `root/bin` that answers `-version` with `says`, on standard error as the real one does."""
    path = root / "bin" / "java"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\nwhile read -r line; do echo \"$line\"; done >&2 <<'END'\n{says}\nEND\nexit {status}\n")
    path.chmod(0o755)
    return str(path)


@pytest.mark.parametrize(
    "says",
    [
        'openjdk version "17.0.15" 2025-04-15',
        'java version "17" 2021-09-14 LTS',
        'openjdk version "21-ea" 2023-09-19',
        'Picked up _JAVA_OPTIONS: -Xmx1g\nopenjdk version "25.0.1" 2025-10-21',
    ],
)
def test_a_java_that_is_new_enough_is_taken(tmp_path: Path, says: str) -> None:
    assert install_java(tmp_path, says) == require_java()


@pytest.mark.parametrize(
    ("says", "found"), [('java version "1.8.0_392"', "Java 8"), ('openjdk version "16.0.2" 2021-07-20', "Java 16")]
)
def test_a_java_that_is_too_old_is_named(tmp_path: Path, says: str, found: str) -> None:
    java = install_java(tmp_path, says)
    with pytest.raises(BuildError, match=rf"{java} is {found}: .*JDK 17 or newer .*apt-get install"):
        require_java()


@pytest.mark.parametrize(("says", "status"), [("no VM", 1), ("hello", 0), ('openjdk version "17"', 1)])
def test_a_java_that_does_not_work_is_named(tmp_path: Path, says: str, status: int) -> None:
    java = install_java(tmp_path, says, status)
    with pytest.raises(BuildError, match=f"`{java} -version` does not work: install a JDK 17"):
        require_java()


def test_no_java_says_what_to_install() -> None:
    with pytest.raises(BuildError, match="no `java` on the search path: install a JDK 17 or newer"):
        require_java()


def test_java_home_goes_first_and_is_the_only_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install_java(tmp_path, 'openjdk version "11.0.2"')
    home = tmp_path / "jdk"
    monkeypatch.setenv("JAVA_HOME", str(home))
    with pytest.raises(BuildError, match=f"no `java` in JAVA_HOME={home}: install"):
        require_java()
    assert install_java(home, 'openjdk version "17.0.15"') == require_java()
    with pytest.raises(BuildError, match=f"no `javac` in JAVA_HOME={home}"):
        java_command("javac")


def test_the_command_prints_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main() == 1
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.count("\n") == 1
    assert printed.err.startswith("no `java`")
    install_java(tmp_path, 'openjdk version "17.0.15"')
    assert main() == 0
    assert capsys.readouterr() == ("", "")


def jars(directory: Path, *names: str) -> Path:
    directory.mkdir(parents=True)
    for name in names:
        (directory / name).write_bytes(b"")
    return directory


@pytest.mark.parametrize("version", ["4.2.0", "4.2.1", "4.3", "4.3.0", "4.3.7-SNAPSHOT"])
def test_the_spark_and_scala_versions_are_read_from_the_jars(tmp_path: Path, version: str) -> None:
    directory = jars(tmp_path / "jars", "spark-sql_2.13-9.9.9.jar", f"spark-core_2.13-{version}.jar")
    assert read_spark_jars(directory) == SparkJars(directory, version, "2.13")
    assert read_spark_jars(directory).class_path == f"{directory}/*"


@pytest.mark.parametrize("version", ["4.1.1", "4.4.0", "4.30.0", "4.20.0", "3.5.1", "14.3.0"])
def test_another_spark_is_refused_by_name(tmp_path: Path, version: str) -> None:
    directory = jars(tmp_path / "pyspark" / "jars", f"spark-core_2.13-{version}.jar")
    with pytest.raises(BuildError, match=rf"pyspark is {version}: pip install 'pyspark==4\.3\.\*', or one of 4\.2, 4"):
        read_spark_jars(directory)


def test_a_pyspark_without_jars_is_named(tmp_path: Path) -> None:
    with pytest.raises(BuildError, match=r"no spark-core jar in .*not pyspark-client"):
        read_spark_jars(tmp_path / "pyspark" / "jars")


class _Spec:
    def __init__(self, package: Path | None) -> None:
        self.submodule_search_locations = [str(package)] if package else None


@pytest.mark.parametrize("spec", [None, _Spec(None)])
def test_no_pyspark_says_what_to_install(monkeypatch: pytest.MonkeyPatch, spec: _Spec | None) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: spec)
    with pytest.raises(BuildError, match=r"no pyspark in this Python: pip install 'pyspark==4\.3\.\*'"):
        spark_jars()


@pytest.mark.parametrize("inside", [True, False])
def test_jars_lie_in_the_package_or_in_spark_home(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, inside: bool
) -> None:
    package = tmp_path / "spark" / "python" / "pyspark"
    package.mkdir(parents=True)
    directory = jars(package / "jars" if inside else tmp_path / "spark" / "jars", "spark-core_2.13-4.3.0.jar")
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: _Spec(package))
    assert spark_jars().directory == directory


def test_the_pyspark_of_this_environment_will_do() -> None:
    found = spark_jars()
    assert minor_release(found.version) in SPARKS
    assert list(found.directory.glob(f"scala-compiler-{found.scala}.*.jar"))
