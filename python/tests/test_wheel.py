"""A wheel built from a clean checkout carries a jar, and the real compilers made it."""

from __future__ import annotations

import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from spark_cec.build import build, read_properties
from spark_cec.toolchain import BuildError, spark_jars

ROOT = Path(__file__).resolve().parents[2]
SCALA = """package org.apache.spark.sql.cec
import org.apache.spark.sql.execution.streaming.state.StateStoreProvider
class Shim { def wanted: Class[_ <: StateStoreProvider] = null; def spool: Spool = new Spool() }
"""
JAVA = """package org.apache.spark.sql.cec;
public class Spool { public Shim shim() { return new Shim(); } }
"""


def small_shim(main: Path) -> Path:
    """A shim of two classes, one in Scala and one in Java, that use each other and a class that Spark keeps private."""
    for part, text in (("scala/Shim.scala", SCALA), ("java/Spool.java", JAVA), ("resources/META-INF/hello", "x")):
        path = main / part
        path.parent.mkdir(parents=True)
        path.write_text(text)
    return main


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A checkout with everything that packaging reads, and a small shim in place of the real one."""
    root = tmp_path / "checkout"
    shutil.copytree(ROOT / "python", root / "python", ignore=shutil.ignore_patterns("jars", "tests", "__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, root)
    shutil.copy(ROOT / ".gitignore", root)
    small_shim(root / "jvm-shim" / "src" / "main")
    return root


def python(*arguments: str, path: Path | None = None) -> subprocess.CompletedProcess[str]:
    environment = {"PYTHONPATH": str(path)} if path else None
    return subprocess.run([sys.executable, *arguments], env=environment, capture_output=True, text=True, check=True)


def test_a_wheel_carries_the_jar_and_needs_no_sources(checkout: Path, tmp_path: Path) -> None:
    options = ("--no-deps", "--no-build-isolation", "--no-index", "--quiet")
    python("-m", "pip", "wheel", *options, "--wheel-dir", str(tmp_path), str(checkout))
    (wheel,) = tmp_path.glob("spark_cec-*.whl")
    site = tmp_path / "site"
    with zipfile.ZipFile(wheel) as archive:
        left_out = ("tests/", "build_backend", "spark_cec_lab/")
        assert not [name for name in archive.namelist() if any(each in name for each in left_out)]
        archive.extractall(site)
    (jar,) = (site / "spark_cec" / "jars").iterdir()
    assert read_properties(jar)["spark.version"] == spark_jars().version
    with zipfile.ZipFile(jar) as archive:
        classes = {f"org/apache/spark/sql/cec/{name}.class" for name in ("Shim", "Spool")}
        assert classes | {"META-INF/hello"} <= set(archive.namelist())
    told = python("-m", "spark_cec.build", path=site)
    assert told.stdout == f"{jar}\n"
    assert "the jar is there already" in told.stderr
    assert python("-c", "import spark_cec; print(spark_cec.jar_path())", path=site).stdout == f"{jar}\n"


def test_what_the_compiler_refuses_is_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sources = small_shim(tmp_path / "main")
    (sources / "scala" / "Shim.scala").write_text("class Shim { def wrong: Int = nonsense }")
    with pytest.raises(BuildError, match="the Scala compiler refused the shim's sources"):
        build(sources, tmp_path / "jars", quiet=True)
    assert "not found: value nonsense" in capsys.readouterr().err
    assert list((tmp_path / "jars").iterdir()) == []
