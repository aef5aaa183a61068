"""The recipe for the jar: when it builds, what it leaves behind, what it says. The compiler is a fake here."""

from __future__ import annotations

import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from spark_cec import build as recipe
from spark_cec.build import PROPERTIES, build, is_current, main, read_properties
from spark_cec.toolchain import BuildError, SparkJars
from spark_cec.version import __version__

SPARK = SparkJars(Path("/nowhere"), "4.3.0", "2.13")
NAME = f"spark-cec_2.13-{__version__}-spark4.3.0.jar"


class Checkout:
    """A small source tree, and a compiler that turns each source into a class file that holds its text."""

    def __init__(self, root: Path) -> None:
        self.sources, self.out = root / "main", root / "jars"
        self.compiled = 0
        self.spark = SPARK
        self.refuse = False
        self.write("scala/cec/Store.scala", "class Store")
        self.write("resources/META-INF/services/Provider", "cec.Store\n")

    def write(self, name: str, text: str) -> None:
        path = self.sources / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def build(self, *, force: bool = False) -> Path:
        return build(self.sources, self.out, force=force, quiet=True)

    def run(self, *arguments: str) -> int:
        return main(list(arguments), self.sources, self.out)

    def current(self) -> bool:
        return is_current(self.sources, self.out)

    def compile(self, spark: SparkJars, scala: list[Path], java: list[Path], classes: Path, quiet: bool) -> None:
        assert classes.is_relative_to(self.out), "the fake compiler must never write into the real jar"
        self.compiled += 1
        for path in [*scala, *java]:
            (classes / f"{path.stem}.class").write_text(path.read_text())
        if self.refuse:
            raise BuildError("the compiler refused")


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Checkout:
    made = Checkout(tmp_path)
    monkeypatch.setattr(recipe, "compile_sources", made.compile)
    monkeypatch.setattr(recipe, "spark_jars", lambda: made.spark)
    return made


def test_the_jar_holds_classes_resources_and_what_it_was_made_from(checkout: Checkout) -> None:
    checkout.write("java/cec/Spool.java", "class Spool {}")
    jar = checkout.build()
    assert jar == checkout.out / NAME
    with zipfile.ZipFile(jar) as archive:
        assert archive.testzip() is None
        assert archive.namelist() == [
            "META-INF/MANIFEST.MF",
            "META-INF/services/Provider",
            "META-INF/spark-cec/build.properties",
            "Spool.class",
            "Store.class",
        ]
        assert archive.read("META-INF/services/Provider") == b"cec.Store\n"
    assert read_properties(jar).keys() == {"product.version", "spark.version", "sources.sha256"}
    assert read_properties(jar)["spark.version"] == "4.3.0"


def test_nothing_is_compiled_twice(checkout: Checkout) -> None:
    assert not checkout.current()
    first = checkout.build().stat()
    assert checkout.current()
    assert checkout.build().stat() == first
    assert checkout.compiled == 1


def test_force_compiles_again_to_the_same_bytes(checkout: Checkout) -> None:
    before = checkout.build().read_bytes()
    assert checkout.build(force=True).read_bytes() == before
    assert checkout.compiled == 2


def damage(jar: Path) -> None:
    """Spoil the first bytes of the compressed properties."""
    with zipfile.ZipFile(jar) as archive:
        entry = archive.getinfo(PROPERTIES)
    content = bytearray(jar.read_bytes())
    start = entry.header_offset + 30 + len(PROPERTIES)
    content[start : start + 4] = b"\xff" * 4
    jar.write_bytes(content)


CHANGES: dict[str, Callable[[Checkout], object]] = {
    "a source changed": lambda c: c.write("scala/cec/Store.scala", "class Store { }"),
    "a source came": lambda c: c.write("scala/cec/Rule.scala", "class Rule"),
    "a source in Java came": lambda c: c.write("java/cec/Spool.java", "class Spool {}"),
    "a source moved": lambda c: (c.sources / "scala/cec/Store.scala").rename(c.sources / "scala/Store.scala"),
    "a resource changed": lambda c: c.write("resources/META-INF/services/Provider", "cec.Other\n"),
    "a resource went": lambda c: (c.sources / "resources/META-INF/services/Provider").unlink(),
    "the jar was cut short": lambda c: (c.out / NAME).write_bytes((c.out / NAME).read_bytes()[:-40]),
    "a byte of the jar changed": lambda c: damage(c.out / NAME),
    "the jar is empty": lambda c: (c.out / NAME).write_bytes(b""),
    "the jar went": lambda c: (c.out / NAME).unlink(),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_stale_jar_is_built_again(checkout: Checkout, change: str) -> None:
    checkout.write("scala/cec/Extra.scala", "class Extra")
    checkout.build()
    CHANGES[change](checkout)
    assert not checkout.current()
    checkout.build()
    assert checkout.compiled == 2
    assert checkout.current()


@pytest.mark.parametrize("first", ["class A\nclass B\n", "class A\nscala/B.scala\0class B\n"])
def test_text_that_moves_from_one_file_to_another_is_a_change(checkout: Checkout, first: str) -> None:
    checkout.write("scala/A.scala", "class A\n")
    checkout.write("scala/B.scala", "class B\n")
    checkout.build()
    checkout.write("scala/A.scala", first)
    (checkout.sources / "scala" / "B.scala").unlink()
    assert not checkout.current()


def test_the_bytes_do_not_depend_on_the_hour_or_the_order_of_a_directory(
    checkout: Checkout, monkeypatch: pytest.MonkeyPatch
) -> None:
    for letter in "zma":
        checkout.write(f"scala/{letter}/{letter}.scala", f"class {letter}")
    before = checkout.build().read_bytes()
    walk = Path.rglob
    monkeypatch.setattr(Path, "rglob", lambda path, pattern: reversed(list(walk(path, pattern))))
    assert checkout.current()
    jar = checkout.build(force=True)
    assert jar.read_bytes() == before
    with zipfile.ZipFile(jar) as archive:
        assert {entry.date_time for entry in archive.infolist()} == {(1980, 1, 1, 0, 0, 0)}


def test_a_file_that_is_no_source_changes_nothing(checkout: Checkout) -> None:
    checkout.build()
    checkout.write("scala/cec/NOTES.md", "x")
    assert checkout.current()


def test_another_spark_gets_its_own_jar_and_the_old_one_goes(checkout: Checkout) -> None:
    old = checkout.build()
    checkout.spark = SparkJars(Path("/nowhere"), "4.3.1", "2.13")
    assert not checkout.current()
    new = checkout.build()
    assert new.name == f"spark-cec_2.13-{__version__}-spark4.3.1.jar"
    assert not old.exists()


def test_jars_for_two_minor_releases_stand_side_by_side_while_their_sources_are_the_same(checkout: Checkout) -> None:
    older = checkout.build()
    checkout.spark = SparkJars(Path("/nowhere"), "4.2.0", "2.13")
    newer = checkout.build()
    assert older.exists() and newer.exists()
    checkout.write("scala/cec/Store.scala", "class Store { }")
    assert checkout.build() == newer
    assert not older.exists()


def test_a_wheel_with_two_jars_serves_both_releases(checkout: Checkout, tmp_path: Path) -> None:
    first = checkout.build()
    checkout.spark = SparkJars(Path("/nowhere"), "4.2.0", "2.13")
    second = checkout.build()
    checkout.sources.rename(tmp_path / "gone")
    for version, jar in (("4.2.1", second), ("4.3.2", first)):
        checkout.spark = SparkJars(Path("/nowhere"), version, "2.13")
        assert checkout.build() == jar


def test_another_release_of_ours_gets_its_own_jar(checkout: Checkout, monkeypatch: pytest.MonkeyPatch) -> None:
    old = checkout.build()
    monkeypatch.setattr(recipe, "__version__", "99.0")
    new = checkout.build()
    assert new.name == "spark-cec_2.13-99.0-spark4.3.0.jar"
    assert read_properties(new)["product.version"] == "99.0"
    assert not old.exists()


def test_a_failed_build_keeps_the_old_jar_and_leaves_no_litter(checkout: Checkout) -> None:
    before = checkout.build().read_bytes()
    checkout.write("scala/cec/Store.scala", "class Broken")
    checkout.refuse = True
    with pytest.raises(BuildError, match="refused"):
        checkout.build()
    assert [path.name for path in checkout.out.iterdir()] == [NAME]
    assert (checkout.out / NAME).read_bytes() == before
    assert not checkout.current()


def test_without_sources_the_installed_jar_is_the_answer(checkout: Checkout, tmp_path: Path) -> None:
    jar = checkout.build()
    checkout.sources.rename(tmp_path / "gone")
    assert checkout.build() == checkout.build(force=True) == jar
    assert checkout.current()
    assert checkout.compiled == 1


@pytest.mark.parametrize("name", [None, "spark-cec_2.13-0.0.1-spark4.3.0.jar"])
def test_without_sources_and_jar_it_says_what_to_do(tmp_path: Path, checkout: Checkout, name: str | None) -> None:
    if name:
        checkout.out.mkdir()
        (checkout.out / name).write_bytes(b"")
    for ask in (build, is_current):
        with pytest.raises(BuildError, match=rf"no {NAME} in .*, and no sources to build it: install spark-cec again"):
            ask(tmp_path / "nothing", checkout.out)


def test_an_installed_jar_for_another_spark_is_refused(checkout: Checkout, tmp_path: Path) -> None:
    checkout.build()
    checkout.sources.rename(tmp_path / "gone")
    checkout.spark = SparkJars(Path("/nowhere"), "4.30.0", "2.13")
    for ask in (checkout.build, checkout.current):
        with pytest.raises(BuildError, match=r"4\.3\.0, but pyspark is 4\.30\.0: .*'pyspark==4\.3\.0'.*spark=4\.30"):
            ask()


def test_an_installed_jar_will_do_for_another_patch_release(checkout: Checkout, tmp_path: Path) -> None:
    jar = checkout.build()
    checkout.sources.rename(tmp_path / "gone")
    checkout.spark = SparkJars(Path("/nowhere"), "4.3.7", "2.13")
    assert checkout.build() == jar
    assert checkout.current()


def test_the_command_prints_the_path_and_nothing_else_on_standard_output(
    checkout: Checkout, capsys: pytest.CaptureFixture[str]
) -> None:
    assert checkout.run() == 0
    printed = capsys.readouterr()
    assert printed.out == f"{checkout.out / NAME}\n"
    assert printed.err == f"building {NAME}\n"
    assert checkout.run("--quiet", "--force") == 0
    assert capsys.readouterr() == ("", "")
    assert checkout.compiled == 2


def test_check_builds_nothing_and_tells_by_its_status(checkout: Checkout, capsys: pytest.CaptureFixture[str]) -> None:
    assert checkout.run("--check", "-q") == 1
    assert "missing or stale: run `python -m spark_cec.build`" in capsys.readouterr().err
    assert not checkout.out.exists()
    checkout.build()
    assert checkout.run("--check") == 0
    assert capsys.readouterr() == ("", "the jar is up to date\n")
    assert checkout.compiled == 1


def test_an_error_is_one_line_and_status_1(checkout: Checkout, capsys: pytest.CaptureFixture[str]) -> None:
    checkout.refuse = True
    assert checkout.run("-q") == 1
    assert capsys.readouterr() == ("", "spark_cec.build: the compiler refused\n")


def test_installed_without_sources_the_command_says_so(
    checkout: Checkout, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    jar = checkout.build()
    checkout.sources.rename(tmp_path / "gone")
    assert checkout.run() == 0
    assert capsys.readouterr() == (f"{jar}\n", "installed without sources: the jar is there already\n")
